#!/usr/bin/env python3
"""Times this machine's GPU and prints its row for src/backend/cuda/tuning.cc.

    tools/gpu_tune.py [--build DIR]    gpu_bench is in DIR (default: build)

Takes some two minutes on a GPU that does nothing else. A constant says from
what size on one kernel is used instead of another, how many stages a ring has,
or how many blocks drafts have. gpu_bench times ops with a few values of it
(QUANTSPEC_TUNING), and what takes least is the best: the mean, over the ops
that it bears on, of the logarithm of the time. Numbers of rows come from two
runs, all products by the one kernel and all by the other, and go together.
What there is stays where nothing else is faster by 1%.

The row is printed last, for a person to put there: who sees which values gain,
and whether they do again in a second run. Exit code 1: an op failed its check;
2: nothing could be timed.
"""

import argparse
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

TABLE = pathlib.Path(__file__).parent.parent / "src/backend/cuda/tuning.cc"
GAIN = 0.01  # what a change must bring
NEVER = 1 << 19  # rows, the most that may be asked for
ROWS = [4, 5, 8, 9, 12, 13, 16, 17, 18, 24]
MATRICES = ["o", "8b qkv", "7b down", "8b down", "8b gate-up", "7b head"]
ATTENTION = ["--only", "attention", "--tokens", "4096"]
# A constant, its values, what gpu_bench is to time, and a pattern of what counts of it.
SWEEPS = [
    ("streamed_stages", [3, 4, 5, 6, 8],
     ["--only", "linear", "--weights", "bf16", "--matrices", ",".join(MATRICES), "--rows", "1,4,8"], ""),
    # One row of equal lengths has blocks that stay, whatever this is.
    ("short_split", [512, 1024, 2048, 4096], ATTENTION,
     r"^gqa \d+x\d+( ragged)? verify, [458]$|^gqa \d+x\d+ ragged verify, 1$|\d+x\d+.* fp16, 1$"),
    ("draft_rounds", [1, 2, 3, 4], ATTENTION, r"\d+x\d+.* draft, 1$"),
]


def read_table(text):
    """{capability: {constant: value}} of tuning.cc, in its order."""
    rows = {}
    for capability, body in re.findall(r"\{(\d+),\s*\{((?:\s*\.\w+ = [^,}]+,?)+)\}\}", text):
        rows[int(capability)] = {
            name: int(number) << int(shift or 0)
            for name, number, shift in re.findall(r"\.(\w+) = (\d+)(?: << (\d+))?", body)}
    return rows


def row_text(capability, values):
    constants = ",\n".join(f"      .{name} = {value}" for name, value in values.items())
    return f"    {{{capability},\n     {{{constants.lstrip()}}}}},"


class Bench:
    def __init__(self, program):
        self.program = program
        self.device = None

    def times(self, options, values):
        """{(name, rows): seconds} with these values of constants."""
        changes = ",".join(f"{name}={value}" for name, value in values.items())
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "bench.json"
            ran = subprocess.run([self.program, *options, "--json", path], check=False, text=True,
                                 capture_output=True, env={**os.environ, "QUANTSPEC_TUNING": changes})
            if ran.returncode != 0:
                print(ran.stdout + ran.stderr, file=sys.stderr)
                print(f"gpu_tune: {self.program} failed, with QUANTSPEC_TUNING={changes}", file=sys.stderr)
                sys.exit(1 if ran.returncode == 3 else 2)
            data = json.loads(path.read_text())
        self.device = data["device"]
        return {(each["name"], each["rows"]): each["seconds"] for each in data["measurements"]}

    def capability(self):
        self.times(["--only", "linear", "--weights", "bf16", "--matrices", "o", "--rows", "1"], {})
        return int(re.search(r"kernels for (\d+)\.(\d)", self.device).expand(r"\1\2"))


def mean_log(seconds):
    return sum(map(math.log, seconds)) / len(seconds)


def best_of(costs, now):
    """The value that costs least: `now`, unless another gains."""
    best = min(costs, key=costs.get)
    return best if now not in costs or costs[best] < costs[now] - GAIN else now


def sweep(bench, values, name, tried, options, wanted):
    """The best of the values of a constant."""
    tried = sorted({*tried, values[name]})
    times = {value: bench.times(options, {**values, name: value}) for value in tried}
    cells = [cell for cell in times[tried[0]] if re.search(wanted, f"{cell[0]}, {cell[1]}")]
    costs = {value: mean_log([times[value][cell] for cell in cells]) for value in tried}
    best = best_of(costs, values[name])
    edge = "" if best in tried[1:-1] or best == 1 else ", at the edge of what was tried: try further"
    print(f"\n{name}: us; now {values[name]}, best {best}{edge}")
    print(f"{'':34}" + "".join(f"{value:>9}" for value in tried))
    for cell in cells:
        text = "".join(f"{1e6 * times[value][cell]:9.1f}" for value in tried)
        print(f"{cell[0]}, {cell[1]}".ljust(34) + text)
    print("over now".ljust(34) + "".join(
        f"{math.exp(costs[value] - costs[values[name]]):8.3f}x" for value in tried), flush=True)
    return best


def size_of(name):
    """Tiles times bands of a matrix, from its "OUTPUTSxINPUTS"."""
    outputs, inputs = map(int, re.search(r"(\d+)x(\d+)", name).groups())
    return -(-outputs // 16) * -(-inputs // 128)


def fit_rows(few, batch, now, of_size):
    """(rows, large_rows, large) that cost least, and what they and those of now cost, relative to the
    faster kernel everywhere. few, batch: {(name, rows): seconds} by either kernel. of_size: whether
    large matrices have a number of their own."""
    def cost(choice):
        rows, large_rows, large = choice
        total = 0
        for cell in few:
            first = large_rows if size_of(cell[0]) >= large else rows
            seconds = batch[cell] if cell[1] >= first else few[cell]
            total += math.log(seconds / min(few[cell], batch[cell]))
        return total / len(few)
    sizes = sorted({size_of(name) for name, _ in few})
    edges = [now[2], *((a + b) // 2 for a, b in zip(sizes, sizes[1:]))]
    costs = {choice: cost(choice) for choice in [now, *(
        (rows, large_rows, large) for large in edges for rows in [*ROWS, NEVER]
        for large_rows in [*ROWS, NEVER]
        if (large_rows <= rows if of_size else large_rows == rows))]}
    best = best_of(costs, now)
    return best, costs[best], costs[now]


def tune_rows(bench, values):
    """The constants that say from how many rows on products are a batch's."""
    constants = ["half_rows", "half_large_rows", "plane_rows", "plane_large_rows", "code_rows"]
    kinds = {"half": ["bf16"], "plane": ["4-bit", "8-bit"], "code": ["Q8_0", "Q4_K"]}
    options = ["--only", "linear", "--weights", ",".join(sum(kinds.values(), [])),
               "--matrices", ",".join(MATRICES), "--rows", ",".join(map(str, ROWS))]
    few = bench.times(options, {**values, **dict.fromkeys(constants, NEVER)})
    batch = bench.times(options, {**values, **dict.fromkeys(constants, 2)})
    for kind, weights in kinds.items():
        # 17 rows of codes are seldom a batch's, whatever the constant.
        mine = [{cell: seconds for cell, seconds in times.items() if cell[0].split()[-1] in weights
                 and (kind, cell[1]) != ("code", 17)} for times in (few, batch)]
        gaps = [abs(math.log(mine[1][cell] / mine[0][cell])) for cell in mine[0]]
        if statistics.median(gaps) < GAIN:
            print(f"\n{kind}_rows: makes no difference here, as where there is one kernel")
            continue
        print(f"\n{kind}_rows: us, kernel of few rows -> of batches")
        print(f"{'':26}" + "".join(f"{rows:>14}" for rows in ROWS))
        for name in dict.fromkeys(name for name, _ in mine[0]):
            print(name.ljust(26) + "".join(
                f"{1e6 * mine[0][name, rows]:7.1f}->{1e6 * mine[1][name, rows]:5.1f}"
                if (name, rows) in mine[0] else " " * 14 for rows in ROWS))
        names = [f"{kind}_rows", f"{kind}_large_rows", f"{kind}_large"]
        of_size = names[1] in values
        now = tuple(values.get(name, values[names[0]]) for name in names)
        best, cost, cost_now = fit_rows(*mine, now, of_size)
        said = best if of_size else best[0]
        print(f"now {math.exp(cost_now):.3f}x of the faster kernel; best {said}: "
              f"{math.exp(cost):.3f}x", flush=True)
        values.update({name: value for name, value in zip(names, best) if name in values})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"), metavar="DIR",
                        help="where gpu_bench is (default: build)")
    build = parser.parse_args().build
    program = build.resolve() / "gpu_bench"
    if not (program.is_file() and os.access(program, os.X_OK)):
        parser.error(f"no program {program}: cmake --build {build} --target gpu_bench makes it, in a "
                     "build with CUDA (CONTRIBUTING.md)")
    table = read_table(TABLE.read_text())
    bench = Bench(program)
    capability = bench.capability()
    timed = capability in table
    values = dict(table[capability] if timed else next(iter(table.values())))
    print(f"{bench.device}: begins with " + ("its row of tuning.cc" if timed else
                                             "the row of 9.0, as tuning.cc has none of its own"))
    tune_rows(bench, values)
    for name, *how in SWEEPS:
        values[name] = sweep(bench, values, name, *how)
    print("\n" + row_text(capability, values))


if __name__ == "__main__":
    main()
