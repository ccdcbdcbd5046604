"""Perplexity of the same tokens in the same windows, by both.

llama-perplexity cuts a text into windows of C tokens that follow one another, puts BOS in place of the first
one (if the file says so), and scores the second half: the tokens at the positions C/2 + 1 to C - 1 (C/2
rounded down). `quantspec eval perplexity` overlaps windows by their first token where the stride is C - 1,
puts BOS in its place, and reports by position in powers of two. So with C = 2^k - 1 its last row, positions
2^(k-1) to C - 1, counts what llama-perplexity counts.

That leaves the windows' starts, of which theirs are a token later each time. llama-perplexity reads tokens, not
a text, where it is to compare with logits that were kept: so it gets a file of our windows, with logits of
zero. Of what it then says only the perplexity means anything.
"""

import math
import re
import struct

from .programs import fail, median, note, shown_rows

ALL = "fp16 KV"  # the variant whose KV is llama.cpp's


def our_report(programs, args, text):
    context = args.context
    return programs.json(
        "quantspec", "eval", "perplexity", "-m", args.ours or args.model, "-d", f"wikitext:{text}",
        "-c", context, "--stride", context - 1, "--tokens", args.windows * (context - 1), "-t",
        args.threads, "-q", "-o", "json")


def last_rows(report, first):
    """By variant, the row of the positions that llama-perplexity scores."""
    return {row["variant"]: row for row in report["rows"]
            if row["kind"] == "perplexity_by_position" and row["first_position"] == first}


def our_tokens(programs, args, text):
    out = programs.run("quantspec", "tokenize", "-m", args.ours or args.model, "-f", text, "--ids")
    return list(map(int, out.split()))


def begins_with_bos(tokens, gguf):
    """Whether both begin windows with BOS; an end where they do not agree."""
    says = gguf.values.get("tokenizer.ggml.add_bos_token")
    has = tokens[0] == gguf.values.get("tokenizer.ggml.bos_token_id")
    if says is not None and says != has:
        fail(f"the file says BOS: {says}, but quantspec tokenize {'puts' if has else 'puts none'}")
    return has


def cut(tokens, args, text, count, has_bos):
    windows = []
    for i in range(count):
        begin = i * (args.context - 1)
        window = tokens[begin : begin + args.context]
        if len(window) < args.context:
            fail(f"{text} has {len(tokens)} tokens, of which {count} windows cannot be cut")
        windows.append([tokens[0], *window[1:]] if has_bos else window)
    return windows


def write_windows(path, windows, vocabulary):
    """A file as llama-perplexity keeps tokens and logits in; logits of zero are a hole in it."""
    context = len(windows[0])
    with open(path, "wb") as file:
        file.write(b"_logits_" + struct.pack("<Iii", context, vocabulary, len(windows)))
        for window in windows:
            file.write(struct.pack(f"<{context}i", *window))
        row = 2 * (2 * ((vocabulary + 1) // 2) + 4)
        file.truncate(file.tell() + len(windows) * (context - 1 - context // 2) * row)


def their_perplexities(programs, args, path):
    """After each window: of all so far; and of all, to six digits."""
    out = programs.run(
        "llama-perplexity", "-m", args.model, "-t", args.threads, "-c", args.context, "-b", args.context,
        "-fa", "off", "--kl-divergence", "--kl-divergence-base", path)
    so_far = [float(x) for x in re.findall(r"^ *\d+ +([\d.]+) ±", out, re.M)]
    whole = re.search(r"Mean PPL\(Q\) +: +([\d.]+) ± +([\d.]+)", out)
    if not whole:
        fail(f"llama-perplexity printed no perplexity: {out[-300:]!r}")
    return so_far, float(whole[1]), float(whole[2])


def main(programs, args, gguf, folder):
    context = args.context
    if context < 3 or (context + 1) & context:
        fail(f"--context {context}: must be a power of two less one, such as 511 (docs/real-models.md)")
    first = (context + 1) // 2
    note("quantspec eval perplexity")
    report = our_report(programs, args, args.perplexity)
    rows = last_rows(report, first)
    count = len(rows[ALL]["nll_values"])
    vocabulary = gguf.values["tokenizer.ggml.tokens"]
    tokens = our_tokens(programs, args, args.perplexity)
    has_bos = begins_with_bos(tokens, gguf)
    windows = cut(tokens, args, args.perplexity, count, has_bos)
    note("llama-perplexity")
    path = folder / "windows.bin"
    write_windows(path, windows, vocabulary)
    so_far, theirs, error = their_perplexities(programs, args, path)
    path.unlink()
    begin = ", BOS first" if has_bos else ""
    print(f"Perplexity of the same {rows[ALL]['tokens']} tokens: positions {first} to {context - 1} of")
    print(f"{count} windows of {context} tokens{begin}.\n")
    table = [["", "perplexity", "nats/token", "less llama.cpp"],
             ["llama.cpp, f16 cache", f"{theirs:.4f}", f"{math.log(theirs):.5f}", ""]]
    found = {}
    for variant, row in rows.items():
        difference = row["nll"] - math.log(theirs)
        found[variant] = {"nll": row["nll"], "less_llama_cpp": difference}
        table.append([f"ours, {variant}", f"{math.exp(row['nll']):.4f}", f"{row['nll']:.5f}",
                      f"{difference:+.5f}"])
    print(shown_rows(table))
    each = by_window(so_far, rows[ALL]["nll_values"])
    print(f"\nWindow by window, {ALL} less llama.cpp: median {median(each):+.4f}, "
          f"{min(each):+.4f} to {max(each):+.4f}.")
    print(f"llama.cpp's own error of the mean: {error / theirs:.4f} nats.")
    return {"context": context, "windows": count, "bos": bool(has_bos), "tokens": rows[ALL]["tokens"],
            "llama_cpp": {"perplexity": theirs, "nll": math.log(theirs), "nll_error": error / theirs},
            "ours": found, "by_window": each, "quantspec": report["meta"]}


def by_window(so_far, ours):
    """Differences of each window's mean; theirs are made of perplexities with four digits."""
    differences, before = [], 0.0
    for i, (perplexity, nll) in enumerate(zip(so_far, ours)):
        total = (i + 1) * math.log(perplexity)
        differences.append(nll - (total - before))
        before = total
    return differences
