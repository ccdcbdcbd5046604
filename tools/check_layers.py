#!/usr/bin/env python3
"""Keeps the house in order (CONTRIBUTING.md). Usage: check_layers.py [ROOT]

A folder has a floor. A file includes its own folder or a strictly lower floor, and of another
folder only its door, folder/folder.h. Floors are strict, so folders cannot include each other in a
ring; headers of one folder could, and that is checked too. So are the length of files, `#pragma once`,
how many virtual functions a class declares, what a header brings along, who sees the headers that change
often, that only src/net sees Boost, that src/ spells no flag of the command line but every Field has one
(base/field.h), and that words have one meaning (docs/glossary.md). Complaints are one line each, `file:line: what`, and the exit code is
then 1.
"""

import os
import re
import sys
from pathlib import Path

FLOORS = [
    {"base"},
    {"quant", "tokenizer", "sampler", "chat", "net", "comm"},
    {"backend/params"},                                    # what ops take
    {"backend/host"},                                      # what rooms on the host share
    {"backend/reference", "backend/cpu", "backend/cuda"},  # the backend's rooms
    {"backend", "gguf"},
    {"kv_cache", "datasets"},
    {"model", "rivals"},
    {"speculative", "roofline", "prepare"},
    {"scheduler"},
    {"engine"},
    {"bench", "eval", "api"},
    {"apps/cli", "apps/server", "apps/bench", "examples"},
    {"tests"},
]
FLOOR = {folder: number for number, folders in enumerate(FLOORS) for folder in folders}
ROOMS = {"backend/host", "backend/reference", "backend/cpu", "backend/cuda"}
SHARED_ROOM = "backend/host"

# Headers that a folder shows to others, where it is not just folder/folder.h. None: all of them. A
# folder's fields.h (base/field.h) is always a door.
DOORS = {
    "base": None,
    "tests": None,
    "backend": {"backend/backend.h", "backend/memory.h", "backend/weight_memory.h",
                "backend/pass_ops.h", "backend/prefill_ops.h", "backend/round_ops.h",
                "backend/kv_ops.h", "backend/kv_borders.h"},
    "backend/params": None,
    "bench": {"bench/bench.h", "bench/load.h"},
    "engine": {"engine/engine.h", "engine/request_loop.h", "engine/chat_prompts.h",
               "engine/receipt.h", "engine/chunk_folder.h"},
    "quant": {"quant/quant.h", "quant/weight_format.h", "quant/encode_row.h",
              "quant/encode_kernels.h", "quant/fit-inl.h",
              "quant/test_support.h"},
    # What a file says, what its tensors mean, and small files for other rooms' tests.
    "gguf": {"gguf/gguf.h", "gguf/blocks.h", "gguf/test_support.h"},
    "kv_cache": {"kv_cache/kv_cache.h", "kv_cache/prefix_tree.h", "kv_cache/kv_access.h",
                 "kv_cache/prompt_tails.h",
                 "kv_cache/gathered_tokens.h"},  # which rivals are
    "sampler": {"sampler/sampler.h", "sampler/acceptance.h", "sampler/parameters.h",
                "sampler/sampling_params.h"},
    "comm": {"comm/comm.h", "comm/test_support.h"},
    "net": {"net/net.h", "net/message.h", "net/notify.h"},
    "model": {"model/model.h", "model/config.h",
              "model/draft_store.h",  # of which few write or read a store
              "model/model_files.h", "model/weight_source.h", "model/safetensors.h",
              "model/blank_source.h",  # what is read of files
              "model/share.h", "model/test_support.h"},  # ranks, and models for tests of them
    "speculative": {"speculative/speculative.h", "speculative/round_stats.h"},
    "tokenizer": {"tokenizer/tokenizer.h", "tokenizer/vocabulary.h"},  # which readers of files fill
}
# A room implements the backend, so it may look up at that floor's doors.
ROOM_SEES = {"backend", "backend/params", "backend/host", "sampler", "quant", "comm", "base"}
# The public door is enough for these; the command line also shows the measuring instruments, and
# examples see what is installed.
SEES_ONLY = {
    "examples": set(),
    "apps/cli": {"engine", "tokenizer", "sampler", "base", "datasets", "roofline", "prepare", "bench",
                 "eval", "api", "net"},
    "apps/bench": {"speculative", "gguf", "backend", "backend/params", "sampler", "comm", "base"},
}
# A model, before it is loaded.
SEEN_BY_ALL = {"model/model_files.h", "model/weight_source.h", "model/share.h"}
NAMES_ROOMS = "src/backend/registry.cc"
SEES_BOOST = "src/net/"  # whose headers take seconds to compile, and are no part of what is installed

MAX_LINES = 600
MAX_VIRTUALS = 12  # that one class declares; more are several interfaces
MAX_CLOSURE = 56   # headers that come with a door, but for these
MAX_CLOSURE_OF = {"src/engine/engine.h": 25}  # what is installed, and what all apps see
# What ops take changes often, and what a caller can set: few of the files that are compiled may see it.
NARROW = {f"src/backend/params/{name}.h": 0.2 for name in ("attention", "pass", "round", "view")}
NARROW |= {f"src/{folder}/fields.h": 0.1 for folder in FLOOR}
FLAGS = "apps/cli/flags.cc"
# Second meanings of the words of docs/glossary.md: in which files, what nobody says, what is said instead.
WORDS = [(re.compile(files), re.compile(word), instead) for files, word, instead in (
    (r"src/(kv_cache|model(?!/gguf_)|speculative|scheduler|engine|bench|eval)/",
     r"(?i)(?<!rng\.)(?<!format\.)\bk?blocks?(?![a-z])", "page"),
    (r"src/kv_cache/", r"(?i)residual", "ring"),
    (r"src/(backend|sampler|roofline|datasets)/|apps/bench/",
     r"(?<!prefill_)\b[Cc]hunks?\b(?! of (a|the) prompt)|kChunk|Chunk[A-Z]",
     "band (of a kernel) or piece (of a text)"),
    (r"src/backend/cuda/(linear_|decode_linear)", r"(?i)slice", "segment"),
    (r"src/(rivals/gathered_kv|kv_cache/kv_access)", r"kChunk|RetrievalChunk|[Cc]hunks? of 8\b",
     "segment"),
    (r"src/backend/", r"\b(struct|class) Lane\b", "a name that says of what"),
    (r"src/|apps/", r"(?i)gamma", "draft_len"),
)]
CODE = {".h", ".cc", ".cu", ".cuh", ".inc"}
HEADERS = {".h", ".cuh"}
# Literals and comments, so that neither is taken for the other.
TOKEN = re.compile(r"""//.*|'(?:[^'\\]|\\[^']+)'|"(?:[^"\\]|\\.)*\"""")
FLAG = re.compile(r"--[a-z][a-z-]*")
CLASS = re.compile(r"( *)(?:class|struct) (\w+)[^;]*$")
FIELD = re.compile(r"\s*inline constexpr Field (k\w+)\b")
VIRTUAL = re.compile(r"\s*virtual (?!~)")
INCLUDE = re.compile(r'\s*#\s*include\s*[<"]([^>"]+)[>"]')


def folder_of(path):
    """The folder of the house that holds `path`, or None: "src/backend/cpu/x.cc" -> "backend/cpu"."""
    parts = Path(path).parts
    if parts[0] == "src":
        parts = parts[1:]
        if parts[0] == "backend" and len(parts) > 2:
            return "/".join(parts[:2])
        return parts[0] if len(parts) > 1 else None
    if parts[0] == "apps" and len(parts) > 2:
        return "/".join(parts[:2])
    return parts[0] if parts[0] in FLOOR else None


def is_door(header, folder):
    doors = DOORS.get(folder, {f"{folder}/{folder.split('/')[-1]}.h"})
    return doors is None or header in doors or header == f"{folder}/fields.h"


def refusal(path, header, target):
    """Why the file `path` may not include `header` of the folder `target`, or None if it may."""
    own = folder_of(path)
    is_test = path.endswith(("_test.cc", "test_support.h"))
    if target == own or (is_test and target == "tests"):
        return None
    if not is_door(header, target):
        return f"is not a door of {target}/"
    if target in ROOMS - {SHARED_ROOM}:
        if path == NAMES_ROOMS or (is_test and path.startswith("src/backend/")):
            return None
        return f"names a room of the backend; only {NAMES_ROOMS} may"
    if own in ROOMS:
        return None if target in ROOM_SEES else f"{own}/ sees only {names(ROOM_SEES)}"
    if FLOOR[target] >= FLOOR[own]:
        return f"{target}/ is not below {own}/"
    if own in SEES_ONLY and target not in SEES_ONLY[own] and header not in SEEN_BY_ALL:
        return f"{own}/ sees only {names(SEES_ONLY[own]) or '<quantspec/...>'}"
    return None


def names(folders):
    return ", ".join(f"{folder}/" for folder in sorted(folders))


class House:
    """The sources under one root, and the complaints about them."""

    def __init__(self, root):
        self.root = Path(root)
        self.complaints = []
        self.sources = []  # what is compiled
        self.includes = {}  # file -> [(line number, header of ours)]
        self.fields = []  # (file, line number, name) of each Field that is declared

    def check(self):
        for path in self.files():
            text = (self.root / path).read_text(encoding="utf-8")
            self.check_length(path, text)
            if Path(path).suffix in CODE:
                self.check_code(path, text)
            if Path(path).suffix in (".cc", ".cu"):
                self.sources.append(path)
        self.check_rings()
        self.check_closures()
        self.check_readers()
        self.check_fields()
        return sorted(self.complaints)

    def files(self):
        for top in ("src", "apps", "tests", "examples", "tools"):
            for folder, subfolders, files in os.walk(self.root / top):
                subfolders[:] = [name for name in subfolders if name != "testdata"]
                for name in files:
                    path = Path(folder, name).relative_to(self.root)
                    if path.suffix in CODE | {".py", ".sh"}:
                        yield path.as_posix()

    def complain(self, path, line, what):
        self.complaints.append(f"{path}:{line}: {what}")

    def check_length(self, path, text):
        lines = text.count("\n")
        if lines > MAX_LINES:
            self.complain(path, MAX_LINES + 1, f"{lines} lines; no file is longer than {MAX_LINES}")

    def check_code(self, path, text):
        if Path(path).suffix in HEADERS and not re.search(r"^#pragma once$", text, re.MULTILINE):
            self.complain(path, 1, "a header without #pragma once")
        if folder_of(path) not in FLOOR:
            self.complain(path, 1, "lies in a folder without a floor; give it one in check_layers.py")
            return
        for number, line in enumerate(text.splitlines(), 1):
            match = INCLUDE.match(line)
            if match:
                self.check_include(path, number, match.group(1))
                if match.group(1).startswith("boost/") and not path.startswith(SEES_BOOST):
                    self.complain(path, number, f'"{match.group(1)}": only {SEES_BOOST} sees Boost')
            self.check_words(path, number, line)
            if path.startswith("src/") and not path.endswith("_test.cc"):
                self.check_flags(path, number, line)
                match = FIELD.match(line)
                if match:
                    self.fields.append((path, number, match.group(1)))
        self.check_virtuals(path, text)

    def check_virtuals(self, path, text):
        """A class ends at the `};` that is indented as it is, which clang-format sees to."""
        open_classes = []  # [indentation, name, line number, virtual functions]
        for number, line in enumerate(text.splitlines(), 1):
            match = CLASS.match(line.split("//")[0].rstrip())
            if match:
                open_classes.append([match.group(1), match.group(2), number, 0])
            elif open_classes and line == open_classes[-1][0] + "};":
                _, name, first, count = open_classes.pop()
                if count > MAX_VIRTUALS:
                    self.complain(path, first, f"{name} declares {count} virtual functions, and "
                                               f"{MAX_VIRTUALS} are the most; make it several")
            elif open_classes and VIRTUAL.match(line):
                open_classes[-1][3] += 1

    def check_flags(self, path, number, line):
        for literal in TOKEN.findall(line):
            flag = FLAG.search(literal)
            if flag and literal.startswith('"'):
                self.complain(path, number, f"names {flag.group()}; the library names a Field, and "
                                            f"{FLAGS} its flag")

    def check_words(self, path, number, line):
        for files, word, instead in WORDS:
            match = word.search(line) if files.match(path) else None
            if match:
                self.complain(path, number, f"says '{match.group()}'; docs/glossary.md says {instead}")

    def check_fields(self):
        table = self.root / FLAGS
        rows = table.read_text(encoding="utf-8") if table.is_file() else ""
        for path, number, name in self.fields:
            if Path(path).name != "fields.h":
                self.complain(path, number, f"declares a Field, {name}; fields.h of the folder does")
            if not re.search(rf"\bfield::{name}\b", rows):
                self.complain(path, number, f"{name} has no row in {FLAGS}")

    def check_include(self, path, number, header):
        found = self.resolve(path, header)
        if found is None:
            if header.split("/")[0] in {folder.split("/")[0] for folder in FLOOR} and "/" in header:
                self.complain(path, number, f'no such file: "{header}"')
            return
        target = folder_of(found)
        if target not in FLOOR:
            self.complain(path, number, f'"{header}" lies in a folder without a floor')
            return
        why = refusal(path, found.removeprefix("src/"), target)
        if why:
            self.complain(path, number, f'"{header}": {why}')
        self.includes.setdefault(path, []).append((number, found))

    def resolve(self, path, header):
        """`header` relative to the root, found as the compiler does; None when it is not ours."""
        for start in (Path(path).parent, Path("src"), Path(".")):
            candidate = Path(os.path.normpath(start / header))
            if (self.root / candidate).is_file():
                return candidate.as_posix()
        return None

    def closure(self, path):
        """The headers of ours that `path` sees, through others too."""
        seen, queue = set(), [path]
        while queue:
            for _, header in self.includes.get(queue.pop(), []):
                if header not in seen:
                    seen.add(header)
                    queue.append(header)
        return seen

    def check_closures(self):
        for header in self.includes:
            if Path(header).suffix in HEADERS and is_door(header.removeprefix("src/"), folder_of(header)):
                count, most = len(self.closure(header)), MAX_CLOSURE_OF.get(header, MAX_CLOSURE)
                if count > most:
                    self.complain(header, 1, f"brings {count} headers along, and {most} are the most; "
                                             "declare what is only passed on")

    def check_readers(self):
        closures = [self.closure(path) for path in self.sources]
        for header, share in sorted(NARROW.items()):
            readers = sum(header in closure for closure in closures)
            if readers > share * len(closures):
                self.complain(header, 1, f"{readers} of {len(closures)} files see it, more than "
                                         f"{share:.0%}; headers that pass it on declare it")

    def check_rings(self):
        done = set()

        def visit(header, trail):
            for number, other in self.includes.get(header, []):
                if Path(other).suffix not in HEADERS or folder_of(other) != folder_of(header):
                    continue
                if other in trail:
                    ring = trail[trail.index(other):] + [other]
                    self.complain(header, number, "headers include each other: " + " -> ".join(ring))
                elif other not in done:
                    visit(other, trail + [other])
            done.add(header)

        for header in sorted(self.includes):
            if Path(header).suffix in HEADERS and header not in done:
                visit(header, [header])


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    complaints = House(root).check()
    for complaint in complaints:
        print(complaint)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
