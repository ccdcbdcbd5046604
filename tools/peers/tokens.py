"""Greedy tokens of both after prompts of twenty kinds, and how near the two likeliest stood where they part."""

import json
import urllib.error
import urllib.request

from .prompts import prompts_of_all_kinds
from .programs import fail, median, note, shown_rows
from .serving import Server

CANDIDATES = 20  # of whose probabilities llama-server tells


class Llama(Server):
    """llama-server on this machine, as long as the block runs."""

    def __init__(self, programs, args, folder):
        super().__init__(programs, "llama-server", [
            "-m", args.model, "-t", args.threads, "-c", 4096, "-np", 1, "-fa", "off", "--host", "127.0.0.1",
            "--no-ui"], folder / "server.log")

    def ask(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            fail(f"llama-server, {path}: {error.code} {error.read().decode(errors='replace')[:300]}")

    def tokenize(self, text):
        return self.ask("/tokenize", {"content": text, "add_special": True, "parse_special": False})["tokens"]

    def continue_greedily(self, tokens, count):
        """Its tokens, up to an end of text, and for each the likeliest candidates' logarithms of probability."""
        answer = self.ask("/completion", {
            "prompt": tokens, "n_predict": count, "temperature": 0, "n_probs": CANDIDATES,
            "return_tokens": True, "cache_prompt": False})
        probabilities = [{c["id"]: c["logprob"] for c in p["top_logprobs"]}
                         for p in answer["completion_probabilities"]]
        return answer["tokens"], probabilities


def ours(programs, args, path):
    """The prompt's tokens and the greedy ones."""
    model = args.ours or args.model
    prompt = programs.run("quantspec", "tokenize", "-m", model, "-f", path, "--ids")
    found = programs.json(
        "quantspec", "generate", "-m", model, "-f", path, "-n", args.tokens, "--temp", 0, "--top-k", 0,
        "--top-p", 1, "--min-p", 0, "--repeat-penalty", 1, "--ignore-eos", "--draft-len", 0, "--kv-cache",
        "full", "-t", args.threads, "--json", "-q")
    return list(map(int, prompt.split())), found["tokens"]


def first_difference(a, b):
    """NOTE: theirs end with an end of text, after which ours go on: its `ignore_eos` forbids that token."""
    for i, (x, y) in enumerate(zip(a, b)):
        if x != y:
            return i
    return None


def one(server, programs, args, kind, text, folder):
    path = folder / "prompt.txt"
    path.write_text(text + "\n")  # of which the last newline is dropped
    prompt, our_tokens = ours(programs, args, path)
    row = {"kind": kind, "prompt_tokens": len(prompt), "same_prompt": server.tokenize(text) == prompt}
    their_tokens, probabilities = server.continue_greedily(prompt, args.tokens)
    at = first_difference(our_tokens, their_tokens)
    row |= {"ours": our_tokens, "theirs": their_tokens, "differs_at": at}
    if at is not None:
        known = probabilities[at]
        mine = known.get(our_tokens[at])
        # The difference of logits: logarithms of probability share the normalization.
        row["gap"] = None if mine is None else known[their_tokens[at]] - mine
    return row


def main(programs, args, gguf, folder):
    rows = []
    with Llama(programs, args, folder) as server:
        for kind, text in prompts_of_all_kinds().items():
            note(f"tokens: {kind}")
            rows.append(one(server, programs, args, kind, text, folder))
    table = [["prompt", "tokens", "same", "logit gap there", "tokenized"]]
    for row in rows:
        at, gap = row["differs_at"], row.get("gap")
        shown = "" if at is None else f"{gap:.4f}" if gap is not None else f"not of the first {CANDIDATES}"
        table.append([row["kind"], str(row["prompt_tokens"]), "all" if at is None else str(at), shown,
                      "alike" if row["same_prompt"] else "DIFFERENTLY"])
    print(f"Greedy tokens, {args.tokens} after each prompt: how many are the same, and how far")
    print("llama.cpp's logits of its token and of ours stand apart where they part.\n")
    print(shown_rows(table))
    gaps = [row["gap"] for row in rows if row.get("gap") is not None]
    print(f"\nThe same to the end: {sum(row['differs_at'] is None for row in rows)} of {len(rows)}.", end="")
    print(f" Gaps where they part: median {median(gaps):.4f}, most {max(gaps):.4f}." if gaps else "")
    if not all(row["same_prompt"] for row in rows):
        print("Prompts that are tokenized differently were given to both with our tokens.")
    return {"candidates": CANDIDATES, "rows": rows}
