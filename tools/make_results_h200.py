#!/usr/bin/env python3
"""Fills docs/results-h200.md with what was measured on a GPU, and draws it.

    tools/make_results_h200.py --bench bench.json --baselines baselines.json \\
        --rounds 7b.json [8b.json] [--fidelity cuda.json cpu.json]

bench.json is of gpu_bench --json (several files: what a later one has takes the place of an earlier
one's), baselines.json of tools/gpu_baselines.py --out, those of --rounds of gpu_rounds --json, those
of --fidelity of quantspec eval fidelity -o json on the same texts, one for each backend. Tables go
between <!-- results:NAME --> and <!-- /results:NAME -->, pictures to docs/img/h200-*.svg; text
outside such marks is not touched. Needs python3-matplotlib.
"""

import argparse
import importlib.util
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from make_results import fill  # noqa: E402
from plots import h200_goals, h200_tables  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAX_BYTES = 120_000
# An option's files: what writes them, a list that they have, and keys of its entries.
FILES = {
    "bench": ("gpu_bench --json", "measurements", ("name", "rows", "seconds", "most_seconds")),
    "baselines": ("tools/gpu_baselines.py --out", "attention", ("shape", "tokens", "us")),
    "rounds": ("gpu_rounds --json", "contexts", ("context", "fp16_kv_bytes", "runs")),
    "fidelity": ("quantspec eval fidelity -o json", "rows", ("kind", "reading", "acceptance")),
}


def blocks(bench, baselines, reports, fidelity):
    """(name of a block, title if it has no marks yet, what stands there)."""
    yield "h200-machine", "Machine", machine(bench, baselines)
    yield "h200-goals", "Goals", h200_goals.goals(bench, reports)
    yield "h200-attention", "Decode attention", h200_tables.attention(bench)
    yield "h200-linear", "Products with weights", h200_tables.linear(bench)
    yield "h200-others", "Other ops", h200_tables.others(bench)
    yield "h200-baselines", "PyTorch's kernels", h200_tables.baselines(baselines)
    for report in reports:
        name = report.shape.name
        yield f"h200-rounds-{name.lower()}", f"Rounds, {name}", h200_tables.rounds(report)
    yield "h200-steps", "Steps and their kernels", h200_tables.steps(bench, reports)
    yield "h200-gaps", "What would close the gap", h200_tables.gaps(bench, reports)
    yield "h200-memory", "Memory", h200_tables.memory(reports)
    yield "h200-prefill", "Prefill", h200_tables.prefill(reports)
    yield "h200-checks", "Checks", h200_tables.checks(bench)
    if fidelity:
        yield "h200-fidelity", "Fidelity on books", h200_tables.fidelity(fidelity)


def machine(bench, baselines):
    return (f"Measured: {bench.device}. A device-to-device copy reads and writes "
            f"{bench.copy / 1e12:.2f} TB/s there, a large bf16 product of cuBLAS does "
            f"{baselines['matmul_flops_per_second'] / 1e12:.0f} TFLOP/s. PyTorch "
            f"{baselines['torch']}, CUDA {baselines['cuda']}, cuDNN {baselines['cudnn']}; it had a "
            f"run of its own (copy {baselines['copy_bytes_per_second'] / 1e12:.2f} TB/s). A time "
            "is the median of a few series of calls; the slowest series took at most "
            f"{bench.spread():.2f} times the fastest.\n")


def draw(bench, baselines, reports, folder):
    from plots import h200
    pictures = {"attention": (bench, baselines), "linear": (bench, baselines),
                "speed-up": (reports, )}
    for name, what in pictures.items():
        path = folder / f"h200-{name}.svg"
        getattr(h200, name.replace("-", "_"))(*what, path)
        size = path.stat().st_size
        if size > MAX_BYTES:
            sys.exit(f"make_results_h200: {path}: {size} bytes, above {MAX_BYTES}")
        print(path)


def load(path, option, make=dict):
    """What `make` makes of the JSON of an option's file."""
    writer, rows, keys = FILES[option]
    try:
        data = json.loads(path.read_text())
        for row in data[rows] or [{}]:
            _ = [row[key] for key in keys]
        return make(data)
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    except (json.JSONDecodeError, UnicodeDecodeError, LookupError, TypeError):
        problem = f"not what {writer} writes"
    except ValueError as error:
        problem = str(error)
    sys.exit(f"make_results_h200: --{option} {path}: {problem}")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])

    def add(option, what, **options):
        parser.add_argument(f"--{option}", type=pathlib.Path, metavar="FILE",
                            help=f"of {FILES[option][0]}{what}", **options)

    add("bench", "; what a later one has takes the place of an earlier one's", nargs="+",
        required=True)
    add("baselines", ", on the same machine", required=True)
    add("rounds", ", one for each model", nargs="+", required=True)
    add("fidelity", " on the same texts, one for each backend", nargs="+", default=[])
    parser.add_argument("--docs", type=pathlib.Path, default=ROOT / "docs", metavar="FOLDER",
                        help="where results-h200.md is (default: docs)")
    return parser.parse_args()


def main():
    args = arguments()
    if importlib.util.find_spec("matplotlib") is None:
        sys.exit("make_results_h200: needs matplotlib: tools/install_deps.sh plots")
    bench = h200_tables.Bench([load(path, "bench") for path in args.bench])
    baselines = load(args.baselines, "baselines")
    reports = [load(path, "rounds", h200_tables.Rounds) for path in args.rounds]
    fidelity = [load(path, "fidelity") for path in args.fidelity]
    page = args.docs / "results-h200.md"
    text = page.read_text() if page.exists() else "# Results on an H200\n"
    for name, title, content in blocks(bench, baselines, reports, fidelity):
        text = fill(text, name, title, content)
    page.write_text(text)
    draw(bench, baselines, reports, args.docs / "img")


if __name__ == "__main__":
    main()
