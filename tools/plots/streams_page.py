"""results/streams: what quantspec bench --streams and llama-batched-bench measured of one file on one GPU,
gpu_rounds --streams of a model of the same shape, and gpu_bench of its attention beside FlashInfer's. Writes its
README.md."""

import json

from plots.gpu_tables import Rounds, context_name, times
from plots.tables import prose, table

PLANS = ("plain-fp16", "plain-int8", "quantspec", "auto")


def reports_of(folder):
    """Of quantspec, by context and streams."""
    reports = [json.loads(path.read_text()) for path in folder.glob("ours-*.json")]
    return sorted(reports, key=lambda report: (report["meta"]["contexts"], report["meta"]["streams"]))


class Beside:
    """What llama-batched-bench measured, repetition by repetition. Its rows do not say with which cache; `cache` was
    added to them."""

    def __init__(self, folder):
        data = json.loads((folder / "llama-batched-bench.json").read_text())
        self.program, self.run, self.rows = data["program"], data["run"], data["rows"]

    def speeds(self, context, streams, cache):
        """Tokens a second of all streams, of every repetition."""
        asked = (context, streams, cache)
        return [row["speed_tg"] for row in self.rows if (row["pp"], row["pl"], row["cache"]) == asked]


def fastest(speeds):
    """And, where it ran more than once, the slowest."""
    return f"{max(speeds):.0f}" + (f" ({min(speeds):.0f})" if len(speeds) > 1 else "")


def measured(reports, beside):
    lines = []
    for report in reports:
        rows = {(row["context"], row["streams"], row["plan"]): row for row in report["rows"]}
        for context, streams in dict.fromkeys(key[:2] for key in rows):
            # NOTE: a report may have no `quantspec`, as a GPU may not hold the caches of all plans.
            ours = {plan: rows[context, streams, plan]["output_tokens_per_second"] for plan in PLANS
                    if (context, streams, plan) in rows}
            full, codes = (beside.speeds(context, streams, cache) for cache in ("f16", "q8_0"))
            lines.append([f"{streams} x {context_name(context)}", fastest(full), fastest(codes),
                          *(f"{ours[plan]:.0f}" if plan in ours else "-" for plan in PLANS),
                          *(times(ours[plan] / max(full)) for plan in ("plain-fp16", "plain-int8", "auto")),
                          times(ours["plain-int8"] / max(codes))])
    return table(["streams", "llama.cpp, fp16 cache: fastest (slowest)", "llama.cpp, 8-bit cache", *PLANS,
                  "plain-fp16 over its fp16", "plain-int8 over its fp16", "auto over its fp16",
                  "plain-int8 over its 8-bit"], lines)


def rounds(folder):
    """Of gpu_rounds --streams, a section; nothing where there are none."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("rounds-*.json"))]
    if not found:
        return ""
    lines = []
    key = lambda report: (*report.order(), report.streams, *report.contexts, report.acceptance)
    for report in sorted(map(Rounds, found), key=key):
        for context in report.contexts:
            line = [f"{report.streams} x {context_name(context)}, {report.size}, {report.bits} bits", str(report.acceptance),
                    *(f"{report.speed(context, name):.0f}" for name in ("plain, fp16", "plain, 8-bit"))]
            for name in ("dense", "sparse"):
                run = report.best(context, name)
                line += [f"{run['tokens_per_second']:.0f} ({run['draft_len']})", times(run["speed_up"]),
                         times(report.expected_speed_up(context, run)),
                         times(report.over_8_bit(context, name))] if run else ["-"] * 4
            lines.append(line)
    hardware = {report["run"]["hardware"] for report in found}
    if len(hardware) != 1:
        raise ValueError(f"{folder}: its rounds are not of one kind of GPU")
    dates = " and ".join(sorted({report["run"]["date"] for report in found}))
    commands = "\n".join(dict.fromkeys(f"- {report['run']['commit']}: `{command}`"
                                       for report in sorted(found, key=lambda report: report["run"]["commit"])
                                       for command in report["run"]["commands"]))
    return f"""
## Rounds at a given acceptance

{prose(f'''{hardware.pop()}, {dates}. Random weights in bf16 (16 bits), or rounded to 8; drafted tokens are accepted
with the probability in the second column, not judged. Tokens a second of all streams, of drafts at the best of the
lengths in the commands; *dense* drafts read all of the cache, *sparse* ones 4096 tokens. How many of some hundred
tokens pass is chance: *expected* is what the same costs and exactly that acceptance make.''')}

{commands}

{table(["streams, target", "acceptance", "plain, fp16 cache", "plain, 8-bit cache", "dense (length)", "over fp16",
        "expected", "over 8-bit", "sparse (length)", "over fp16", "expected", "over 8-bit"], lines)}"""


def attention(folder):
    """Of gpu_bench and gpu_flashinfer.py, a section; nothing where there are none."""
    if not (folder / "flashinfer.json").exists():
        return ""
    ours, theirs = (json.loads((folder / f"{name}.json").read_text()) for name in ("attention", "flashinfer"))
    seconds = {(row["name"], row["rows"]): row["seconds"] for row in ours["measurements"]}
    least = {(row["batch"], row["queries"], row["kv"]): row["best_us"] for row in theirs["batches"]}
    lines = []
    for batch, queries in dict.fromkeys(key[:2] for key in least):
        of_kv = [least[batch, queries, kv] for kv in ("fp16", "fp8")]
        own = [seconds.get((f"gqa {batch} {read}", queries)) for read in ("fp16", "verify")]
        best = min((us for us in of_kv if us), default=None)
        streams, tokens, *unequal = batch.replace("x", " ").split()
        lines.append([f"{streams} x {context_name(int(tokens))}" + (", unequal" if unequal else ""), str(queries),
                      *(f"{us:.1f}" if us else "-" for us in of_kv),
                      *(f"{1e6 * s:.1f}" if s else "-" for s in own),
                      times(best / own[1] / 1e6) if best and own[1] else "-"])
    ran = "\n".join(f"- {data['run']['commit']}: `{command}`" for data in (theirs, ours)
                    for command in data["run"]["commands"])
    return f"""
## Attention beside FlashInfer

{prose(f'''{theirs['run']['hardware']}, {theirs['run']['date']}, one call. Decode attention of one layer, 32 query and 8 KV heads of 128
channels, us: FlashInfer {theirs['flashinfer']}, of its kernels fa2, fa3 and those without tensor cores, page sizes and layouts the fastest for each row, planned outside of what is timed (XQA and queries in fp8 were not tried); and
ours with an fp16 cache, which gpu_bench times with one query alone, and an 8-bit cache. 5 queries verify 4 drafted tokens. The last column is what the faster of FlashInfer's caches takes over what our 8-bit one does.''')}

{ran}

{table(["batch", "queries", "FlashInfer, fp16", "FlashInfer, fp8", "ours, fp16", "ours, 8-bit", "FlashInfer over ours"], lines)}"""


def page(folder):
    """README.md of the folder."""
    reports, beside = reports_of(folder), Beside(folder)
    drafted = [row for report in reports for row in report["rows"] if not row["plan"].startswith("plain")]
    name = lambda row: f"{row['streams']} x {context_name(row['context'])} (`{row['plan']}`)"
    rates = ", ".join(f"{row['acceptance_rate']:.2f} with {name(row)}" for row in drafted if row["draft_len_mean"] > 0.1)
    seldom = ", ".join(name(row) for row in drafted if row["draft_len_mean"] <= 0.1)
    if seldom:
        seldom = f"A stream drafts less than a token in ten rounds, as drafts are measured not to pay, in {seldom}."
    repeats = ", ".join(f"{report['meta']['repeats']} after {context_name(report['meta']['contexts'][0])}"
                        for report in {report["meta"]["contexts"][0]: report for report in reports}.values())
    ran = "\n".join(f"- {run['commit']}: `{command}`" for run in [report["run"] for report in reports] + [beside.run]
                    for command in run["commands"])
    return f"""# Many streams beside llama.cpp

{prose(f'''{beside.run['hardware']}, {beside.run['date']}, {beside.program}. Made by `tools/make_results.py --write` from
the JSON beside it. The file has Llama-3.1-8B's shape in Q8_0 and **random weights** (`tools/write_gguf.py random
llama-3.1-8b 8b.gguf --type q8_0`, with SmolLM2's vocabulary); all streams have prompts of their own, of so many tokens, and decode
together.''')}

{ran}

{prose(f'''Tokens a second of all streams together, prompts not counted; 4k is 4,096 tokens. llama.cpp draws no token;
ours draw theirs at temperature 1. Of llama.cpp the fastest repetition counts, as the first may capture graphs, and the
slowest stands beside it where there are several; ours are means of repetitions, {repeats}. `plain-fp16` and `plain-int8`
draft nothing, so they assume nothing; `quantspec` drafts over all of the cache, `auto` chooses by measuring. Drafts of
these weights are accepted at {rates}.
{seldom} `quantspec bench` holds the caches of all its plans at once: with 16 streams those of three plans, of 32,000
tokens, are what fits.''')}

{measured(reports, beside)}{rounds(folder)}{attention(folder)}"""
