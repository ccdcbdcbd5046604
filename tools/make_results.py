#!/usr/bin/env python3
"""Measures, draws and writes down: runs quantspec, keeps its JSON, makes pages of it.

    tools/make_results.py                 on the bundled model and story
    tools/make_results.py --books DIR     what docs/results.md shows: half an hour
    tools/make_results.py --books DIR --wikitext FILE --full    more tables
    tools/make_results.py --gpu DIR --commit COMMIT             keeps what was measured on a GPU
    tools/make_results.py --show MACHINE/COMMIT                 makes the pages of that set
    tools/make_results.py --write         the pages again; --check: are they what it would write?

A set of results is a folder results/MACHINE/COMMIT: the JSON of every run with the command, commit, date
and hardware in it, pictures, and README.md, which has all tables. docs/results.md, docs/results-gpu.md and
what stands in README.md and docs/compare.md between <!-- results:NAME --> and <!-- /results:NAME --> are
made of the sets, one of a CPU and one of a GPU, that results/shown.json names. Nothing else should run
while it measures. What a GPU's set needs is run there by hand: tools/plots/gpu_set.py has the commands.

--books is a folder of .txt books of 40,000 tokens and more, --real one of tools/real_models.sh, whose models
are measured beside llama.cpp; --wikitext is WikiText-2's raw test set. Pictures need python3-matplotlib.
"""

import argparse
import dataclasses
import datetime
import importlib.util
import json
import os
import pathlib
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from plot_results import plot  # noqa: E402
from plots import gpu_page, gpu_set, kernel_tables, pages, ranks_page, reports, streams_page, tables  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
MADE = pathlib.Path("build/results")  # from the root, as the commands show it: what runs make and read
RESULTS = ROOT / "results"
STORY = "prompts/the-lighthouse-clock.txt"
ABLATION = "quantspec,quantspec+w8,weights-only,kv-only"
RIVALS = "streaming,snapkv,retrieval,quantspec+sparse"
LONGEST = 32256  # tokens; with the 512 of a run as many as the bundled model was trained on
PAGE_PLANS = ("kv-only,weights-only,quantspec,quantspec+w8,quantspec+sparse,quantspec+sparse+w8,"
              "snapkv+w8,retrieval+w8,auto")
FIDELITY_PLANS = "kv-only,quantspec+w8,quantspec,quantspec+sparse+w8,streaming,snapkv,retrieval"
PEER_FILES = ("SmolLM2-135M-Instruct.Q4_K_M", "SmolLM2-135M-Instruct.Q8_0",
              "qwen2.5-1.5b-random-Q4_K_M", "qwen2.5-1.5b-random-Q8_0")
SPEED_FIGURES = ("speedup", "ablation", "rounds", "memory", "predicted")
# Its shape, of which the roofline of the paper's figures 2, 5 and 6 is made; no weights are needed.
LLAMA_2_7B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
}


@dataclasses.dataclass(frozen=True)
class Run:
    name: str
    # The last one prints JSON, or writes it to the file OUT; those before make what it reads. The first
    # word is quantspec, another program of its folder, or a tool of this repository.
    commands: tuple
    isa: str = ""  # the instruction set to force


@dataclasses.dataclass(frozen=True)
class Section:
    name: str
    title: str
    table: object  # of plots.tables
    runs: tuple
    figures: tuple


# --- what is measured ----------------------------------------------------------------------------


def run(name, command, *before):
    """Of quantspec."""
    return Run(name, (*before, f"quantspec {command} -o json"))


def section(name, title, table, command, *figures):
    """A section of one run, which has its name."""
    return Section(name, title, table, (run(name, command),), figures)


def roofline_sections():
    return [
        section("roofline-llama", "Roofline: Llama-2-7B on the paper's GPU", tables.roofline,
                f"roofline -m {MADE}/Llama-2-7B --machine a6000", "decode-planes",
                "prefill-planes", "share"),
        section("roofline-this", "Roofline: the bundled model on this machine", tables.roofline,
                "roofline --ctx-size 4096,8192,16384,32768"),
    ]


def kernel_sections():
    """Of kernel_bench, which a build has when it is asked for (make benchmarks)."""
    command = ("kernel_bench --benchmark_format=json --benchmark_repetitions=3 "
               "--benchmark_enable_random_interleaving=true")
    avx2 = f"{command} '--benchmark_filter=read|attention/dram/.*/d128/mha/q[15]/'"
    runs = (Run("kernels", (command, )), Run("kernels-avx2", (avx2, ), isa="avx2"))
    return [Section("kernels", "Kernels", kernel_tables.kernels, runs, ("kernels",))]


def bundled_sections():
    text, recall = f"-d text:{STORY}", f"-d recall:{STORY}"
    fidelity = (
        run("bundled-fidelity", f"eval fidelity {text} --ctx-size 7680 --tokens 512 --prompts 1"),
        run("bundled-recall", f"eval fidelity {recall} --ctx-size 8192 --recall-distance 6000 "
            "--tokens 240 --prompts 1"))
    return [
        section("bundled-speed", "Speed on the bundled story", tables.speed,
                f"bench {text} --ctx-size 2048,4096,8192 --plan {ABLATION},{RIVALS},auto "
                "--temp 1,0", *SPEED_FIGURES),
        section("bundled-draft-length", "Draft lengths on the bundled story", tables.draft_lengths,
                f"bench {text} --ctx-size 8192 --sweep draft-len --repeat 2", "draft-length",
                "positions"),
        section("bundled-budget", "Budgets on the bundled story", tables.budgets,
                f"bench {text} --ctx-size 8192 --sweep budget --draft-len 4 --repeat 2", "budget"),
        section("bundled-perplexity", "Perplexity on the bundled story", tables.perplexity,
                f"eval perplexity {text} --ctx-size 4096 --tokens 8000", "perplexity"),
        section("bundled-axes", "Axes of 4-bit groups on the bundled story", tables.axes,
                f"eval axes {text} --ctx-size 4096 --tokens 8000"),
        Section("bundled-fidelity", "Fidelity on the bundled story", tables.fidelity, fidelity,
                ("acceptance",)),
        section("bundled-lossless", "Losslessness on the bundled story", tables.lossless,
                f"eval lossless {text} --ctx-size 4096 --prompts 1"),
    ]


def page_sections(wikitext, real):
    """What docs/results.md shows."""
    text, recall = "-d text:BOOKS", "-d recall:BOOKS"
    windows = {"": f"{text} --prompts 8"} | ({"-wikitext": "-d wikitext:WIKITEXT"} if wikitext else {})
    perplexity = tuple(run(f"perplexity{name}", f"eval perplexity {flags} --ctx-size 4096 --tokens 16384")
                       for name, flags in windows.items())
    fidelity = (run("fidelity", f"eval fidelity {text} --ctx-size 8192 --prompts 6 --plan {FIDELITY_PLANS}"),
                run("fidelity-recall", f"eval fidelity {recall} --ctx-size 8192 --tokens 240 --prompts 6 "
                    f"--plan {FIDELITY_PLANS}"))
    make_sets = "tools/make_copy_sets.py --books BOOKS --words 8192 -o COPIES"
    copies = {"recall": recall, "prose": text} | {
        name: f"-d tasks:COPIES/{name}.jsonl" for name in ("quotes", "edits", "code")}
    copies = tuple(run(f"copy-{name}", f"bench {flags} --ctx-size 8192 --plan auto+nolookup,auto "
                       "--temp 1,0 --prompts 3 --repeat 2 -n 192",
                       *([make_sets] if "COPIES" in flags else []))
                   for name, flags in copies.items())
    sections = [
        section("speed", "Speed on books", tables.speed,
                f"bench {text} --ctx-size 2048,4096,8192,16384,{LONGEST} --plan {PAGE_PLANS} --temp 1,0 -n 256",
                "speedup", "ablation"),
        Section("copies", "Speed where answers copy", tables.speed, copies, ()),
        Section("fidelity", "Fidelity on books", tables.fidelity, fidelity, ("acceptance",)),
        Section("perplexity", "Perplexity", tables.perplexity, perplexity, ("perplexity",)),
        section("draft-length", "Draft lengths on books", tables.draft_lengths,
                f"bench {text} --ctx-size 8192 --sweep draft-len --temp 1 --repeat 2", "draft-length",
                "positions"),
        section("streams", "Many streams", tables.streams,
                f"bench {text} --ctx-size 4096 --streams 1,2,4,8 -n 128 --plan auto --temp 1,0"),
        section("lossless", "Losslessness on books", tables.lossless,
                f"eval lossless {text} --ctx-size 8192 --prompts 1 --plan "
                "quantspec,snapkv,quantspec+sparse,lookup,auto"),
    ]
    if real:
        runs = tuple(
            Run(f"peers-{name}", (f"tools/peers_cpu.py REAL/{name}.gguf --depths 0,4096 --prompts 512 "
                                  "--rounds 1 -o OUT", )) for name in PEER_FILES)
        sections.append(Section("peers", "Beside llama.cpp", tables.peers, runs, ()))
    return sections


def book_sections(wikitext):
    """More, which its own page shows alone."""
    text, recall, wiki = "-d text:BOOKS", "-d recall:BOOKS", "wikitext:WIKITEXT"
    windows = {"books": f"{text} --prompts 8"} | ({"wikitext": f"-d {wiki}"} if wikitext else {})
    axes = tuple(run(f"{name}-axes", f"eval axes {flags} --ctx-size 4096 --tokens 16384")
                 for name, flags in windows.items())
    drafts = f"--plan kv-only,quantspec+w8,quantspec+w4,{RIVALS}"
    fidelity = (
        run("books-fidelity", f"eval fidelity {text} --ctx-size 4096,8192 --prompts 6 {drafts}"),
        run("books-recall-fidelity", f"eval fidelity {recall} --ctx-size 8192 --tokens 240 "
            f"--prompts 6 {drafts}"))
    rules = "--ctx-size 8192 --prompts 4 --tokens 240 --plan kv-only+sparse,kv-only+bounds"
    selection = tuple(run(f"books-selection-{kind}-{budget}",
                          f"eval fidelity {flags} {rules} --draft-budget {budget}")
                      for kind, flags in (("text", text), ("recall", recall))
                      for budget in (1024, 2048))
    layers, store = MADE / "layers.json", MADE / "gptq.qsd"
    drafted = f"bench {text} --ctx-size 8192 --plan quantspec --draft-len 1,4 --prompts 2"
    weights = (run("books-rtn", drafted),
               run("books-gptq", f"{drafted} --draft-store {store}",
                   f"quantspec prepare --method gptq --calibration {wiki} -o {store}"))
    sections = [
        section("books-all", "All plans on books", tables.speed,
                f"bench {text} --ctx-size 4096,8192,16384,{LONGEST} --plan all --temp 1,0",
                *SPEED_FIGURES),
        section("books-auto", "The plan auto beside the best fixed ones", tables.speed,
                f"bench {text} --ctx-size 4096,8192,16384,{LONGEST} --plan "
                "quantspec,quantspec+sparse,quantspec+sparse+w8,auto --temp 1,0 --repeat 5"),
        section("books-cpu", "The CPU backend against its goals", tables.speed,
                f"bench {text} --ctx-size 2048,8192,{LONGEST} --plan "
                "quantspec,quantspec+w8,quantspec+sparse+w8,auto --temp 1 --prompts 2"),
        section("books-recall", "Speed on recall prompts", tables.speed,
                f"bench {recall} --ctx-size 8192 --plan {ABLATION},{RIVALS},auto "
                "--draft-len 4 --prompts 3 -n 240", "positions"),
        section("books-draft-length", "Draft lengths on books", tables.draft_lengths,
                f"bench {text} --ctx-size 8192 --sweep draft-len --prompts 2", "draft-length",
                "positions"),
        section("books-budget", "Budgets on books", tables.budgets,
                f"bench {text} --ctx-size 8192,{LONGEST} --sweep budget --draft-len 4",
                "budget"),
        Section("axes", "Axes of 4-bit groups", tables.axes, axes, ("axes",)),
        Section("books-fidelity", "Fidelity on books", tables.fidelity, fidelity, ("acceptance",)),
        Section("books-selection", "Which pages a sparse draft reads", tables.fidelity, selection,
                ()),
        section("books-sensitivity", "Sensitivity of layers", tables.sensitivity,
                f"eval sensitivity {text} --ctx-size 8192 --prompts 3 --tokens 256 "
                f"--plan-file {layers}", "layers"),
        section("books-plan", "The plan chosen layer by layer, run", tables.speed,
                f"bench {text} --ctx-size 8192 --plan quantspec,plan:{layers} --draft-len 1,4,auto "
                "--prompts 2"),
        section("books-lossless", "Losslessness on books", tables.lossless,
                f"eval lossless {text} --ctx-size 8192 --prompts 2 --plan quantspec,{RIVALS},auto"),
    ]
    sections.append(gptq_section())
    if wikitext:
        sections.append(Section("books-gptq", "Draft weights by rounding and by GPTQ",
                                tables.draft_lengths, weights, ()))
    return sections


def gptq_section():
    """Draft weights made on half of the books, measured on the other half."""
    measured = "eval fidelity -d text:HELD_OUT --ctx-size 4096 --prompts 6 --plan quantspec,weights-only"
    runs = [run("gptq-loading", measured)]
    for method, text in (("rtn", ""), ("gptq", "--calibration text:CALIBRATION --tokens 65536 ")):
        for group in (128, 64):
            name = f"{method}-g{group}"
            store = MADE / f"{name}.qsd"
            runs.append(run(f"gptq-{name}", f"{measured} --draft-store {store}",
                            f"quantspec prepare --method {method} --group {group} {text}-o {store}"))
    return Section("gptq", "Draft weights by rounding and by GPTQ, on held-out books",
                   tables.draft_weights, tuple(runs), ())


# --- running -------------------------------------------------------------------------------------


def hardware():
    names = [
        line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line[:10] == "model name"
    ]
    return f"{names[0] if names else platform.processor()}, {len(os.sched_getaffinity(0))} cores"


def machine_of(hardware):
    """A folder's name: "AMD EPYC, 2 cores" -> "amd-epyc-2"."""
    words = re.sub(r"\([^)]*\)|@.*,|Processor|CPU|cores", " ", hardware).lower()
    return re.sub(r"[^a-z0-9.]+", "-", words).strip("-")


def commit_of(program):
    """What it was built from, as its reports say."""
    least = f"bench -m models/pg-24m -d text:{STORY} -c 64 -n 1 --warm-up 0 --repeat 1 --plan lookup -o json -q"
    done = subprocess.run([program, *least.split()], cwd=ROOT, stdout=subprocess.PIPE)
    if done.returncode != 0:
        sys.exit(f"make_results: {program} cannot be run")
    head, dash, dirty = json.loads(done.stdout)["meta"]["commit"].partition("-")
    return head[:7] + dash + dirty


def shown(run, command):
    """The command as a reader would type it."""
    return f"QUANTSPEC_ISA={run.isa} {command}" if run.isa else command


class Runner:
    """Runs what sections name. Reports go to the set of results of the program's commit."""

    def __init__(self, program, texts, machine):
        self.program, self.texts = program, texts
        self.commit = commit_of(program)
        self.folder = RESULTS / machine / self.commit
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.commit.endswith("-dirty"):
            print(f"make_results: {program} has changes that are in no commit: no page will show this",
                  file=sys.stderr)
        made = ROOT / MADE
        made.mkdir(parents=True, exist_ok=True)
        llama = made / "Llama-2-7B"
        llama.mkdir(exist_ok=True)
        (llama / "config.json").write_text(json.dumps(LLAMA_2_7B))
        self.texts |= {"COPIES": made / "copies", "OUT": made / "out.json"}

    def split_books(self, folder):
        """CALIBRATION and HELD_OUT: the first and the second half of the books, by name."""
        files = sorted(folder.resolve().glob("*.txt"))
        halves = {"CALIBRATION": files[:len(files) // 2], "HELD_OUT": files[len(files) // 2:]}
        for name, half in halves.items():
            links = ROOT / MADE / name.lower()
            shutil.rmtree(links, ignore_errors=True)
            links.mkdir()
            for file in half:
                (links / file.name).symlink_to(file)
            self.texts[name] = links

    def execute(self, run, command):
        """What it prints; paths are put where the command has their names."""
        words = shlex.split(command)
        for name, path in self.texts.items():
            words = [re.sub(rf"(?<![\w-]){name}(?!\w)", str(path), word) for word in words]
        program = self.program if words[0] == "quantspec" else self.program.parent / words[0]
        if words[0].startswith("tools/"):
            words.insert(0, sys.executable)
            program = sys.executable
            if "peers" in words[1]:
                words += ["--quantspec", str(self.program)]
        elif not program.exists():
            raise RuntimeError(f"{program} is not built: make benchmarks")
        forced = {"QUANTSPEC_ISA": run.isa} if run.isa else {}
        done = subprocess.run([program, *words[1:]], cwd=ROOT, stdout=subprocess.PIPE, text=True,
                              env=os.environ | forced)
        found_difference = done.returncode == 1 and command.startswith("quantspec eval lossless")
        if done.returncode != 0 and not found_difference:  # a difference is a finding
            raise RuntimeError(f"{shown(run, command)}\nended with {done.returncode}")
        return pathlib.Path(self.texts["OUT"]).read_text() if " OUT" in command else done.stdout

    def measure(self, run):
        started = time.monotonic()
        at = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        printed = [self.execute(run, command) for command in run.commands][-1]
        for name, path in self.texts.items():  # paths are of this machine alone
            printed = printed.replace(str(path), name)
        data = json.loads(printed)
        data["run"] = {
            "commands": [shown(run, command) for command in run.commands],
            "date": at,
            "commit": self.commit,
            "hardware": hardware()
        }
        (self.folder / f"{run.name}.json").write_text(json.dumps(data) + "\n")
        print(f"{run.name}: {time.monotonic() - started:.0f} s", flush=True)


# --- writing -------------------------------------------------------------------------------------


def section_text(section, measured, pictures):
    """Commands, table and pictures. pictures: {path from the document: what it shows}."""
    commands = dict.fromkeys(command for one in measured for command in one.run["commands"])
    text = "".join(f"    {command}\n" for command in commands) + "\n"
    text += section.table(measured)
    if pictures:
        text += "\n" + "\n".join(f'<img src="{path}" width="49%" alt="{what}">'
                                 for path, what in pictures.items()) + "\n"
    return text


def fill(document, name, title, content):
    """The document with the section's content between its marks."""
    begin, end = f"<!-- results:{name} -->", f"<!-- /results:{name} -->"
    between = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    block = f"{begin}\n{content}{end}"
    if between.search(document):
        return between.sub(lambda _: block, document)
    return f"{document.rstrip()}\n\n## {title}\n\n{block}\n"


def results_of(results):
    """(section, its reports) of all that the set has."""
    for section in all_sections():
        files = [results.folder / f"{run.name}.json" for run in section.runs]
        measured = [results.report(file.stem) for file in files if file.exists()]
        if measured:
            yield section, measured


def set_page(results, drawn):
    """README.md of a set: the tables of all sections whose runs it has. drawn: {section: pictures}."""
    hardware, commit, date = results.about()
    parts = [f"# Results at {commit}\n\n{hardware}, {date}. Made by `tools/make_results.py` from the JSON "
             "beside it. BOOKS is a folder of public-domain books that the bundled model never saw, COPIES\n"
             "what `tools/make_copy_sets.py` makes of them, REAL the folder of `tools/real_models.sh`.\n"]
    for section, measured in results_of(results):
        pictures = drawn.get(section.name, {})
        parts.append(f"## {section.title}\n\n{section_text(section, measured, pictures)}")
    return "\n".join(parts)


def pictures_of(results):
    """{section: {file: what it shows}}, as draw() left it: that needs matplotlib, and pages do not."""
    kept = results.folder / "img/index.json"
    return json.loads(kept.read_text()) if kept.exists() else {}


def draw(results):
    index = {}
    for section, measured in results_of(results):
        drawn, missing = plot(measured, results.folder / "img", wanted=section.figures)
        for name, data in missing.items():
            print(f"{section.name}: no picture {name}: needs {data}", file=sys.stderr)
        if drawn:
            index[section.name] = {f"img/{path.name}": what for path, what in drawn.items()}
    (results.folder / "img/index.json").write_text(json.dumps(index, indent=1) + "\n")


def written(root=ROOT, show=None):
    """{file: what it should have}, of all that is made of results that are kept. show: the set that pages
    show, if it is not one of shown.json."""
    files = {}
    for page in sorted((root / "results").glob("*/*/README.md")):  # without it a run goes on, or was stopped
        if gpu_set.is_gpu(page.parent):
            results = gpu_set.GpuSet(page.parent)
            if results.is_of_a_commit():
                files[page] = gpu_page.set_page(results)
            continue
        results = pages.Set(page.parent)
        if results.is_of_a_commit() and results.all():
            files[page] = set_page(results, pictures_of(results))
    shown = root / "results/shown.json"
    names = json.loads(shown.read_text())
    if show:
        names["gpu" if gpu_set.is_gpu(root / "results" / show) else "cpu"] = show
    files[shown] = json.dumps(names) + "\n"
    cpu, gpu = pages.Set(root / "results" / names["cpu"]), gpu_set.GpuSet(root / "results" / names["gpu"])
    files[root / "docs/results.md"] = pages.cpu_page(cpu)
    ranks = root / "results/ranks"
    if ranks.exists():
        files[ranks / "README.md"] = ranks_page.page(ranks)
    streams = root / "results/streams"
    if streams.exists():
        files[streams / "README.md"] = streams_page.page(streams)
    files[root / "docs/results-gpu.md"] = gpu_page.page(gpu, ranks_page.section(ranks) if ranks.exists() else "")
    blocks = {"README.md": pages.readme_blocks(cpu) | gpu_page.readme_blocks(gpu),
              "docs/compare.md": gpu_page.compare_blocks(gpu)}
    for name, contents in blocks.items():
        text = (root / name).read_text()
        for mark, content in contents.items():
            if f"<!-- results:{mark} -->" not in text:
                raise ValueError(f"{name} has no <!-- results:{mark} -->")
            text = fill(text, mark, "", content)
        files[root / name] = text
    return files


def write_pages(show):
    for file, text in written(show=show).items():
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
            print(file.relative_to(ROOT))


def check_pages():
    wrong = [file for file, text in written().items() if not file.exists() or file.read_text() != text]
    if wrong:
        names = ", ".join(str(file.relative_to(ROOT)) for file in wrong)
        sys.exit(f"make_results: not what the kept results say: {names}; tools/make_results.py --write")


# --- command line --------------------------------------------------------------------------------


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quantspec", default=ROOT / "build/quantspec", type=pathlib.Path)
    parser.add_argument("--books", type=pathlib.Path, metavar="DIR",
                        help="folder of .txt files that the model never saw")
    parser.add_argument("--wikitext", type=pathlib.Path, metavar="FILE",
                        help="WikiText-2's raw test set")
    parser.add_argument("--real", type=pathlib.Path, metavar="DIR",
                        help="models and llama.cpp of tools/real_models.sh, to compare with")
    parser.add_argument("--full", action="store_true", help="more tables of --books")
    parser.add_argument("--machine", metavar="NAME", help="folder below results/ (default: by processor)")
    parser.add_argument("--only", metavar="LIST", help="these sections, with commas between")
    parser.add_argument("--gpu", type=pathlib.Path, metavar="DIR",
                        help="keep the JSON that was made on a GPU, as a set of --commit, and draw it")
    parser.add_argument("--commit", help="what the programs of --gpu were built from")
    parser.add_argument("--show", metavar="MACHINE/COMMIT", help="the pages show this set; --write")
    parser.add_argument("--write", action="store_true", help="make the pages of what is kept")
    parser.add_argument("--check", action="store_true", help="fail where --write would change a page")
    args = parser.parse_args()
    for option in ("wikitext", "full", "real"):
        if getattr(args, option) and not args.books:
            parser.error(f"--{option} needs --books DIR")
    if bool(args.gpu) != bool(args.commit):
        parser.error("--gpu DIR and --commit COMMIT need each other")
    return args


def all_sections():
    return (page_sections(True, True) + bundled_sections() + book_sections(True) +
            roofline_sections() + kernel_sections())


def chosen(args):
    sections = page_sections(args.wikitext, args.real) if args.books else (
        bundled_sections() + roofline_sections() + kernel_sections())
    if args.full:
        sections += book_sections(args.wikitext) + roofline_sections() + kernel_sections()
    if args.only is None:
        return sections
    known = {section.name: section for section in sections}
    unknown = [name for name in args.only.split(",") if name not in known]
    if unknown:
        sys.exit(f"make_results: --only {unknown[0]}: must be of {', '.join(known)}")
    return [known[name] for name in args.only.split(",")]


def measure(args):
    """The sections that failed, and the set."""
    sections = chosen(args)
    texts = {"BOOKS": args.books, "WIKITEXT": args.wikitext, "REAL": args.real}
    texts = {name: path.resolve() for name, path in texts.items() if path}
    runner = Runner(args.quantspec.resolve(), texts, args.machine or machine_of(hardware()))
    if args.books:
        runner.split_books(args.books)
    failed = []
    for section in sections:
        try:
            for run in section.runs:
                runner.measure(run)
        except (RuntimeError, ValueError, OSError) as error:  # the others are worth having
            print(f"make_results: {section.name}: {error}", file=sys.stderr)
            failed.append(section.name)
    results = pages.Set(runner.folder)
    if results.all():
        draw(results)
        (runner.folder / "README.md").write_text(set_page(results, pictures_of(results)))
        print(f"{(runner.folder / 'README.md').relative_to(ROOT)}")
    if failed:
        sys.exit(f"make_results: failed: {', '.join(failed)}")


def keep_gpu(args):
    folder = gpu_set.keep(args.gpu, args.commit, RESULTS)
    readme = folder / "README.md"
    try:
        results = gpu_set.GpuSet(folder)
        readme.write_text(gpu_page.set_page(results))
        gpu_page.draw(results)
        gpu_page.page(results)  # which shows the pictures
    except (LookupError, StopIteration, TypeError, ValueError) as error:
        shutil.rmtree(folder)
        raise reports.Unusable(f"{args.gpu}: its files lack something that the pages need: "
                               f"{type(error).__name__} {error}") from error
    print(readme.relative_to(ROOT))


def main():
    args = arguments()
    try:
        if args.check:
            return check_pages()
        if args.show:
            if not (RESULTS / args.show).is_dir():
                sys.exit(f"make_results: --show {args.show}: there is no results/{args.show}")
        if args.show or args.write:
            return write_pages(args.show)
    except (ValueError, OSError, reports.Unusable) as error:
        sys.exit(f"make_results: {error}")
    if importlib.util.find_spec("matplotlib") is None:
        sys.exit(
            "make_results: needs matplotlib: tools/install_deps.sh plots, or pip install matplotlib")
    try:
        return keep_gpu(args) if args.gpu else measure(args)
    except (ValueError, OSError, reports.Unusable) as error:
        sys.exit(f"make_results: {error}")


if __name__ == "__main__":
    main()
