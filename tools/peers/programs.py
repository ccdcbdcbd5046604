"""Finding and running the programs that are compared."""

import json
import os
import platform
import re
import shlex
import struct
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
KINDS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def fail(text):
    sys.exit(f"{Path(sys.argv[0]).stem}: {text}")


def physical_cores():
    """Distinct pairs of package and core."""
    pairs = set()
    for cpu in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology"):
        try:
            pairs.add(tuple((cpu / f"{name}_id").read_text() for name in ("physical_package", "core")))
        except OSError:
            pass
    return len(pairs) or os.cpu_count() or 1


def processor():
    names = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return names[0] if names else platform.machine()


def instructions():
    """What of this matters for these programs."""
    flags = Path("/proc/cpuinfo").read_text().split()
    wanted = ["avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "asimddp", "i8mm"]
    return [flag for flag in wanted if flag in flags]


class Gguf:
    """What a GGUF file says of itself; of lists, how long they are."""

    def __init__(self, path):
        self.path = Path(path)
        self.values = {}
        try:
            with open(path, "rb") as self.file:
                if self.file.read(4) != b"GGUF":
                    fail(f"{path} is no GGUF file")
                self.read("I")  # version
                self.read("Q")  # tensors
                for _ in range(self.read("Q")):
                    key = self.text()
                    self.values[key] = self.value(self.read("I"))
        except OSError as error:
            fail(f"{path}: {error.strerror}; tools/real_models.sh makes such files")
        except (struct.error, KeyError, UnicodeDecodeError) as error:
            fail(f"{path} is damaged: {error!r}")

    def read(self, kind):
        return struct.unpack("<" + kind, self.file.read(struct.calcsize(kind)))[0]

    def text(self):
        return self.file.read(self.read("Q")).decode()

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind != 9:
            return self.read(KINDS[kind])
        kind, count = self.read("I"), self.read("Q")
        if kind == 8:
            for _ in range(count):
                self.file.seek(self.read("Q"), 1)
        else:
            self.file.seek(count * struct.calcsize(KINDS[kind]), 1)
        return count

    def of_architecture(self, key, default=None):
        return self.values.get(f"{self.values.get('general.architecture')}.{key}", default)


class Programs:
    """llama.cpp's and ours; complains of what is missing when it is asked for."""

    def __init__(self, args):
        self.llama, self.ours = Path(args.llama), Path(args.quantspec)
        self.verbose = args.verbose

    def path_of(self, name):
        if name == "quantspec":
            if not os.access(self.ours, os.X_OK):
                fail(f"there is no program {self.ours}; make build, or name it with --quantspec")
            return self.ours
        path = self.llama / name
        if not os.access(path, os.X_OK):
            fail(f"there is no {name} in {self.llama}; tools/real_models.sh builds it, --llama names it")
        return path

    def command(self, name, options):
        command = [str(self.path_of(name)), *map(str, options)]
        if self.verbose:
            print("$", shlex.join(command), file=sys.stderr)
        return command

    def run(self, name, *options):
        """What it prints; what it says on standard error only where it fails."""
        done = subprocess.run(self.command(name, options), capture_output=True)
        out, errors = (stream.decode(errors="replace") for stream in (done.stdout, done.stderr))
        if done.returncode != 0:
            end = "\n".join((errors or out).strip().splitlines()[-12:])
            fail(f"{name} ended with {done.returncode}:\n  {shlex.join(done.args)}\n{end}")
        return out

    def json(self, name, *options):
        out = self.run(name, *options)
        try:
            return json.loads(out)
        except json.JSONDecodeError as error:
            fail(f"{name} printed no JSON ({error}): {out[:200]!r}")

    def llama_version(self):
        done = subprocess.run(self.command("llama-bench", ["--version"]), capture_output=True)
        said = (done.stdout + done.stderr).decode(errors="replace")
        build = re.search(r"build:? (\d+)|version: (\d+) ", said)
        return f"b{build[1] or build[2]}" if build else "of an unknown version"


def checkout():
    """This checkout's commit."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True)
    return done.stdout.decode().strip() or "unknown"


def note(text):
    """Progress, on standard error."""
    print(text, file=sys.stderr, flush=True)


def load_average():
    return os.getloadavg()[0]


def shown_rows(rows):
    """A Markdown table; all but the first column right-aligned."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))]
        lines.append("| " + " | ".join(cells) + " |")
    marks = ["-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(widths)]
    lines.insert(1, "|" + "|".join(marks) + "|")
    return "\n".join(lines)


def median(values):
    values = sorted(values)
    middle = len(values) // 2
    return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2
