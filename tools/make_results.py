#!/usr/bin/env python3
"""Measures, draws and writes down: runs quantspec, keeps its JSON, fills docs/results.md.

    tools/make_results.py                       on the bundled model and story: some ten minutes
    tools/make_results.py --books DIR --wikitext FILE --full            an hour: see below
    tools/make_results.py --keep                tables and pictures of what was measured before

A section is a few runs, a table and pictures. Its JSON goes to build/results/RUN.json, with the
command, commit, date and hardware; its pictures to docs/img/; and its table into docs/results.md,
between <!-- results:SECTION --> and <!-- /results:SECTION -->. Text outside such marks is not
touched; a section that has no marks yet goes to the end. Nothing else should run meanwhile.

--full needs a folder of .txt books of 40,000 tokens and more, and adds what is measured on them:
contexts to 32k, every plan, greedy and at temperature 1, recall, sensitivity, draft weights that
were calibrated on half of the books; on WikiText-2's test set perplexity, and draft weights that
were calibrated on it. Pictures need python3-matplotlib.
"""

import argparse
import dataclasses
import datetime
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
from plots import kernel_tables, reports, tables  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
KEPT = pathlib.Path("build/results")  # from the root, as the commands show it
STORY = "prompts/the-lighthouse-clock.txt"
ABLATION = "quantspec,quantspec+w8,weights-only,kv-only"
RIVALS = "streaming,snapkv,retrieval,quantspec+sparse"
LONGEST = 32256  # tokens; with the 512 of a run as many as the bundled model was trained on
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
    command: str  # after "quantspec"; prints JSON
    before: str = ""  # a command whose output file it reads
    program: str = "quantspec"  # or another one of its folder
    isa: str = ""  # the instruction set to force


@dataclasses.dataclass(frozen=True)
class Section:
    name: str
    title: str
    table: object  # of plots.tables
    runs: tuple
    figures: tuple


# --- what is measured ----------------------------------------------------------------------------


def run(name, command, before=""):
    return Run(name, f"{command} -o json", before)


def section(name, title, table, command, *figures):
    """A section of one run, which has its name."""
    return Section(name, title, table, (run(name, command),), figures)


def roofline_sections():
    return [
        section("roofline-llama", "Roofline: Llama-2-7B on the paper's GPU", tables.roofline,
                f"roofline -m {KEPT}/Llama-2-7B --machine a6000", "decode-planes",
                "prefill-planes", "share"),
        section("roofline-this", "Roofline: the bundled model on this machine", tables.roofline,
                "roofline --ctx-size 4096,8192,16384,32768"),
    ]


def kernel_sections():
    """Of kernel_bench, which a build has when it is asked for (make benchmarks)."""
    command = ("--benchmark_format=json --benchmark_repetitions=3 "
               "--benchmark_enable_random_interleaving=true")
    avx2 = f"{command} '--benchmark_filter=read|attention/dram/.*/d128/mha/q[15]/'"
    runs = (Run("kernels", command, program="kernel_bench"),
            Run("kernels-avx2", avx2, program="kernel_bench", isa="avx2"))
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


def book_sections(wikitext):
    text, recall, wiki = "-d text:BOOKS", "-d recall:BOOKS", "wikitext:WIKITEXT"
    windows = {"books": f"{text} --prompts 8"} | ({"wikitext": f"-d {wiki}"} if wikitext else {})
    perplexity, axes = (
        tuple(run(f"{name}-{what}", f"eval {what} {flags} --ctx-size 4096 --tokens 16384")
              for name, flags in windows.items()) for what in ("perplexity", "axes"))
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
    layers, store = KEPT / "layers.json", KEPT / "gptq.qsd"
    drafted = f"bench {text} --ctx-size 8192 --plan quantspec --draft-len 1,4 --prompts 2"
    weights = (run("books-rtn", drafted),
               run("books-gptq", f"{drafted} --draft-store {store}",
                   f"prepare --method gptq --calibration {wiki} -o {store}"))
    sections = [
        section("books-speed", "Speed on books", tables.speed,
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
        Section("perplexity", "Perplexity", tables.perplexity, perplexity, ("perplexity",)),
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
            store = KEPT / f"{name}.qsd"
            runs.append(run(f"gptq-{name}", f"{measured} --draft-store {store}",
                            f"prepare --method {method} --group {group} {text}-o {store}"))
    return Section("gptq", "Draft weights by rounding and by GPTQ, on held-out books",
                   tables.draft_weights, tuple(runs), ())


# --- running -------------------------------------------------------------------------------------


def hardware():
    names = [
        line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line[:10] == "model name"
    ]
    return f"{names[0] if names else platform.processor()}, {len(os.sched_getaffinity(0))} cores"


def commit():
    """As git describe --dirty, but for the files that this program writes. For reports that do not
    say themselves of which commit the program is."""
    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True,
                              text=True).stdout.strip()

    written = ":!docs/results.md", ":!docs/img"
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", *written)
    return (git("rev-parse", "--short=12", "HEAD") or "no commit") + ("-dirty" if changed else "")


def commit_of(report):
    said = report.get("meta", {}).get("commit")
    return said if said and said != "unknown" else commit()


def shown(run, command):
    """The command as a reader would type it."""
    forced = f"QUANTSPEC_ISA={run.isa} " if run.isa else ""
    return f"{forced}{run.program} {command}"


class Runner:
    def __init__(self, program, texts):
        self.program, self.texts = program, texts
        self.kept = ROOT / KEPT
        self.kept.mkdir(parents=True, exist_ok=True)
        llama = self.kept / "Llama-2-7B"
        llama.mkdir(exist_ok=True)
        (llama / "config.json").write_text(json.dumps(LLAMA_2_7B))

    def split_books(self, folder):
        """CALIBRATION and HELD_OUT: the first and the second half of the books, by name."""
        files = sorted(folder.resolve().glob("*.txt"))
        halves = {"CALIBRATION": files[:len(files) // 2], "HELD_OUT": files[len(files) // 2:]}
        for name, half in halves.items():
            links = self.kept / name.lower()
            shutil.rmtree(links, ignore_errors=True)
            links.mkdir()
            for file in half:
                (links / file.name).symlink_to(file)
            self.texts[name] = links

    def path(self, run):
        return self.kept / f"{run.name}.json"

    def execute(self, run, command):
        """Standard output; paths of texts are put where the command has their names."""
        words = shlex.split(command)
        for name, path in self.texts.items():
            words = [word.replace(f":{name}", f":{path}") for word in words]
        program = self.program if run.program == "quantspec" else self.program.parent / run.program
        if not program.exists():
            raise RuntimeError(f"{program} is not built: make benchmarks")
        forced = {"QUANTSPEC_ISA": run.isa} if run.isa else {}
        done = subprocess.run([program, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True,
                              env=os.environ | forced)
        found_difference = done.returncode == 1 and command.startswith("eval lossless")
        if done.returncode != 0 and not found_difference:  # a difference is a finding
            raise RuntimeError(f"{shown(run, command)}\nended with {done.returncode}")
        return done.stdout

    def measure(self, run):
        started = time.monotonic()
        at = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        commands = [command for command in (run.before, run.command) if command]
        data = json.loads([self.execute(run, command) for command in commands][-1])
        data["run"] = {
            "commands": [shown(run, command) for command in commands],
            "date": at,
            "commit": commit_of(data),
            "hardware": hardware()
        }
        self.path(run).write_text(json.dumps(data))
        print(f"{run.name}: {time.monotonic() - started:.0f} s", flush=True)


# --- writing -------------------------------------------------------------------------------------


def section_text(section, measured, pictures):
    """What stands between the marks. pictures: {path from the document: what it shows}."""
    facts = {(run["commit"], run["hardware"], run["date"]) for run in (one.run for one in measured)}
    commands = [command for one in measured for command in one.run["commands"]]
    text = "".join(f"    {command}\n" for command in commands)
    text += "\n" + "; ".join("Commit {}, {}, {}".format(*fact) for fact in sorted(facts)) + ".\n\n"
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


def write(section, runner, docs):
    measured = [reports.load(runner.path(run)) for run in section.runs]
    drawn, missing = plot(measured, docs / "img", wanted=section.figures)
    for name, data in missing.items():
        print(f"{section.name}: no picture {name}: needs {data}", file=sys.stderr)
    pictures = {f"img/{path.name}": what for path, what in drawn.items()}
    page = docs / "results.md"
    old = page.read_text() if page.exists() else "# Results\n"
    page.write_text(
        fill(old, section.name, section.title, section_text(section, measured, pictures)))


# --- command line --------------------------------------------------------------------------------


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quantspec", default=ROOT / "build/quantspec", type=pathlib.Path)
    parser.add_argument("--books", type=pathlib.Path,
                        help="folder of .txt files that the model never saw")
    parser.add_argument("--wikitext", type=pathlib.Path, help="WikiText-2's raw test set")
    parser.add_argument("--full", action="store_true",
                        help="measure on --books and --wikitext: an hour")
    parser.add_argument("--only", help="these sections, with commas between")
    parser.add_argument("--keep", action="store_true", help="run only what has no JSON yet")
    parser.add_argument("--docs", type=pathlib.Path, default=ROOT / "docs",
                        help="where results.md is")
    args = parser.parse_args()
    if args.full and not args.books:
        parser.error("--full needs --books DIR")
    if (args.books or args.wikitext) and not args.full:
        parser.error("--books and --wikitext are read with --full only")
    return args


def chosen(args):
    sections = roofline_sections() + kernel_sections()
    sections += book_sections(args.wikitext) if args.full else bundled_sections()
    if args.only is None:
        return sections
    known = {section.name: section for section in sections}
    unknown = [name for name in args.only.split(",") if name not in known]
    if unknown:
        sys.exit(f"make_results: --only {unknown[0]}: must be of {', '.join(known)}")
    return [known[name] for name in args.only.split(",")]


def main():
    args = arguments()
    sections = chosen(args)
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        sys.exit(
            "make_results: needs matplotlib: tools/install_deps.sh plots, or pip install matplotlib"
        )
    texts = {"BOOKS": args.books, "WIKITEXT": args.wikitext}
    runner = Runner(args.quantspec.resolve(), {
        name: path.resolve()
        for name, path in texts.items() if path
    })
    if args.books:
        runner.split_books(args.books)
    failed = []
    for section in sections:
        try:
            for run in section.runs:
                if not (args.keep and runner.path(run).exists()):
                    runner.measure(run)
            write(section, runner, args.docs)
        except (RuntimeError, ValueError) as error:  # the others are worth having
            print(f"make_results: {section.name}: {error}", file=sys.stderr)
            failed.append(section.name)
    sys.exit(f"make_results: failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
