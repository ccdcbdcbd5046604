#!/usr/bin/env python3
"""Has quantspec serve write answers with receipts, and quantspec verify check them and forgeries of them.

    tools/verify_receipts.py                the bundled model, 1,000 answers of 64 tokens
    tools/verify_receipts.py -m MODEL.gguf --answers 100 --tokens 128

Half of the answers are greedy, half have a seed. They are written 8 at once, and one after another as well, a
tenth of them. In each forgery one token is another. All true answers must pass, and each forgery be named
with its place. Prints how fast tokens were written and checked, prompts and all. Nothing else should run
meanwhile. Needs the standard library only. Exit code 1: an answer was misjudged.
"""

import argparse
import concurrent.futures
import copy
import json
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from peers.programs import Programs, ROOT, physical_cores, processor
from peers.serving import Server

WORDS = "night wind river stone garden letter winter house horse captain road island fire window".split()


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", help="(default: the bundled one)", metavar="MODEL")
    parser.add_argument("--answers", type=int, default=1000, metavar="N")
    parser.add_argument("--tokens", type=int, default=64, help="of an answer (default: 64)", metavar="N")
    parser.add_argument("--quantspec", metavar="FILE", default=ROOT / "build/quantspec", help="our program")
    parser.add_argument("--seed", type=int, default=1, help="of the forgeries (default: 1)", metavar="N")
    parser.add_argument("-v", "--verbose", action="store_true", help="print what is run")
    args = parser.parse_args()
    args.llama = ""
    return args


def body_of(args, i):
    words = " ".join(WORDS[(i * k + i // 7) % len(WORDS)] for k in range(1, 6))
    how = {"temperature": 0} if i % 2 == 0 else {"temperature": 0.9, "seed": i}
    return {"prompt": f"{i}. The {words} of the", "max_tokens": args.tokens, "ignore_eos": True,
            "receipt": True, **how}


def write(port, body):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as reply:
        return json.loads(reply.read())


def verify(args, replies, folder):
    """What verify says of each, and its seconds."""
    files = []
    for i, reply in enumerate(replies):
        files.append(folder / f"{i}.json")
        files[-1].write_text(json.dumps(reply))
    command = [str(args.quantspec), "verify", "--json", "-q", *map(str, files)]
    if args.model:
        command += ["-m", args.model]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    result = json.loads(done.stdout)
    if (done.returncode == 1) != (result["wrong"] > 0):
        sys.exit(f"verify_receipts: verify ended with {done.returncode}")
    return result["answers"], result["seconds"]


def main():
    args = parse_args()
    tokens = args.answers * args.tokens
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        programs = Programs(args)
        command = ["serve", "--quiet"] + (["-m", args.model] if args.model else [])
        with Server(programs, "quantspec", command, folder / "log") as server:
            bodies = [body_of(args, i) for i in range(args.answers)]
            for body in bodies[:4]:
                write(server.port, {**body, "prompt": "Warm up"})
            few = bodies[:max(1, args.answers // 10)]
            start = time.monotonic()
            alone = [write(server.port, {**body, "cache_salt": "alone"}) for body in few]
            alone_speed = len(few) * args.tokens / (time.monotonic() - start)
            start = time.monotonic()
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                replies = list(pool.map(lambda body: write(server.port, body), bodies))
            speed = tokens / (time.monotonic() - start)
        for one, other in zip(alone, replies):
            if one["choices"][0]["text"] != other["choices"][0]["text"]:
                sys.exit("verify_receipts: an answer depends on what runs beside it")
        true, seconds = verify(args, replies, folder)
        checked_speed = tokens / seconds
        rng = random.Random(args.seed)
        forged, places = [], []
        vocabulary = max(max(reply["receipts"][0]["tokens"]) for reply in replies)
        for reply in replies:
            reply = copy.deepcopy(reply)
            ids = reply["receipts"][0]["tokens"]
            place = rng.randrange(len(ids))
            old = ids[place]
            while ids[place] == old:
                ids[place] = rng.randrange(vocabulary + 1)
            forged.append(reply)
            places.append(place)
        found, _ = verify(args, forged, folder)
    passed = sum(answer["ok"] for answer in true)
    named = sum(answer["differs"] == place for answer, place in zip(found, places))
    print(f"{processor()}, {physical_cores()} cores; tokens/s, prompts and all")
    print(f"written: {alone_speed:.0f} one after another, {speed:.0f} by 8 at once; checked: {checked_speed:.0f}, "
          f"{checked_speed / alone_speed:.1f} and {checked_speed / speed:.1f} times as fast")
    print(f"{passed} of {args.answers} true answers pass; of {args.answers} forgeries {named} are named with their "
          "place")
    if passed != args.answers or named != args.answers:
        sys.exit(1)


if __name__ == "__main__":
    main()
