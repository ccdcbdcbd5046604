#!/usr/bin/env python3
"""Measures what lookups in earlier answers bring: quantspec serve with --lookup-history and without.

    tools/measure_history.py MODEL.gguf

One client asks for answers of a kind, one after the other, each with other data: programs, tables,
records, stories, and one story again and again. The first of a kind is not counted, and what is kept of
other kinds and temperatures is not found. Both servers take turns. Texts must not differ. Nothing else should run meanwhile. Needs the standard library only.
"""

import argparse
import json
import sys
import tempfile
import urllib.request
from pathlib import Path

from peers.programs import Programs, ROOT
from peers.serving import Server

PEOPLE = ["Anna Berg, 34, nurse in Oslo", "Tom Hill, 51, baker in Leeds", "Mia Costa, 27, pilot in Lisbon",
          "Jan Novak, 45, teacher in Prague", "Eva Lind, 39, farmer in Malmo", "Paul Roux, 62, cook in Lyon"]
CITIES = ["Oslo, Rome, Cairo", "Lima, Paris, Tokyo", "Delhi, Quito, Berlin", "Athens, Seoul, Dublin",
          "Madrid, Hanoi, Vienna", "Lagos, Ottawa, Warsaw"]
TASKS = ["the sum", "the largest element", "the product", "the smallest element", "the mean",
         "the number of elements"]
TOPICS = ["a lighthouse keeper", "a lost dog", "a train in winter", "an old clock", "a girl who paints",
          "a storm at sea"]
KINDS = {
    "programs": [f"Write a Python program with a function that computes {task} of a list, a main function that "
                 "reads numbers from the command line, and error handling." for task in TASKS],
    "tables": [f"Write a Markdown table with the columns City, Country, Continent, Language, Currency, Famous "
               f"for, of these cities: {cities}." for cities in CITIES],
    "records": [f"Write a JSON object with the keys name, age, city, job, email, address, phone, hobbies, "
                f"languages and summary for this person: {person}." for person in PEOPLE],
    "stories": [f"Write a short story about {topic}." for topic in TOPICS],
    "one story": ["Write a short story about a king and his garden."] * 4,
}


def ask(server, prompt, temperature, seed, predict, salt="none"):
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": predict,
            "temperature": temperature, "seed": seed, "cache_salt": salt}
    asked = urllib.request.Request(f"http://127.0.0.1:{server.port}/v1/chat/completions",
                                   json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=300) as reply:
        return json.load(reply)


def parse_args():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL.gguf")
    parser.add_argument("--history", type=int, default=8192, metavar="N", help="tokens (default: 8192)")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="in turn (default: 2)")
    parser.add_argument("-n", "--predict", type=int, default=200, metavar="N",
                        help="tokens of an answer (default: 200)")
    parser.add_argument("--quantspec", metavar="FILE", default=ROOT / "build/quantspec", type=Path,
                        help="the program (default: build/quantspec)")
    parser.add_argument("-v", "--verbose", action="store_true", help="print what is run")
    parser.set_defaults(llama="none")  # Programs'
    return parser.parse_args()


def measure(programs, args, log):
    spent, texts = {}, {}  # by kind, temperature, history: (tokens, ms); by kind, temperature, request
    for turn in range(args.rounds):
        for history in ((0, args.history), (args.history, 0))[turn % 2]:
            options = ["serve", "-m", args.model, "-c", 4096, "--lookup-history", history]
            with Server(programs, "quantspec", options, log) as server:
                ask(server, "Hello", 0, 1, 64)
                for kind, prompts in KINDS.items():
                    for temperature in (0, 0.7):
                        for i, prompt in enumerate(prompts):
                            # A salt of their own: else these prompts were answered before.
                            reply = ask(server, prompt, temperature, 100 + i, args.predict,
                                        f"{kind}, {temperature}")
                            text = reply["choices"][0]["message"]["content"]
                            texts.setdefault((kind, temperature, i), set()).add(text)
                            if i > 0:
                                time = reply["timings"]
                                spent.setdefault((kind, temperature, history), []).append(
                                    (time["predicted_n"], time["predicted_ms"]))
    return spent, texts


def report(args, spent, texts):
    def rate(*key):
        return 1000 * sum(n for n, _ in spent[key]) / sum(ms for _, ms in spent[key])

    print("| answers | temperature | without, tokens/s | with | |\n|---|--:|--:|--:|--:|")
    for kind in KINDS:
        for temperature in (0, 0.7):
            without, given = rate(kind, temperature, 0), rate(kind, temperature, args.history)
            print(f"| {kind} | {temperature} | {without:.0f} | {given:.0f} | {given / without:.2f}x |")
    different = [key for key, found in texts.items() if len(found) > 1]
    print(f"\nTexts that differ: {different or 'none'}.")
    sys.exit(1 if different else 0)


def main():
    args = parse_args()
    programs = Programs(args)
    with tempfile.TemporaryDirectory(prefix="measure_history.") as folder:
        spent, texts = measure(programs, args, Path(folder) / "log")
    report(args, spent, texts)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("measure_history: stopped")
