#!/usr/bin/env python3
"""Times first tokens of a server that finds on disk what the one before it has read.

    tools/serve_restart.py --text BOOK                            the bundled model
    tools/serve_restart.py --text BOOK -m MODEL.gguf --tokens 2000 7000

For each prompt, with a folder that is empty at first: a server reads it; the next one, after a SIGTERM, finds it;
a third is asked for another prompt and killed by SIGKILL while that goes to disk; and a fourth is asked for both.
All must write the same text. Prints a table of seconds until the first token. Nothing else should run meanwhile.
Needs the standard library only. Exit code 1: a text differs.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from peers.programs import Programs, ROOT, physical_cores, processor
from peers.serving import Server, ask, run


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", help="(default: the bundled one)", metavar="MODEL")
    parser.add_argument("--text", required=True, help="of which prompts are made, in UTF-8", metavar="FILE")
    parser.add_argument("--tokens", type=int, nargs="+", default=[4000, 12000], metavar="N",
                        help="of the prompts, about (default: 4000 12000)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="(default: 3)")
    parser.add_argument("--quantspec", metavar="FILE", default=ROOT / "build/quantspec", help="our program")
    parser.add_argument("-v", "--verbose", action="store_true", help="print what is run")
    args = parser.parse_args()
    args.llama = ""
    return args


def answer(server, prompt):
    return run(ask(server, {"prompt": prompt, "max_tokens": 32, "temperature": 0, "ignore_eos": True}))


def one_round(args, programs, text, tokens, folder):
    """First tokens' seconds: read, found, found after a kill; and the prompt's tokens."""
    options = ["serve", "-c", 2 * max(args.tokens), "--cache-disk", folder / "cache", "-q"]
    options += ["-m", args.model] if args.model else []
    prompts = [text[: 4 * tokens], text[4 * tokens : 8 * tokens]]
    log = folder / "log"
    with Server(programs, "quantspec", options, log) as server:
        read = answer(server, prompts[0])
    with Server(programs, "quantspec", options, log) as server:
        found = answer(server, prompts[0])
    with Server(programs, "quantspec", options, log) as server:
        other = answer(server, prompts[1])
        server.process.kill()
        server.process.wait()
    with Server(programs, "quantspec", options, log) as server:
        after_kill = answer(server, prompts[0])
        again = answer(server, prompts[1])
    same = read.text == found.text == after_kill.text and other.text == again.text
    if not same:
        sys.exit("serve_restart: a text differs")
    return read.first(), found.first(), after_kill.first(), read.prompt_tokens, found.cached_tokens


def main():
    args = parse_args()
    programs = Programs(args)
    text = Path(args.text).read_text(errors="replace")
    print(f"{Path(args.model).name if args.model else 'bundled model'}, {physical_cores()} cores of {processor()}, "
          f"medians of {args.rounds} rounds\n")
    print("| prompt | found on disk | read, s | found, s | share | found after a kill, s |")
    print("|--:|--:|--:|--:|--:|--:|")
    for tokens in args.tokens:
        rows = []
        for _ in range(args.rounds):
            with tempfile.TemporaryDirectory() as folder:
                rows.append(one_round(args, programs, text, tokens, Path(folder)))
        read, found, after_kill = (statistics.median(row[i] for row in rows) for i in range(3))
        print(f"| {rows[0][3]:,} | {rows[0][4]:,} | {read:.2f} | {found:.3f} | {100 * found / read:.1f} % "
              f"| {after_kill:.3f} |")


if __name__ == "__main__":
    main()
