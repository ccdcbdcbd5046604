#!/usr/bin/env python3
"""Compares quantspec serve with llama.cpp's llama-server, on one file and this processor.

    tools/peers_serve.py MODEL.gguf --text BOOK.txt
    tools/peers_serve.py MODEL.gguf --text BOOK.txt --cases one,turns --rounds 1

Both get the same requests to /v1/chat/completions, greedy and streamed, in turns:
  one      a conversation alone: a prompt of 500 tokens or so, 256 to write
  streams  8 at once: prompts of 100 to 800, 128 to write each
  long     4 at once: prompts of nearly --long tokens, 128 to write each
  turns    6 turns about a text of half of --long, then the last on a cold cache
  chat     4 turns of 256 tokens, each --think seconds after the answer before it
  late     4 that write 256 tokens while a prompt of nearly --long comes
tools/real_models.sh builds llama.cpp. Nothing else should run meanwhile. Needs the
standard library only.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

from peers.programs import Programs, ROOT, load_average, median, note, physical_cores, shown_rows
from peers.serving import Server, about_run, ask, heading, run, write_out

BYTES_PER_TOKEN = 4.0  # of English, about


def parse_args():
    real = Path(os.environ.get("QUANTSPEC_REAL", ROOT.parent / "real"))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL.gguf", help="what both read")
    parser.add_argument("--text", required=True, metavar="FILE", type=Path,
                        help="what prompts are cut from, 200 kB or more of English")
    parser.add_argument("--cases", default=",".join(CASES), help="which (default: all)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="of everything (default: 3)")
    parser.add_argument("--long", type=int, default=7500, metavar="N",
                        help="tokens of long prompts, about (default: 7500)")
    parser.add_argument("--ctx", type=int, default=8192, metavar="N",
                        help="context of a request (default: 8192)")
    parser.add_argument("--think", type=float, default=5, metavar="N",
                        help="seconds between turns of a chat (default: 5)")
    parser.add_argument("--llama-options", default="", metavar="TEXT",
                        help="more options of llama-server, as '-ctk q8_0 -ctv q8_0'")
    parser.add_argument("--chat-template", metavar="FILE", help="for both, of a model that has none")
    parser.add_argument("--llama", metavar="DIR", default=real / "llama.cpp/build/bin",
                        help="llama.cpp's programs (default: of tools/real_models.sh)")
    parser.add_argument("--quantspec", metavar="FILE", default=ROOT / "build/quantspec",
                        help="our program (default: build/quantspec)")
    parser.add_argument("-t", "--threads", type=int, default=physical_cores(), metavar="N",
                        help="of both (default: physical cores)")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="JSON of all of it")
    parser.add_argument("-v", "--verbose", action="store_true", help="print what is run")
    args = parser.parse_args()
    unknown = [case for case in args.cases.split(",") if case not in CASES]
    if unknown:
        parser.error(f"--cases: {unknown[0]!r} is none of {', '.join(CASES)}")
    if args.text.stat().st_size < 8 * args.long * BYTES_PER_TOKEN:
        parser.error(f"--text: {args.text} is too short for prompts of {args.long} tokens")
    return args


class Texts:
    """Passages that no two prompts of a round share; those of both servers are the same."""

    def __init__(self, path):
        self.text = path.read_text(errors="replace")
        self.at = 0

    def passage(self, tokens):
        size = int(tokens * BYTES_PER_TOKEN)
        if self.at + size > len(self.text):
            self.at = self.at % 1009 + 1  # another cut than before
        self.at += size
        return self.text[self.at - size:self.at]


def request(text, tokens, **more):
    messages = [{"role": "user", "content": f"Go on with this text:\n\n{text}"}]
    return {"messages": messages, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **more}


def share(values, part):
    values = sorted(values)
    return values[min(len(values) - 1, int(part * len(values)))] if values else 0.0


def measures(answers):
    begin = min(answer.begin for answer in answers)
    end = max(answer.begin + answer.times[-1] for answer in answers)
    gaps = [gap for answer in answers for gap in answer.gaps()]
    return {
        "tokens_per_second": sum(answer.tokens for answer in answers) / (end - begin),
        "first_token_s": median([answer.first() for answer in answers]),
        "gap_p50_ms": 1e3 * share(gaps, 0.5),
        "gap_p99_ms": 1e3 * share(gaps, 0.99),
        "prompt_tokens": sum(answer.prompt_tokens for answer in answers),
        "tokens": sum(answer.tokens for answer in answers),
    }


async def together(server, bodies):
    return await asyncio.gather(*(ask(server, body) for body in bodies))


def one(server, texts, args):
    return measures(run(together(server, [request(texts.passage(450), 256)])))


def streams(server, texts, args):
    return measures(run(together(server, [request(texts.passage(100 * i), 128) for i in range(1, 9)])))


def long(server, texts, args):
    return measures(run(together(server, [request(texts.passage(args.long), 128) for _ in range(4)])))


def turns(server, texts, args):
    """Six turns about a text of half of the context."""
    messages, firsts = [], []
    for turn in range(6):
        content = texts.passage(60 if turn > 0 else args.long / 2)
        messages.append({"role": "user", "content": content})
        body = {"messages": messages, "max_tokens": 32, "temperature": 0, "ignore_eos": True}
        answer = run(ask(server, body))
        firsts.append(answer.first())
        messages = [*messages, {"role": "assistant", "content": answer.text}]
    # The same but for its first words: nothing of it is known.
    cold = [{"role": "user", "content": "Another. " + messages[0]["content"]}, *messages[1:-1]]
    again = run(ask(server, {**body, "messages": cold}))
    return {"first_token_s": firsts[-1], "cold_first_token_s": again.first(),
            "cold_over_warm": again.first() / firsts[-1], "prompt_tokens": again.prompt_tokens,
            "first_tokens_s": firsts}


def chat(server, texts, args):
    """What somebody waits for who reads an answer before he asks on."""
    messages, firsts = [], []
    for turn in range(4):
        if turn > 0:
            time.sleep(args.think)
        messages.append({"role": "user", "content": texts.passage(450 if turn == 0 else 30)})
        answer = run(ask(server, {"messages": messages, "max_tokens": 256, "temperature": 0, "ignore_eos": True}))
        firsts.append(answer.first())
        messages = [*messages, {"role": "assistant", "content": answer.text}]
    return {"first_token_s": median(firsts[1:]), "first_tokens_s": firsts, "prompt_tokens": answer.prompt_tokens}


async def late_prompt(server, bodies, prompt):
    writing = [asyncio.create_task(ask(server, body)) for body in bodies]
    await asyncio.sleep(2)
    read = await ask(server, prompt)
    return await asyncio.gather(*writing), read


def late(server, texts, args):
    bodies = [request(texts.passage(100), 256) for _ in range(4)]
    answers, read = run(late_prompt(server, bodies, request(texts.passage(args.long), 1)))
    until = read.begin + read.first()
    gaps = [gap for answer in answers for gap in answer.gaps(read.begin, until)]
    return {"gap_p50_ms": 1e3 * share(gaps, 0.5), "gap_p99_ms": 1e3 * share(gaps, 0.99),
            "gaps": len(gaps), "first_token_s": read.first(), "prompt_tokens": read.prompt_tokens}


CASES = {"one": one, "streams": streams, "long": long, "turns": turns, "chat": chat, "late": late}
# Of each case: what is compared, and whether more is better.
COMPARED = {
    "one": [("tokens_per_second", True), ("first_token_s", False), ("gap_p99_ms", False)],
    "streams": [("tokens_per_second", True), ("first_token_s", False), ("gap_p99_ms", False)],
    "long": [("tokens_per_second", True), ("first_token_s", False), ("gap_p99_ms", False)],
    "turns": [("first_token_s", False), ("cold_first_token_s", False), ("cold_over_warm", True)],
    "chat": [("first_token_s", False)],
    "late": [("gap_p50_ms", False), ("gap_p99_ms", False), ("first_token_s", False)],
}


def options_of(args, name, slots):
    common = ["-m", args.model, "-t", args.threads]
    template = args.chat_template
    if name == "quantspec":
        ours = ["--chat-template", template] if template else []
        return ["serve", *common, "-c", args.ctx, "--parallel", slots, "-q", *ours]
    theirs = ["--jinja", "--chat-template-file", template] if template else []
    return [*common, "-c", args.ctx * slots, "-np", slots, "-fa", "on", "--no-webui", *theirs,
            *args.llama_options.split()]


def measure(programs, args, folder):
    found = {case: {"quantspec": [], "llama-server": []} for case in args.cases.split(",")}
    for round_number in range(args.rounds):
        for case, of_case in found.items():
            for name in of_case if round_number % 2 == 0 else reversed(of_case):
                texts = Texts(args.text)
                texts.at = round_number * 9001 + 1000 * list(found).index(case)
                options = options_of(args, name, 8 if case == "streams" else 5)
                with Server(programs, name, options, folder / f"{name}.log") as server:
                    run(ask(server, request("Hello.", 4)))
                    load = load_average()
                    row = CASES[case](server, texts, args)
                    row |= {"memory_bytes": server.peak_memory(), "load": load}
                of_case[name].append(row)
                note(f"round {round_number + 1}, {case}, {name}: "
                     + ", ".join(f"{key} {row[key]:.4g}" for key, _ in COMPARED[case]))
    return found


def ratio(ours, theirs, more_is_better):
    return ours / theirs if more_is_better else theirs / ours


def shown(found):
    rows = [["case", "of the median", "quantspec", "llama-server", "ahead by", "rounds"]]
    for case, of_case in found.items():
        for key, more in COMPARED[case]:
            ours = [row[key] for row in of_case["quantspec"]]
            theirs = [row[key] for row in of_case["llama-server"]]
            each = sorted(ratio(a, b, more) for a, b in zip(ours, theirs))
            rows.append([case, key, f"{median(ours):.4g}", f"{median(theirs):.4g}",
                         f"{median(each):.2f}x", f"{each[0]:.2f} to {each[-1]:.2f}"])
    return shown_rows(rows)


def main():
    args = parse_args()
    programs = Programs(args)
    about = {**about_run(programs, args), "llama_options": args.llama_options}
    with tempfile.TemporaryDirectory(prefix="peers_serve.") as folder:
        found = measure(programs, args, Path(folder))
    options = f"; llama-server with {args.llama_options}" if args.llama_options else ""
    print(f"{heading(about)}{options}.\n\n{shown(found)}")
    write_out(args, "serve", {**about, "cases": found})


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("peers_serve: stopped")
