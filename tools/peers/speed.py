"""Speed: llama-bench at its best settings and quantspec bench, in turn."""

from .programs import ROOT, load_average, median, note, shown_rows

# Flash attention, type of the cache. Without flash attention there is no 8-bit V.
SETTINGS = {"fa off, f16": ("off", "f16"), "fa on, f16": ("on", "f16"), "fa on, q8_0": ("on", "q8_0")}
PLAIN = ("plain-int8", "plain-fp16")
QUIET = 1.25  # the largest ratio of two rounds' speeds that a quiet machine shows
LEAST_CONTEXT = 2  # of a prompt of ours: what stands for no context


def joined_docs(folder):
    """A text that is long enough for every context: this repository's pages."""
    pages = [p for p in sorted((ROOT / "docs").rglob("*.md")) if not p.name.startswith("results")]
    path = folder / "docs.txt"
    path.write_text("\n\n".join(page.read_text() for page in pages))
    return f"text:{path}"


def contexts_that_fit(args, gguf):
    """The depths, and the prompts' lengths, that both can run."""
    limit = gguf.of_architecture("context_length")
    room = (limit - args.predict - 32) // 256 * 256 if limit else None
    depths, prompts = list(args.depths), list(args.prompts)
    if room is not None:
        for values in depths, prompts:
            for i, value in enumerate(values):
                if value > room:
                    note(f"peers_cpu: the model takes {limit} tokens: {value} becomes {room}")
                    values[i] = room
    return sorted(set(depths)), sorted(set(prompts))


def tests_of(depths, prompts):
    return [("decode", n) for n in depths] + [("prefill", n) for n in prompts]


def run_theirs(programs, args, setting, depths, prompts):
    """Tokens per second of every test."""
    flash, cache = SETTINGS[setting]
    common = ["-m", args.model, "-t", args.threads, "-ngl", 99 if args.gpu else 0, "-fa", flash,
              "-ctk", cache, "-ctv", cache,
              "-r", 1, "-o", "json"]
    rows = []
    if depths:
        rows += programs.json("llama-bench", *common, "-p", 0, "-n", args.predict,
                              "-d", ",".join(map(str, depths)))
    if prompts:
        rows += programs.json("llama-bench", *common, "-n", 0, "-p", ",".join(map(str, prompts)))
    found = {}
    for row in rows:
        test = ("decode", row["n_depth"]) if row["n_gen"] else ("prefill", row["n_prompt"])
        found[test] = row["avg_ts"]
    return found, rows[0]


def run_ours(programs, args, dataset, depths, prompts):
    """The same by plan: tokens per second of every test, and the rows as they came."""
    contexts = sorted({max(LEAST_CONTEXT, n) for n in [*depths, *prompts]})
    report = programs.json(
        "quantspec", "bench", "-m", args.ours or args.model, "-d", dataset, "-t", args.threads, "-q",
        "--backend", "cuda" if args.gpu else "cpu",
        "-c", ",".join(map(str, contexts)), "-n", args.predict, "--plan", args.plan, "--repeat", 1,
        "--temp", args.temp, "-o", "json")
    found = {}
    for row in report["rows"]:
        plan, context = row["plan"], row["context"]
        into = found.setdefault(plan, {})
        depth = 0 if context == LEAST_CONTEXT else context
        if depth in depths:
            into[("decode", depth)] = row["decode_tokens_per_second"]
        if context in prompts and row["prefill_ms"]:
            into[("prefill", context)] = context / row["prefill_ms"] * 1e3
    return found, report


def best_of(rounds, names, test):
    """Which has the best median."""
    known = [name for name in names if all(test in round_[name] for round_ in rounds)]
    return max(known, key=lambda name: median([round_[name][test] for round_ in rounds]), default=None)


def ratio(rounds, ours, theirs, test):
    """Round by round: median, least, most."""
    values = [r["ours"][ours][test] / r["theirs"][theirs][test] for r in rounds]
    return {"median": median(values), "min": min(values), "max": max(values), "values": values}


def compare(rounds, tests, plans):
    rows = []
    for test in tests:
        theirs = best_of([r["theirs"] for r in rounds], list(rounds[0]["theirs"]), test)
        plain = best_of([r["ours"] for r in rounds], PLAIN, test)
        row = {"what": test[0], "tokens": test[1], "llama_cpp_setting": theirs, "plain": plain,
               "llama_cpp": median([r["theirs"][theirs][test] for r in rounds]),
               "plain_tokens_per_second": median([r["ours"][plain][test] for r in rounds]),
               "plain_ratio": ratio(rounds, plain, theirs, test)}
        if test[0] == "decode":
            best = best_of([r["ours"] for r in rounds], plans, test)
            row |= {"plan": best,
                    "plan_tokens_per_second": median([r["ours"][best][test] for r in rounds]),
                    "plan_ratio": ratio(rounds, best, theirs, test)}
        rows.append(row)
    return rows


def size(tokens):
    return f"{tokens // 1024}k" if tokens and tokens % 1024 == 0 else str(tokens)


def shown_ratio(value):
    return "{median:.2f} {min:.2f}-{max:.2f}".format(**value)


def print_tables(rows, rounds, tests):
    table = [["test", "theirs", "plain", "plain/theirs", "draft", "draft/theirs"]]
    for row in rows:
        line = [f"{row['what']} {size(row['tokens'])}", f"{row['llama_cpp']:.1f}",
                f"{row['plain_tokens_per_second']:.1f}", shown_ratio(row["plain_ratio"])]
        line += ([f"{row['plan_tokens_per_second']:.1f}", shown_ratio(row["plan_ratio"])]
                 if "plan" in row else ["", ""])
        table.append(line)
    print(shown_rows(table))
    print("\nllama.cpp's settings, medians:\n")
    heads = [f"{what[0]}{size(tokens)}" for what, tokens in tests]
    table = [["d: decode, p: prefill", *heads]]
    for setting in rounds[0]["theirs"]:
        table.append([setting] + [f"{median([r['theirs'][setting][t] for r in rounds]):.1f}" for t in tests])
    print(shown_rows(table))
    print("\nOurs, medians:\n")
    table = [["plan", *heads]]
    for plan in rounds[0]["ours"]:
        speeds = [[r["ours"][plan].get(test) for r in rounds] for test in tests]
        table.append([plan] + [f"{median(s):.1f}" if None not in s else "" for s in speeds])
    print(shown_rows(table))


def unrest(rounds, rows):
    """How far the rounds' speeds lie apart in what is compared: the largest ratio of two."""
    most = 1.0
    for row in rows:
        test = (row["what"], row["tokens"])
        for side, name in [("theirs", row["llama_cpp_setting"]), ("ours", row["plain"])]:
            values = [r[side][name][test] for r in rounds]
            most = max(most, max(values) / min(values))
    return most


def main(programs, args, gguf, folder):
    depths, prompts = contexts_that_fit(args, gguf)
    tests = tests_of(depths, prompts)
    if not tests:
        return {"rows": []}
    dataset = args.dataset or joined_docs(folder)
    rounds, theirs_report, ours_report = [], None, None
    load = load_average()
    if load > 0.5:
        note(f"peers_cpu: the load is {load:.1f}: other programs run, and times say less")
    for number in range(args.rounds):
        round_ = {"theirs": {}, "ours": {}}
        turns = [*args.settings, "ours"]
        first = number % len(turns)
        for turn in turns[first:] + turns[:first]:
            note(f"round {number + 1} of {args.rounds}: {turn}")
            if turn == "ours":
                round_["ours"], ours_report = run_ours(programs, args, dataset, depths, prompts)
            else:
                round_["theirs"][turn], theirs_report = run_theirs(programs, args, turn, depths, prompts)
        rounds.append(round_)
    plans = [plan for plan in rounds[0]["ours"] if plan not in PLAIN]
    rows = compare(rounds, tests, plans)
    text = "this repository's docs" if not args.dataset else args.dataset.split("/")[-1]
    print(f"Tokens/s, medians of {args.rounds} rounds in turn; ratios are taken within a round:")
    print(f"median, least-most. {args.predict} tokens are decoded, ours at temperature {args.temp}")
    print(f"after {text}. Load before: {load:.1f}.\n")
    print_tables(rows, rounds, tests)
    apart = unrest(rounds, rows)
    if apart > QUIET:
        print(f"\n**Rounds lie up to {apart:.1f}x apart: other programs ran. Not to be quoted.**")
    return {
        "rows": rows,
        "rounds_apart": apart,
        "load": load,
        "rounds": [{side: {name: {f"{w} {n}": v for (w, n), v in found.items()}
                           for name, found in r[side].items()} for side in r} for r in rounds],
        "llama_bench": theirs_report,
        "quantspec": ours_report["meta"],
    }
