#!/usr/bin/env python3
"""Measures what docs/results.md reports, with the quantspec binary, and prints it as Markdown.

    tools/measure.py [--quantspec build/quantspec] [--repeat 3] [--books DIR]
    tools/measure.py --prompt FILE --ctx N        speed alone, on another text

Speed: the bundled prompt, plain and self-speculative in one process (--compare), everything on auto,
and in turn plain decoding over an fp16 cache (--kv-cache full --draft-len 0).
Acceptance: drafts of one token at temperature 1 with rejection sampling, so that the share of
accepted tokens estimates sum(min(draft, target)); on the bundled prompt and, with --books, on about
8,000 tokens of every .txt file of a folder. Needs python3 alone.
"""

import argparse
import json
import pathlib
import os
import platform
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROMPT = ROOT / "prompts/the-lighthouse-clock.txt"
BOOK_SKIP, BOOK_CHARS = 20_000, 29_000  # past a book's front matter; about 8,000 tokens


def generate(binary, *flags):
    command = [binary, "generate", "--json", "--ignore-eos", *flags]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{run.stderr}")
    return json.loads(run.stdout)


def cpu_name():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.processor()


def row(*cells):
    print("| " + " | ".join(str(cell) for cell in cells) + " |")


def spread(values, digits=2):
    text = f"{statistics.median(values):.{digits}f}"
    return f"{text} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def speed(binary, repeat, prompt, ctx):
    print("\n| sampling | plain, fp16 KV, tokens/s | plain, tokens/s | self-speculative, tokens/s | over fp16 | speed-up | accepted / drafted |"
          " tokens per round | draft length | prefill, s | peak RSS, MB | identical |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    modes = {
        "greedy": ["--temp", "0"],
        "coupled, defaults (temp 0.8)": ["--spec-sampling", "coupled"],
        "coupled, temp 1": ["--spec-sampling", "coupled", "--temp", "1", "--top-k", "0", "--top-p", "1",
                            "--min-p", "0"],
        "rejection, temp 1": ["--spec-sampling", "rejection", "--temp", "1", "--top-k", "0", "--top-p",
                              "1", "--min-p", "0"],
    }
    for name, flags in modes.items():
        runs, full = [], []
        for seed in range(1, repeat + 1):  # interleaved, so that drift hits all alike
            common = ["-f", str(prompt), "-n", "256", "-c", str(ctx), "-s", str(seed), *flags]
            runs.append(generate(binary, "--compare", *common))
            full.append(generate(binary, "--kv-cache", "full", "--draft-len", "0", *common))
        fp16 = [run["timings"]["decode_tokens_per_second"] for run in full]
        decode = [run["timings"]["decode_tokens_per_second"] for run in runs]
        plain = [run["baseline"]["timings"]["decode_tokens_per_second"] for run in runs]
        spec = [run["speculation"] for run in runs]
        identical = {run["identical"] for run in runs}
        row(name, spread(fp16, 0), spread(plain, 0), spread(decode, 0),
            spread([new / old for new, old in zip(decode, fp16)]), spread([run["speedup"] for run in runs]),
            spread([s["acceptance_rate"] for s in spec]), spread([s["tokens_per_round"] for s in spec]),
            spread([s["draft_len_mean"] for s in spec]),
            spread([run["timings"]["prefill_ms"] / 1e3 for run in runs]),
            round(max(run["memory"]["peak_rss_bytes"] for run in runs) / 1e6),
            "/".join({True: "yes", False: "NO", None: "-"}[i] for i in identical))


def acceptance(binary, prompts):
    print("\n| draft weights (4-bit KV) | acceptance per token | drafts judged |")
    print("|---|---|---|")
    for weights, name in (("full", "checkpoint's"), ("8", "8 bit"), ("4", "4 bit")):
        accepted = judged = 0
        for prompt in prompts:
            spec = generate(binary, "-f", str(prompt), "-n", "512", "-s", "1", "--temp", "1", "--top-k",
                            "0", "--top-p", "1", "--min-p", "0", "--spec-sampling", "rejection",
                            "--draft-len", "1", "--draft-weights", weights)["speculation"]
            accepted += spec["draft_n_accepted"]
            judged += spec["draft_n"]
        share = accepted / judged
        row(name, f"{share:.3f} ± {(share * (1 - share) / judged) ** 0.5:.3f}", judged)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quantspec", default=str(ROOT / "build/quantspec"))
    parser.add_argument("--repeat", type=int, default=3, help="runs of every row; medians are shown")
    parser.add_argument("--prompt", type=pathlib.Path, help="text to measure speed on")
    parser.add_argument("--ctx", type=int, default=9000, help="context that holds it and 256 tokens")
    parser.add_argument("--books", type=pathlib.Path, help="folder of .txt files that the model never saw")
    args = parser.parse_args()
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True,
                            text=True).stdout.strip()
    print(f"{cpu_name()}, {len(os.sched_getaffinity(0))} cores; commit {commit}")
    speed(args.quantspec, args.repeat, args.prompt or PROMPT, args.ctx)
    if args.prompt:
        return
    with tempfile.TemporaryDirectory() as folder:
        prompts = [PROMPT]
        for book in sorted(args.books.glob("*.txt")) if args.books else []:
            text = book.read_text(errors="replace")
            cut = pathlib.Path(folder) / book.name
            cut.write_text(text[BOOK_SKIP:BOOK_SKIP + BOOK_CHARS])
            prompts.append(cut)
        acceptance(args.quantspec, prompts)


if __name__ == "__main__":
    main()
