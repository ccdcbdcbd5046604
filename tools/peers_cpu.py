#!/usr/bin/env python3
"""Compares quantspec with llama.cpp on this machine's processor, on one file.

    tools/peers_cpu.py MODEL.gguf                        speed
    tools/peers_cpu.py MODEL.gguf --perplexity TEXT.txt  of the same tokens
    tools/peers_cpu.py MODEL.gguf --tokens               greedy ones, 20 prompts

tools/real_models.sh builds llama.cpp and makes files to compare on;
docs/real-models.md says how to read what is printed. Nothing else should run
meanwhile. Needs the standard library only.
"""

import argparse
import datetime
import json
import os
import platform
import sys
import tempfile
from pathlib import Path

from peers import perplexity, speed, tokens
from peers.programs import Gguf, Programs, ROOT, checkout, instructions, physical_cores, processor


def numbers(text):
    try:
        values = [int(item) for item in text.split(",") if item]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers") from None
    if any(value < 0 for value in values):
        raise argparse.ArgumentTypeError(f"{text!r}: numbers are 0 or more")
    return values


def settings(text):
    names = [name.strip() for name in text.split(";")]
    unknown = [name for name in names if name not in speed.SETTINGS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {'; '.join(speed.SETTINGS)}")
    return names


def positive(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not 1 or more")
    return int(text)


def parse_args(about):
    real = Path(os.environ.get("QUANTSPEC_REAL", ROOT.parent / "real"))
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL.gguf", help="what both read")
    parser.add_argument("--ours", metavar="MODEL", help="what quantspec reads instead, said in the output")
    parser.add_argument("--llama", metavar="DIR", default=real / "llama.cpp/build/bin",
                        help="llama.cpp's programs (default: of tools/real_models.sh)")
    parser.add_argument("--quantspec", metavar="FILE", default=ROOT / "build/quantspec",
                        help="our program (default: build/quantspec)")
    parser.add_argument("-t", "--threads", type=positive, default=physical_cores(), metavar="N",
                        help="of both (default: the physical cores)")
    parser.add_argument("-o", "--out", metavar="FILE", help="JSON (default:"
                        " peers-MODEL-WHAT.json here)")
    parser.add_argument("-v", "--verbose", action="store_true", help="print every command")
    what = parser.add_argument_group("speed")
    what.add_argument("--rounds", type=positive, default=3, metavar="N", help="in turn (default: 3)")
    what.add_argument("--depths", type=numbers, default=[0, 4096, 8192], metavar="LIST",
                      help="tokens before those decoded (default: 0,4096,8192)")
    what.add_argument("--prompts", type=numbers, default=[512, 4096], metavar="LIST",
                      help="tokens of prompts (default: 512,4096)")
    what.add_argument("-n", "--predict", type=positive, default=128, metavar="N",
                      help="tokens decoded (default: 128)")
    what.add_argument("--settings", type=settings, default=list(speed.SETTINGS), metavar="LIST",
                      help="llama.cpp's (default: 'fa off, f16; fa on, f16; fa on, q8_0'),"
                      " of which the best counts")
    what.add_argument("--plan", default="auto", metavar="LIST", help="ours, with drafts (default: auto)")
    what.add_argument("--temp", default="1", metavar="X", help="ours (default: 1)")
    what.add_argument("-d", "--dataset", metavar="KIND:PATH",
                      help="ours (default: the pages of this repository's docs)")
    what = parser.add_argument_group("perplexity")
    what.add_argument("--perplexity", metavar="TEXT", help="a text file")
    what.add_argument("--context", type=positive, default=511, metavar="N",
                      help="tokens of a window: a power of two less one (default: 511)")
    what.add_argument("--windows", type=positive, default=8, metavar="N", help="how many (default: 8)")
    what = parser.add_argument_group("tokens")
    what.add_argument("--tokens", type=positive, nargs="?", const=64, metavar="N",
                      help="so many after each prompt (default: 64)")
    args = parser.parse_args()
    if args.perplexity and args.tokens:
        parser.error("--perplexity and --tokens are two runs")
    return args


def heading(programs, args, gpu):
    name = Path(args.model).name
    about = {
        "model": name,
        "ours_reads": Path(args.ours).name if args.ours else name,
        "processor": processor(),
        "instructions": instructions(),
        "threads": args.threads,
        "gpu": gpu,
        "system": platform.release(),
        "llama_cpp": programs.llama_version(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }
    print(f"**{name}**" + (f", ours {about['ours_reads']}" if args.ours else ""))
    features = ", ".join(about["instructions"]) or "no wide instructions"
    if gpu:
        print(f"\n{gpu};")
    else:
        print(f"\n{about['processor']} ({features}), {args.threads} threads;")
    print(f"llama.cpp {about['llama_cpp']}; {about['date']}.\n", flush=True)
    return about


def main(about=__doc__, gpu=None):
    args = parse_args(about)
    args.gpu = gpu
    gguf = Gguf(args.model)
    programs = Programs(args)
    kind = "perplexity" if args.perplexity else "tokens" if args.tokens else "speed"
    out = Path(args.out or f"peers-{Path(args.model).stem}-{kind}.json")
    if not out.parent.is_dir():
        sys.exit(f"peers_cpu: there is no folder {out.parent} for {out.name}")
    programs.path_of("quantspec")
    about = heading(programs, args, gpu)
    measure = {"perplexity": perplexity, "tokens": tokens, "speed": speed}[kind].main
    with tempfile.TemporaryDirectory(prefix="peers_cpu.") as folder:
        found = measure(programs, args, gguf, Path(folder))
    # What generate prints has no commit.
    ours = found["quantspec"]["commit"] if "quantspec" in found else f"of a checkout at {checkout()}"
    print(f"\nquantspec {ours}.")
    about["quantspec_commit"] = ours
    out.write_text(json.dumps({"measurement": f"peers-{kind}", **about, **found}, indent=1) + "\n")
    print(f"All of it: {out}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("peers_cpu: stopped")
