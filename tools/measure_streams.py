#!/usr/bin/env python3
"""Measures many requests at once with the bundled model; docs/bench.md, "Many streams", says how to read it.

    tools/measure_streams.py TEXTS [WHAT...]

    TEXTS     a folder of books, of which every prompt is cut
    batch     8 streams at 4k and 16k tokens: by drafts, by plain decoding, with an fp16 cache
    late      a prompt of 32,000 tokens that comes beside 8 streams at 4k
    prefix    the time to the first token behind a cached prefix of 31,000 tokens
    memory    sequences of 32k tokens that 8-bit pages admit where an fp16 cache has room for ten
    random    100,000 requests that come, stop, pause, are cancelled and preempted: nothing is lost
    lossless  8 streams at 4k against each alone

Without WHAT all of them. Prints each command and what matters of its answer, and keeps the JSON in
--out. --small tries everything with little, for this script itself. Standard library only.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = ["streams", "context", "plan", "output_tokens_per_second", "speedup_int8", "speedup_fp16",
           "acceptance_rate", "draft_len_mean", "itl_p99_ms", "identical"]


class Measurements:
    def __init__(self, args):
        self.args = args
        self.small = args.small
        self.out = Path(args.out)
        self.out.mkdir(parents=True, exist_ok=True)

    def size(self, large, small):
        return small if self.small else large

    def run(self, program, *options, env=None):
        command = [str(Path(self.args.build) / program), *map(str, options)]
        print("$", " ".join([*(f"{k}={v}" for k, v in (env or {}).items()), *command]), flush=True)
        done = subprocess.run(command, stdout=subprocess.PIPE, env={**os.environ, **(env or {})},
                              cwd=ROOT)
        if done.returncode != 0:
            sys.exit(f"measure_streams: it ended with {done.returncode}\n{done.stdout.decode()}")
        return done.stdout.decode()

    def json(self, name, *options):
        text = self.run("quantspec", *options, "-m", ROOT / "models/pg-24m", "-d",
                        f"text:{self.args.texts}", "-q", "-o", "json")
        (self.out / f"{name}.json").write_text(text)
        return json.loads(text)

    def bench(self, name, columns, *options):
        rows = self.json(name, "bench", *options, *self.args.flags.split())["rows"]
        cells = [columns] + [[shown(row[column]) for column in columns] for row in rows]
        widths = [max(map(len, column)) for column in zip(*cells)]
        for line in cells:
            print("  " + "  ".join(cell.rjust(width) for cell, width in zip(line, widths)))

    def batch(self):
        self.bench("batch", COLUMNS, "--streams", self.size(8, 2), "-c",
                   self.size("4096,16384", "128,256"), "-n", self.size(128, 8), "--warm-up",
                   self.size(128, 8), "--plan", "auto")

    def late(self):
        self.bench("late", ["plan", "output_tokens_per_second", "itl_p50_ms", "itl_p99_ms",
                            "late_itl_p50_ms", "late_itl_p99_ms", "late_ttft_ms", "identical"],
                   "--streams", self.size(8, 2), "-c", self.size(4096, 128), "--late-prompt",
                   self.size(32000, 1500), "-n", self.size(256, 8), "--warm-up", self.size(128, 8),
                   "--repeat", 1, "--plan", "auto")

    def prefix(self):
        """Of three requests that begin alike the first is read cold: it has the 99th percentile of
        the times to the first token, and the other two the median."""
        shared, wait = self.size(31000, 2100), self.size(60000, 4000)
        trace = self.out / "prefix-trace.jsonl"
        trace.write_text("".join(
            json.dumps({"arrival_ms": at, "prompt_tokens": shared + 200, "output_tokens": 16,
                        "shared_prefix": {"id": "book", "tokens": shared}}) + "\n"
            for at in (0, wait, wait + wait // 10)))
        self.bench("prefix", ["plan", "ttft_p99_ms", "ttft_p50_ms", "cached_tokens", "identical"],
                   "--trace", trace, "--streams", 1, "--repeat", 1, "--warm-up", 0, "--plan",
                   "quantspec")

    def test(self, name, env=None):
        text = self.run("tests/quantspec_test", f"--gtest_filter={name}", env=env)
        print("  " + next(line for line in text.splitlines() if not line.startswith("[") and
                          not line.startswith("Note")))

    def memory(self):
        self.test("RequestLoopMemory.*")

    def random(self):
        self.test("RandomRequests.*", {"QUANTSPEC_RANDOM_REQUESTS": self.size("100000", "1000")})

    def lossless(self):
        meta = self.json("lossless", "eval", "lossless", "--streams", self.size(8, 2), "-c",
                         self.size(4096, 128), "--tokens", self.size(128, 8))["meta"]
        print(f"  {meta['conclusion']}")


def shown(value):
    return f"{value:.3f}" if isinstance(value, float) else "-" if value is None else str(value)


def main():
    names = ["batch", "late", "prefix", "memory", "random", "lossless"]
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", metavar="TEXTS")
    parser.add_argument("what", metavar="WHAT", nargs="*")
    parser.add_argument("--build", default=ROOT / "build")
    parser.add_argument("--out", default=ROOT / "build/streams")
    parser.add_argument("--flags", default="", help='for every bench: --flags="--temp 0"')
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    unknown = set(args.what) - set(names)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    args.texts = Path(args.texts).resolve()
    measurements = Measurements(args)
    for name in args.what or names:
        print(f"\n## {name}")
        getattr(measurements, name)()


if __name__ == "__main__":
    main()
