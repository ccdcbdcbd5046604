#!/usr/bin/env python3
"""Compares quantspec with llama.cpp's llama-server where answers copy from their prompts.

    tools/peers_copy.py MODEL.gguf --text BOOK.txt

Both get the same greedy requests, one at a time: code that is written again with other
names, in one turn and in two, tables, quotes, and prose, which copies nothing; the first
lines of answers are given. quantspec runs with lookups and without, llama-server without
drafts and with each of its kinds of n-grams. Tokens a second are those after the first.
tools/real_models.sh builds llama.cpp. Nothing else should run meanwhile. Needs the standard
library only.
"""

import argparse
import json
import os
import sys
import tempfile
import urllib.request
from pathlib import Path

from peers.copying import tasks
from peers.programs import Programs, ROOT, median, note, physical_cores, shown_rows
from peers.serving import Server, about_run, ask, heading, run, write_out

OURS = {"auto": [], "auto+nolookup": ["--plan", "auto+nolookup"], "lookup": ["--plan", "lookup"],
        "plain": []}
THEIRS = {"none": [], **{f"ngram-{kind}": ["--spec-type", f"ngram-{kind}"]
                         for kind in ("simple", "map-k", "map-k4v", "mod", "cache")}}


def parse_args():
    real = Path(os.environ.get("QUANTSPEC_REAL", ROOT.parent / "real"))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL.gguf", help="what both read")
    parser.add_argument("--text", required=True, metavar="FILE", type=Path,
                        help="a book, 200 kB or more of English")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="of everything (default: 2)")
    parser.add_argument("-n", "--predict", type=int, default=192, metavar="N",
                        help="tokens of an answer (default: 192)")
    parser.add_argument("--llama", metavar="DIR", default=real / "llama.cpp/build/bin",
                        help="llama.cpp's programs (default: of tools/real_models.sh)")
    parser.add_argument("--quantspec", metavar="FILE", default=ROOT / "build/quantspec",
                        help="our program (default: build/quantspec)")
    parser.add_argument("-t", "--threads", type=int, default=physical_cores(), metavar="N",
                        help="of both (default: physical cores)")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="JSON of all of it")
    parser.add_argument("-v", "--verbose", action="store_true", help="print what is run")
    return parser.parse_args()


def template(server, messages):
    body = json.dumps({"messages": messages}).encode()
    asked = urllib.request.Request(f"http://127.0.0.1:{server.port}/apply-template", body,
                                   {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=60) as reply:
        return json.load(reply)["prompt"]


def prompts_of(programs, args, folder):
    """As text, the same for both: by our rendering of the model's template."""
    with Server(programs, "quantspec", ["serve", "-m", args.model, "-q"], folder / "log") as server:
        return [(task.kind, template(server, task.messages) + task.begin)
                for task in tasks(args.text.read_text(errors="replace"))]


def measure_setting(programs, args, name, options, more, prompts, folder):
    rows = {}
    with Server(programs, name, options, folder / f"{name}.log") as server:
        run(ask(server, {"prompt": "Hello.", "max_tokens": 4, "temperature": 0}))
        for kind, prompt in prompts:
            answer = run(ask(server, {"prompt": prompt, "max_tokens": args.predict, "temperature": 0,
                                      "ignore_eos": True, **more}))
            seconds = answer.times[-1] - answer.first()
            rows.setdefault(kind, []).append({"tokens_per_second": (answer.tokens - 1) / seconds,
                                              "prompt_tokens": answer.prompt_tokens, "text": answer.text})
    return rows


def measure(programs, args, folder):
    prompts = prompts_of(programs, args, folder)
    common = ["-m", args.model, "-t", args.threads]
    settings = {f"quantspec, {name}": ("quantspec", ["serve", *common, "-c", 8192, "--parallel", 1, "-q", *more],
                                       {"draft_len": 0} if name == "plain" else {})
                for name, more in OURS.items()}
    settings |= {f"llama-server, {name}": ("llama-server", [*common, "-c", 8192, "-np", 1, "-fa", "on",
                                                            "--no-webui", *more], {})
                 for name, more in THEIRS.items()}
    found = {name: [] for name in settings}
    for number in range(args.rounds):
        order = list(settings) if number % 2 == 0 else list(reversed(settings))
        for name in order:
            found[name].append(measure_setting(programs, args, *settings[name], prompts, folder))
            note(f"round {number + 1}, {name}: " + ", ".join(
                f"{kind} {rate(found[name], kind):.4g}" for kind in found[name][0]))
    return found


def rate(rounds, kind):
    """Of a task the median of its rounds; of a kind the median of its tasks."""
    return median([median([one[kind][i]["tokens_per_second"] for one in rounds])
                   for i in range(len(rounds[0][kind]))])


def shown(found):
    kinds = list(next(iter(found.values()))[0])
    rows = [["tokens/s", *kinds]]
    rows += [[name, *(f"{rate(rounds, kind):.4g}" for kind in kinds)] for name, rounds in found.items()]

    def ratios(name, of, others):
        rows.append([name, *(f"{rate(found[of], kind) / max(rate(found[one], kind) for one in others):.2f}x"
                             for kind in kinds)])
    ratios("lookups over none", "quantspec, auto", ["quantspec, auto+nolookup"])
    ratios("ours over plain", "quantspec, auto", ["quantspec, plain"])
    ratios("ours over their best", "quantspec, auto", [name for name in found if name.startswith("llama")])
    return shown_rows(rows)


def parted(found):
    """Ours that are not what plain decoding writes."""
    plain = found["quantspec, plain"][0]
    return sum(one["text"] != plain[kind][i]["text"] for name, rounds in found.items()
               if name.startswith("quantspec") for by_kind in rounds
               for kind, answers in by_kind.items() for i, one in enumerate(answers))


def main():
    args = parse_args()
    programs = Programs(args)
    about = about_run(programs, args)
    with tempfile.TemporaryDirectory(prefix="peers_copy.") as folder:
        found = measure(programs, args, Path(folder))
    print(f"{heading(about)}; {args.rounds} rounds, {args.predict} tokens.\n\n{shown(found)}\n\n"
          f"Texts of quantspec that are not plain decoding's: {parted(found)}.")
    write_out(args, "copy", {**about, "settings": found})


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("peers_copy: stopped")
