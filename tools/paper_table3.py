#!/usr/bin/env python3
"""Measures the rows of Table 3 of arXiv:2502.10424 on this machine.

    tools/paper_table3.py --models DIR --pg19 FILE --infinitebench FILE \\
        --multilexsum FILE         the paper's models, as far as DIR has them
    tools/paper_table3.py --model models/pg-24m --pg19 FILE -c 2048 --quick

One run of quantspec bench gives the three rows of a setting: a model, a
dataset and a context. Its JSON goes to the folder --out, with table3.json,
which has all rows, and table3.md, which is printed too. What cannot be run is
left out, with the reason. docs/paper.md says what differs from the paper, and
docs/datasets.md where to get the files. Nothing else should run meanwhile.
Needs the standard library only.
"""

import argparse
import dataclasses
import datetime
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
METHODS = {"StreamingLLM": "streaming", "SnapKV": "snapkv", "QuantSpec": "quantspec"}  # its plans
DATASETS = {"pg19": "PG19", "infinitebench": "∞BENCH Sum", "multilexsum": "Multi-LexSum"}
# Tokens: 8192 as Appendix G says, those from 16k on as the published scripts have them.
LENGTHS = {"4k": 4096, "8k": 8192, "16k": 16000, "32k": 32000, "64k": 64000, "128k": 128000}
DRAFT_LENS = {"pg19": 2, "infinitebench": 4, "multilexsum": 6}  # of QuantSpec: Tables 3 and 6
RIVAL_DRAFT_LEN = 1  # Table 6: their best
DEPTH = 4  # folders below --models; Hugging Face's cache has its models three below
OOM = (None, None, None)


@dataclasses.dataclass(frozen=True)
class Setting:
    dataset: str
    length: str
    paper: tuple  # for each method acceptance in percent, GB, speed-up; None: out of memory


# Table 3, by the model's name on Hugging Face, as the published scripts have it.
PAPER = {
    "togethercomputer/Llama-2-7B-32K-Instruct":
        (Setting("pg19", "4k", ((88.87, 15.20, 1.13), (93.59, 15.39, 1.17), (92.46, 16.26, 1.35))),
         Setting("pg19", "8k", ((90.31, 17.75, 1.27), (94.39, 18.10, 1.31), (89.88, 17.66, 1.44))),
         Setting("multilexsum", "8k",
                 ((90.78, 17.75, 1.27), (55.55, 18.10, 1.01), (91.23, 17.66, 1.61))),
         Setting("multilexsum", "32k",
                 ((91.19, 32.61, 1.84), (72.54, 33.96, 1.63), (91.16, 25.84, 2.08)))),
    "LargeWorldModel/LWM-Text-Chat-128K":
        (Setting("infinitebench", "16k",
                 ((87.41, 22.63, 1.49), (88.61, 23.33, 1.50), (91.64, 20.36, 1.78))),
         Setting("infinitebench", "32k",
                 ((85.38, 32.63, 1.15), (84.55, 33.98, 1.78), (90.99, 25.86, 1.99))),
         Setting("multilexsum", "64k",
                 ((78.95, 52.96, 2.16), (82.79, 55.66, 2.11), (92.18, 38.18, 2.23))),
         Setting("multilexsum", "128k", (OOM, OOM, (94.31, 61.22, 2.49)))),
}


@dataclasses.dataclass
class Model:
    name: str
    path: Path = None
    known: str = ""  # which of the paper's it is
    problem: str = ""  # why none of it is run
    positions: int = 0


@dataclasses.dataclass
class Run:
    model: Model
    dataset: str
    context: int
    paper: tuple = ()
    command: tuple = ()
    problem: str = ""
    failed: bool = False  # a problem that is not of what was asked for
    report: dict = None

    def title(self):
        return f"{self.model.name}, {self.dataset}, {self.context} tokens"

    def file(self):
        return re.sub(r"[^\w.-]", "-", f"{self.model.name}.{self.dataset}.{self.context}.json")


# --- what is there -------------------------------------------------------------------------------


def name_of(path):
    """Of a file or folder, or of the model whose snapshot of Hugging Face's cache it is."""
    cached = [part for part in path.resolve().parts if part.startswith("models--")]
    if cached and path.is_dir():
        return cached[-1].split("--")[-1]
    return path.stem if path.suffix == ".gguf" else path.resolve().name


def paper_name(name):
    """The paper's model that has this name, with anything behind it; "" if it is another one."""
    for known in PAPER:
        short = known.split("/")[1].lower()
        if re.fullmatch(re.escape(short) + r"([^a-z0-9].*)?", name.lower()):
            return known
    return ""


def candidates(folder, known):
    """Folders below `folder` that have this name; GGUF files only where there are none."""
    short, folders, files = known.split("/")[1].lower(), [], []
    for place, below, names in os.walk(folder, followlinks=True):
        parts = Path(place).relative_to(folder).parts
        if any(part.lower().split("--")[-1] == short for part in parts) and "config.json" in names:
            folders.append(Path(place))
        files += [Path(place, name) for name in names
                  if name.endswith(".gguf") and paper_name(name[:-5]) == known]
        below[:] = sorted(below) if len(parts) < DEPTH else []
    return folders or sorted(files)


def in_folder(folder, known):
    name, found = known.split("/")[1], candidates(folder, known)
    if len(found) == 1:
        return Model(name, found[0], known)
    several = "; ".join(str(path) for path in found)
    why = f"several: {several}; take one by --model" if found else f"{folder} has no {known}"
    return Model(name, None, known, why)


def models(args):
    found = [Model(name_of(path), path, paper_name(name_of(path))) for path in args.model]
    names = [model.name for model in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        sys.exit(f"paper_table3: two models are called {twice}; run one after the other")
    if args.models:
        missing = [known for known in PAPER if known not in [model.known for model in found]]
        found = [in_folder(args.models, known) for known in missing] + found
    for model in found:
        if not model.problem:
            look_at(model, args)
            if model.problem and model.path in args.model:
                sys.exit(f"paper_table3: --model {model.path}: {model.problem}")
    return found


def look_at(model, args):
    done = subprocess.run([args.quantspec, "info", "--json", "-m", model.path],
                          capture_output=True, text=True)
    if done.returncode != 0:
        model.problem = message(done.stderr, done.returncode)
        return
    model.positions = json.loads(done.stdout)["max_positions"]


def settings(model, args):
    """(dataset, tokens, what the paper has) of all runs with this model."""
    of_paper = {(one.dataset, LENGTHS[one.length]): one.paper for one in PAPER.get(model.known, ())}
    wanted = of_paper
    if args.ctx_size:
        wanted = [(dataset, context) for dataset in DATASETS for context in args.ctx_size]
    elif not of_paper:
        every = {(one.dataset, LENGTHS[one.length]) for all_of in PAPER.values() for one in all_of}
        wanted = sorted(every, key=lambda one: (list(DATASETS).index(one[0]), one[1]))
    return [(*one, of_paper.get(one, ())) for one in wanted]


def plan_runs(args):
    runs = []
    for model in models(args):
        for dataset, context, paper in settings(model, args):
            run = Run(model, dataset, context, paper, problem=model.problem)
            text = getattr(args, dataset)
            if run.problem:
                pass
            elif text is None:
                run.problem = f"no --{dataset} FILE was given"
            elif context + args.predict > model.positions:
                run.problem = (f"the model takes {model.positions} tokens, and {context} and "
                               f"{args.predict} more are needed")
            else:
                run.command = command(run, text, args)
            runs.append(run)
    return runs


# --- running -------------------------------------------------------------------------------------


def draft_len(method, dataset, args):
    if method != "QuantSpec":
        return RIVAL_DRAFT_LEN
    return args.draft_len or DRAFT_LENS[dataset]


def command(run, text, args):
    lengths = dict.fromkeys(str(draft_len(method, run.dataset, args)) for method in METHODS)
    return ("bench", "-m", str(run.model.path), "-d", f"{run.dataset}:{text}", "-c",
            str(run.context), "--plan", ",".join(METHODS.values()), "--draft-len",
            ",".join(lengths), "--temp", args.temp, "-n", str(args.predict), "--prompts",
            str(args.prompts), "--repeat", str(args.repeat), "--warm-up", str(args.warm_up),
            *args.bench, "-o", "json", "-q")


def shown(run):
    return "quantspec " + shlex.join(run.command)


def message(errors, code):
    lines = [line for line in errors.splitlines() if line.startswith("quantspec: error: ")]
    return lines[0].removeprefix("quantspec: error: ") if lines else f"ended with {code}"


def measure(run, args):
    file = args.out / run.file()
    if args.keep and file.exists():
        try:
            kept = json.loads(file.read_text())
            same = (kept["run"]["command"], kept["run"]["program"]) == (shown(run), args.program)
        except (ValueError, LookupError, TypeError):  # stopped while it wrote, or another's file
            same = False
        if same:
            run.report = kept
            return
    date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    done = subprocess.run([args.quantspec, *run.command], capture_output=True, text=True)
    if done.returncode != 0:
        run.problem = message(done.stderr, done.returncode)
        # 2 is what the request cannot have, such as a text that is too short.
        no_memory = re.search("are available|out of memory", run.problem)
        run.failed = done.returncode != 2 and not no_memory
        return
    report = json.loads(done.stdout)
    report["run"] = {"command": shown(run), "date": date, "program": args.program}
    missing = [method for method in METHODS if row_of(report, method, run, args) is None]
    if missing:
        run.problem, run.failed = f"the report has no row of {missing[0]}", True
        return
    run.report = report
    file.write_text(json.dumps(report) + "\n")


def row_of(report, method, run, args):
    wanted = METHODS[method], draft_len(method, run.dataset, args)
    return next((row for row in report["rows"] if (row["plan"], row["draft_len"]) == wanted), None)


# --- writing -------------------------------------------------------------------------------------


def rows(run, args):
    """Those of a setting, as table3.json has them."""
    paper = run.paper or (OOM,) * len(METHODS)
    for method, (acceptance, memory, speedup) in zip(METHODS, paper):
        row = row_of(run.report, method, run, args)
        accepted = row["acceptance_rate"]
        yield {
            "model": run.model.name,
            "dataset": run.dataset,
            "context": run.context,
            "method": method,
            "draft_len": row["draft_len"],
            "acceptance_percent": None if accepted is None else 100 * accepted,
            "peak_gb": row["peak_bytes"] / 1e9,
            "speedup": row["speedup_fp16"],
            "in_paper": bool(run.paper),
            "paper_acceptance_percent": acceptance,
            "paper_peak_gb": memory,
            "paper_speedup": speedup,
        }


def cell(value):
    return "-" if value is None else f"{value:.2f}"


def table(model, runs, args):
    meta = runs[0].report["meta"]
    way = "greedy" if float(args.temp) == 0 else f"temperature {args.temp}"
    lines = [
        f"**{model.name}**" + (f" (the paper's {model.known})" if model.known else ""), "",
        f"quantspec {meta['version']}, commit {meta['commit']}; {meta['backend']}, {meta['cpu']};",
        f"target weights {meta['target_weights']}; prompts: {meta['prompts']}, tokens:"
        f" {meta['tokens']}, repeats: {meta['repeats']}; {way}.", "",
        "| Dataset | Context Length | Method | Draft length | Acceptance Rate (%) |"
        " Peak Memory (GB) | Speedup (× AR) | paper: % | GB | × AR |",
        "|---|--:|---|--:|--:|--:|--:|--:|--:|--:|"
    ]
    for run in runs:
        for row in rows(run, args):
            first = row["method"] == next(iter(METHODS))
            place = (DATASETS[run.dataset], str(run.context)) if first else ("", "")
            oom = row["in_paper"] and row["paper_speedup"] is None
            cells = [
                *place, row["method"], str(row["draft_len"]), cell(row["acceptance_percent"]),
                cell(row["peak_gb"]), cell(row["speedup"]), cell(row["paper_acceptance_percent"]),
                "OOM" if oom else cell(row["paper_peak_gb"]), cell(row["paper_speedup"])
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(f"    {run.report['run']['command']}" for run in runs), ""])


def write(runs, args):
    measured = [run for run in runs if run.report]
    skipped = [run for run in runs if run.problem]
    parts = []
    for model in dict.fromkeys(id(run.model) for run in measured):
        own = [run for run in measured if id(run.model) == model]
        parts.append(table(own[0].model, own, args))
    if measured:
        parts.append("Memory is what such a run holds by itself, accounted; AR decodes with the"
                     " same weights and an fp16 cache.\n")
    if skipped:
        parts.append("Not measured:\n\n" + "".join(f"- {run.title()}: {run.problem}\n"
                                                   for run in skipped))
    text = "\n".join(parts)
    kept = {
        "rows": [row for run in measured for row in rows(run, args)],
        "left_out": [{"model": run.model.name, "dataset": run.dataset, "context": run.context,
                      "why": run.problem} for run in skipped]
    }
    (args.out / "table3.json").write_text(json.dumps(kept, indent=1) + "\n")
    (args.out / "table3.md").write_text(text, encoding="utf-8")
    print(text, end="", flush=True)


# --- command line --------------------------------------------------------------------------------


def contexts(text):
    try:
        values = [int(item) for item in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers") from None
    if min(values) < 1 or len(set(values)) < len(values):
        raise argparse.ArgumentTypeError(f"{text!r}: numbers are 1 or more, each once")
    return values


def positive(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not 1 or more")
    return int(text)


def length(text):
    if text == "auto":
        return text
    if not text.isdecimal() or not 1 <= int(text) <= 16:
        raise argparse.ArgumentTypeError(f"{text!r} is neither 1 to 16 nor auto")
    return int(text)


def temperature(text):
    try:
        if float(text) >= 0:
            return text
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not 0 or more")


def words(text):
    try:
        return shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def there(text):
    if not Path(text).exists():
        raise argparse.ArgumentTypeError(f"there is no {text}")
    return Path(text)


def parse_args():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=80))
    what = parser.add_argument_group("models")
    what.add_argument("--models", type=there, metavar="DIR",
                      help="has the paper's models: folders or GGUF files of their names, or"
                      " Hugging Face's cache")
    what.add_argument("--model", type=there, action="append", default=[], metavar="PATH",
                      help="a folder or GGUF file of any model; may be repeated")
    what = parser.add_argument_group("datasets")
    what.add_argument("--pg19", type=there, metavar="FILE", help="or a folder of books")
    what.add_argument("--infinitebench", type=there, metavar="FILE", help="longbook_sum_eng.jsonl")
    what.add_argument("--multilexsum", type=there, metavar="FILE", help="test split, as JSON lines")
    what = parser.add_argument_group("runs")
    what.add_argument("-c", "--ctx-size", type=contexts, metavar="LIST",
                      help="tokens of prompts, with every dataset (default: as the paper has them,"
                      " 4096 to 128000)")
    what.add_argument("--prompts", type=positive, metavar="N", help="of each setting (default: 7)")
    what.add_argument("-n", "--predict", type=positive, metavar="N",
                      help="tokens to decode (default: 90)")
    what.add_argument("--repeat", type=positive, metavar="N", help="of every run (default: 3)")
    what.add_argument("--warm-up", type=positive, metavar="N",
                      help="tokens before, not counted (default: 32)")
    what.add_argument("--draft-len", type=length, metavar="N",
                      help="QuantSpec's, or auto (default: the paper's: PG-19 2, InfiniteBench 4,"
                      " Multi-LexSum 6; the rivals' is 1)")
    what.add_argument("--temp", type=temperature, default="0", metavar="X",
                      help="temperature (default: 0, greedy)")
    what.add_argument("--quick", action="store_true",
                      help="1 prompt, 32 tokens, 1 repeat, 8 to warm up: tries all of it")
    what.add_argument("--bench", type=words, default=[], metavar="'OPTIONS'",
                      help="more for quantspec bench, in one word: --bench='-t 8'")
    what = parser.add_argument_group("program and output")
    what.add_argument("--quantspec", metavar="FILE", default=ROOT / "build/quantspec", type=Path,
                      help="the program (default: build/quantspec)")
    what.add_argument("-o", "--out", metavar="DIR", default=ROOT / "build/table3", type=Path,
                      help="for JSON and the table (default: build/table3)")
    what.add_argument("--keep", action="store_true", help="do not run again what this program ran before")
    what.add_argument("--dry-run", action="store_true", help="print the commands and end")
    args = parser.parse_args()
    if not args.models and not args.model:
        parser.error("no model: name --models DIR or --model PATH")
    if not any(getattr(args, dataset) for dataset in DATASETS):
        parser.error("no dataset: name --pg19, --infinitebench or --multilexsum FILE")
    usual = dict(prompts=1, predict=32, repeat=1, warm_up=8) if args.quick else dict(
        prompts=7, predict=90, repeat=3, warm_up=32)
    for name, value in usual.items():
        setattr(args, name, getattr(args, name) or value)
    if not os.access(args.quantspec, os.X_OK):
        parser.error(f"--quantspec {args.quantspec}: is not there; make build")
    args.program = hashlib.sha256(args.quantspec.read_bytes()).hexdigest()[:16]  # which build
    return args


def main():
    args = parse_args()
    runs = plan_runs(args)
    if args.dry_run:
        for run in runs:
            print(f"{run.title()}: {run.problem}" if run.problem else shown(run))
        return
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        sys.exit(f"paper_table3: --out {args.out}: {error.strerror}")
    for run in runs:
        if run.problem:
            continue
        print(f"paper_table3: {run.title()} ...", file=sys.stderr, flush=True)
        started = time.monotonic()
        try:
            measure(run, args)
        except KeyboardInterrupt:
            run.problem, run.failed = "was interrupted", True
            for left in runs[runs.index(run) + 1:]:
                left.problem = left.problem or "was not begun"
        what = ("failed: " if run.failed else "left out: ") + run.problem if run.problem else "done"
        print(f"paper_table3: {run.title()}: {what}, {time.monotonic() - started:.0f} s",
              file=sys.stderr, flush=True)
    write(runs, args)
    failed = [run.title() for run in runs if run.failed]
    if failed:
        sys.exit(f"paper_table3: failed: {'; '.join(failed)}")
    if not any(run.report for run in runs):
        sys.exit("paper_table3: no row was measured; the reasons are above")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("paper_table3: stopped")
