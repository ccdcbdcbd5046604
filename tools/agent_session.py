#!/usr/bin/env python3
"""Plays an agent that keeps its text in a session's file and is killed at random.

    tools/agent_session.py --text BOOK.txt
    tools/agent_session.py --text BOOK.txt -m MODEL.gguf --turns 20

Every turn is a run of `quantspec generate --session`: it adds a piece of the book to the text and has the
model write after it, greedily, until the context is nearly full. Once undisturbed, then with programs that
are killed by SIGKILL at any moment, also while they write the file, and started again. Both must give the
same text. Prints the time to the first token: of whole runs, from the start of the program, and of the
engine alone (the prompt's reading). Nothing else should run meanwhile. Needs the standard library only.

Exit code 1: the texts differ.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def quantile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Agent:
    def __init__(self, args, session, seed=None):
        self.args = args
        self.session = session
        self.random = None if seed is None else random.Random(seed)
        self.texts, self.first, self.whole, self.engine, self.kills = [], [], [], [], 0

    def run(self, piece):
        """The text that a run writes and when its first byte came; None: it was killed."""
        command = [str(self.args.quantspec), "generate", "-p", piece, "-n", str(self.args.predict), "--temp", "0",
                   "--ignore-eos", "--ctx-size", str(self.args.ctx), "--session", str(self.session)]
        if self.args.model:
            command += ["-m", str(self.args.model)]
        if self.args.threads:
            command += ["-t", str(self.args.threads)]
        start = time.monotonic()
        program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if self.random and self.random.random() < self.args.kill:
            time.sleep(self.random.uniform(0, 1.2 * self.typical()))
            program.kill()
        text = os.read(program.stdout.fileno(), 1)
        first = time.monotonic() - start
        text += program.stdout.read()
        report = program.stderr.read().decode(errors="replace")
        if program.wait() == -9:
            self.kills += 1
            return None
        if program.returncode != 0:
            sys.exit(f"agent_session: {report}")
        self.first.append(first)
        self.whole.append(time.monotonic() - start)
        read = next(line for line in report.splitlines() if line.startswith("prefill"))
        self.engine.append(float(read.split(" in ")[1].split(" s")[0]))
        return text

    def typical(self):
        return sum(self.whole[-5:]) / len(self.whole[-5:]) if self.whole else 0.5

    def play(self, pieces):
        for piece in pieces:
            text = None
            while text is None:
                text = self.run(piece)
            self.texts.append(text)
        return self

    def report(self, name):
        first, engine = self.first[1:], self.engine[1:]
        print(f"{name:12} {len(self.texts):5} {self.kills:6} {self.first[0]:10.2f} "
              f"{quantile(first, 0.5):8.3f} {quantile(first, 0.99):8.3f} {quantile(engine, 0.5):9.2f} "
              f"{quantile(engine, 0.99):8.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True, help="a book, 100 kB or more", metavar="FILE")
    parser.add_argument("-m", "--model", help="a model (default: the bundled one)")
    parser.add_argument("--quantspec", default=ROOT / "build" / "quantspec", help="the program", metavar="FILE")
    parser.add_argument("--turns", type=int, default=100, help="(default: 100)", metavar="N")
    parser.add_argument("--ctx", type=int, default=16384, help="tokens at the end (default: 16384)", metavar="N")
    parser.add_argument("-n", "--predict", type=int, default=64, help="written a turn (default: 64)", metavar="N")
    parser.add_argument("--kill", type=float, default=0.3, help="the share of runs that are (default: 0.3)",
                        metavar="SHARE")
    parser.add_argument("--seed", type=int, default=1, help="of the kills (default: 1)", metavar="N")
    parser.add_argument("-t", "--threads", type=int, default=0, metavar="N")
    args = parser.parse_args()
    book = Path(args.text).read_text(errors="replace")
    model = ["-m", str(args.model)] if args.model else []
    sample = subprocess.run([args.quantspec, "tokenize", "--json", "-p", book[:20000], *model], check=True,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    per_token = 20000 / len(json.loads(sample)["tokens"])
    size = int((args.ctx * 0.97 / args.turns - args.predict) * per_token)
    if size < 20:
        sys.exit(f"agent_session: {args.turns} turns of {args.predict} tokens leave no room in {args.ctx}")
    pieces = [book[i * size:(i + 1) * size] for i in range(args.turns)]
    print("times in s; whole: from the program's start; read: of the engine\n"
          "             turns  kills  turn 1     whole p50  p99       read p50  p99")
    with tempfile.TemporaryDirectory() as folder:
        plain = Agent(args, Path(folder) / "plain").play(pieces)
        plain.report("undisturbed")
        killed = Agent(args, Path(folder) / "killed", args.seed).play(pieces)
        killed.report("killed")
        left = [path.name for path in Path(folder).iterdir()]
        print(f"session: {(Path(folder) / 'plain').stat().st_size / 1e6:.1f} MB; files that are left: "
              f"{', '.join(sorted(left))}")
    if plain.texts != killed.texts:
        differs = next(i for i, (a, b) in enumerate(zip(plain.texts, killed.texts)) if a != b)
        sys.exit(f"agent_session: the texts differ, from turn {differs + 1} on")
    print("the texts are the same")


if __name__ == "__main__":
    main()
