"""Pages that show one set of results of a CPU: docs/results.md whole, and blocks of README.md. A set is a folder
of reports at one commit on one machine, as tools/make_results.py keeps them."""

import pathlib
import statistics

from plots import reports, tables
from plots.reports import counted, plan_name, tokens_name
from plots.tables import ratio, table, times

DENSE = ("quantspec", "quantspec+w8")
SPARSE = ("quantspec+sparse", "quantspec+sparse+w8")
RIVALS = ("snapkv+w8", "retrieval+w8")
PARTS = ("kv-only", "weights-only")
COPIES = {"copy-recall": "a passage repeated (`recall`)", "copy-quotes": "a passage quoted",
          "copy-edits": "a passage edited", "copy-code": "code with other names",
          "copy-prose": "a book gone on with, which asks for no copy"}
WAYS = {1: "temperature 1", 0: "greedy"}  # of sampling
MAX_LINES = 165


class Set:
    """results/MACHINE/COMMIT."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.name = "/".join(self.folder.parts[-2:])
        self.loaded = {}

    def report(self, name):
        if name not in self.loaded:
            self.loaded[name] = reports.load(self.folder / f"{name}.json")
        return self.loaded[name]

    def all(self):
        return [self.report(path.stem) for path in sorted(self.folder.glob("*.json"))]

    def about(self):
        """Machine, commit and date of all reports. Raises ValueError where they differ."""
        facts = {(one.run["hardware"], one.run["commit"]) for one in self.all()}
        if len(facts) != 1:
            raise ValueError(f"{self.name}: its reports are not of one machine and commit: "
                             + "; ".join(" at ".join(fact) for fact in sorted(facts)))
        return (*facts.pop(), max(one.run["date"] for one in self.all()))

    def is_of_a_commit(self):
        return not self.name.endswith("-dirty")


# --- numbers -------------------------------------------------------------------------------------


def only(rows, what):
    for row in rows:
        return row
    raise reports.Unusable(f"the results have no row of {what}")


def speed_row(report, plan, context, temperature):
    wanted = plan, context, temperature
    return only((row for row in report.rows
                 if (row["plan"], row["context"], row["temperature"]) == wanted), wanted)


def fastest(report, plans, context, temperature):
    rows = [speed_row(report, plan, context, temperature) for plan in plans]
    return max(rows, key=lambda row: row["speedup_fp16"])


def gain(report, temperature):
    """Of lookups: median, least and most of the ratios within repeats."""
    context, field = report.contexts()[0], "decode_tokens_per_second_values"
    ratios = [one / other for one, other in zip(
        *(speed_row(report, plan, context, temperature)[field] for plan in ("auto", "auto+nolookup")))]
    return {"lookups": statistics.median(ratios), "lookups_min": min(ratios), "lookups_max": max(ratios)}


def reading(report, name):
    return only((row for row in report.of_kind("fidelity") if row["reading"] == name), name)


def listed(values):
    return " / ".join(values)


# --- tables --------------------------------------------------------------------------------------


def decoding(report, temperature):
    rows = []
    for context in report.contexts():
        def over(plans):
            return ratio(fastest(report, plans, context, temperature), "speedup_fp16")

        rows.append([
            tokens_name(context),
            f"{speed_row(report, 'plain-fp16', context, temperature)['decode_tokens_per_second']:.0f}",
            over(("plain-int8", )), *(over((part, )) for part in PARTS), over(DENSE), over(SPARSE),
            over(RIVALS), over(("auto", ))
        ])
    return table(["context", "fp16 KV, tokens/s", "8-bit KV", "4-bit KV drafts", "4-bit weights drafts",
                  "both, all pages", "both, few pages", "rivals", "`auto`"], rows)


def copying(results):
    rows = []
    for name, what in COPIES.items():
        report = results.report(name)
        context = report.contexts()[0]
        for temperature, way in WAYS.items():
            auto = speed_row(report, "auto", context, temperature)
            rows.append([
                what, way, f"{auto['decode_tokens_per_second']:.0f}",
                ratio(gain(report, temperature), "lookups"), ratio(auto, "speedup_int8"),
                ratio(auto, "speedup_fp16")
            ])
    return table(["what is asked for", "sampling", "`auto`, tokens/s", "over `auto+nolookup`",
                  "over plain, 8-bit KV", "over plain, fp16 KV"], rows, texts=2)


def acceptance(results):
    books, recall = results.report("fidelity"), results.report("fidelity-recall")
    names = [row["reading"] for row in books.of_kind("fidelity") if row["reference"] == "target"]

    def cell(report, name):
        row = reading(report, name)
        error = row["acceptance_error"]
        return f"{row['acceptance']:.3f}" + (f" ± {error:.3f}" if error is not None else "")

    return table(["draft", "books", "where the text repeats itself"],
                 [[f"`{plan_name(name)}`", cell(books, name), cell(recall, name)] for name in names])


def goals(results):
    speed, rows = results.report("speed"), []

    def goal(what, wanted, value_of):
        values = [value_of(temperature) for temperature in WAYS]
        rows.append([what, times(wanted), *(
            f"{times(value)}, {'met' if value >= wanted else 'missed'}" for value in values)])

    for context, wanted in ((2048, 1.8), (8192, 2.1)):
        goal(f"all pages, {tokens_name(context)}, over fp16", wanted,
             lambda way, c=context: fastest(speed, DENSE, c, way)["speedup_fp16"])
    for context, wanted in ((2048, 2.0), (8192, 2.6), (32256, 4.5)):
        goal(f"`auto`, {tokens_name(context)}, over fp16", wanted,
             lambda way, c=context: speed_row(speed, "auto", c, way)["speedup_fp16"])
    for name, what in COPIES.items():
        report = results.report(name)
        if name == "copy-prose":
            goal("lookups on prose, over none", 0.99, lambda way: gain(report, way)["lookups"])
            continue
        goal(f"lookups on {what}, over none", 1.8, lambda way: gain(report, way)["lookups"])
        goal(f"`auto` on {what}, over fp16", 4.5,
             lambda way: speed_row(report, "auto", report.contexts()[0], way)["speedup_fp16"])
    return table(["what", "goal", *WAYS.values()], rows)


def lossless_line(results):
    rows = results.report("lossless").of_kind("lossless")
    different = sum(row["first_difference"] is not None for row in rows)
    plans = list(dict.fromkeys(row["plan"] for row in rows))
    return (f"{len(rows)} generations of {rows[0]['tokens']} tokens, drafted by "
            f"{', '.join(f'`{plan}`' for plan in plans)}, greedy and `coupled`, at several draft lengths:\n"
            f"**{different} differ** from plain decoding.")


# --- pages ---------------------------------------------------------------------------------------


def head(results):
    hardware, commit, date = results.about()
    return f"{hardware}, commit {commit}, {date}"


def one_look(results):
    """The claims, with their figures: for the page and for README."""
    speed = results.report("speed")
    contexts = speed.contexts()
    names = listed(tokens_name(context) for context in contexts)

    def auto(field, temperature):
        return listed(times(speed_row(speed, "auto", c, temperature)[field]) for c in contexts)

    dense = [listed(times(speed_row(speed, "quantspec", c, way)["speedup_fp16"]) for c in contexts)
             for way in (1, 0)]
    quotes, recall = (results.report(name) for name in ("copy-quotes", "copy-recall"))
    memory = speed_row(speed, "quantspec", 8192, 1)
    kept = memory["kv_bytes"] + memory["ring_bytes"]
    books = results.report("fidelity")
    kl = reading(books, "8-bit KV")
    return [
        [f"`auto`, the default, over plain decoding with an fp16 KV cache, at {names} tokens of a book",
         f"{auto('speedup_fp16', 1)} at temperature 1; {auto('speedup_fp16', 0)} greedily",
         "`quantspec bench`"],
        ["the same over plain decoding with our own 8-bit KV cache",
         f"{auto('speedup_int8', 1)}; {auto('speedup_int8', 0)}", "`quantspec bench`"],
        ["`quantspec`, the paper's draft (4-bit weights, 4-bit KV of all pages), over fp16",
         f"{dense[0]} at temperature 1; {dense[1]} greedily", "`quantspec bench`"],
        ["`auto` where 8k of prompt are copied from, over fp16: a passage quoted; one repeated",
         "; ".join(listed(times(speed_row(one, "auto", one.contexts()[0], way)["speedup_fp16"])
                          for one in (quotes, recall)) + f" {WAYS[way]}" for way in (0, 1)),
         "`quantspec bench -d tasks:`, `-d recall:`"],
        ["a first draft is accepted, temperature 1, 8k: 8-bit weights; 4-bit",
         listed(f"{reading(books, plan)['acceptance']:.3f}" for plan in ("quantspec+w8", "quantspec")),
         "`quantspec eval fidelity`"],
        ["the target (8-bit KV) against fp16 KV",
         f"KL {kl['kl_mean']:.0e} nats, same top token {kl['top1_agreement']:.1%}",
         "`quantspec eval fidelity`"],
        ["KV cache of 8k tokens, what drafts read included",
         f"{kept / 1e6:.0f} MB where fp16 takes {memory['kv_fp16_bytes'] / 1e6:.0f}", "`quantspec bench`"],
    ]


def picture(results, file, alt):
    if not (results.folder / f"img/{file}.svg").exists():
        raise reports.Unusable(f"{results.name} has no picture img/{file}.svg")
    return f'<img src="../results/{results.name}/img/{file}.svg" width="49%" alt="{alt}">'


def cpu_page(results):
    hardware, commit, date = results.about()
    if not results.is_of_a_commit():
        raise reports.Unusable(f"{results.name} was measured with changes that are in no commit")
    speed = results.report("speed")
    full = f"../results/{results.name}"
    recall = results.report("fidelity-recall")
    worst = min(reading(recall, plan)["acceptance"] for plan in ("streaming", "snapkv", "retrieval"))
    text = f"""# Results on a CPU

{hardware}, commit {commit}, {date}: all of it. `tools/make_results.py --write` makes this page of the JSON in
[results/{results.name}]({full}/README.md), where all tables are, with the commands. The model is the bundled
pg-24m (24M parameters) unless another is named; the books are twelve that it never saw. Speed-ups are medians of ratios
within one run, their spread in parentheses. On a GPU: [results-gpu.md](results-gpu.md). The paper's tables:
[paper.md](paper.md). An earlier processor, and more tables: [results/intel-xeon-2](../results/intel-xeon-2/5e28230/README.md).

## In one look

{table(["claim", "measured", "by"], one_look(results), texts=3)}
## Decoding a book

What drafts read, and how much faster that is than plain decoding with an fp16 KV cache; of *both* the better of 4- and
8-bit weights, of *rivals* the better of SnapKV and TriForce's retrieval with our 8-bit weights and kernels. Greedy text
of so small a model soon repeats itself, and `auto` looks that up: without lookups it is {nolookup_note(results)}
of `auto` on books after 8k tokens.

{picture(results, "speed-speedup-t1", "Speed-up by context at temperature 1.")}
{picture(results, "speed-speedup-greedy", "Speed-up by context, greedy.")}

Temperature 1; {counted(speed.rows[0]["prompts"], "prompt")} of each length, {counted(speed.rows[0]["repeats"], "repeat")} of {speed.rows[0]["tokens"]} tokens:

{decoding(speed, 1)}
Greedy:

{decoding(speed, 0)}
## Where the answer copies

Prompts of 8k tokens. What followed the last words where they came before is proposed, and costs no pass;
[datasets.md](datasets.md#copying-from-far-back) has the script that makes the tasks. The model need not copy what it is
asked to: it may repeat itself, or another place.

{copying(results)}
## What is accepted

The share of first drafts that are accepted at temperature 1 after 8k tokens, exactly, over true text. StreamingLLM,
SnapKV and retrieval keep a quarter of the tokens: where the text repeats itself from afar, the worst of them accepts {worst:.2f}.

{acceptance(results)}
## Many streams

Streams of 4k tokens each, decoding at once:

{tables.streams([results.report("streams")], lambda row: row["plan"] == "auto")}
{peers_section(results)}## The same bytes

{lossless_line(results)}

## Goals

{goals(results)}
What was tried to meet those that are missed: [decisions](decisions/README.md).
"""
    lines = text.count("\n")
    if lines > MAX_LINES:
        raise ValueError(f"docs/results.md would have {lines} lines, above {MAX_LINES}")
    return text


def nolookup_note(results):
    """auto+nolookup over auto on prose: a range in percent, by sampling."""
    report = results.report("copy-prose")
    return " and ".join(f"{1 / gain(report, way)['lookups']:.0%} ({name})" for way, name in WAYS.items())


def peers_said(results):
    """How programs were compared."""
    found = peer_reports(results)
    rounds = len(found[0].rows[0]["plain_ratio"]["values"])
    small = "; 1.5B is Qwen2.5's shape with random weights" if any(
        "1.5b" in report.meta["model"] for report in found) else ""
    return (f"llama.cpp {found[0].meta['llama_cpp']} at the best of three settings (flash attention off, on, on with "
            f"a q8_0 cache), ours without drafts at the better of its caches, {counted(rounds, 'round')}{small}")


def peers_section(results):
    if not peer_reports(results):
        return ""
    return f"""## Beside llama.cpp

On the same file, tokens/s: {peers_said(results)}. [real-models.md](real-models.md) has more files.

{tables.peers(peer_reports(results))}
"""


def peer_reports(results):
    return [report for report in results.all() if report.kind == "peers-speed"]


def readme_blocks(results):
    """{name of the marks: what stands between them}."""
    blocks = {"claims": table(["claim", "number", "command"], one_look(results), texts=3) +
                        f"\n({head(results)}; the bundled model, books that it never saw.)\n"}
    if peer_reports(results):
        blocks["peers"] = (tables.peers(peer_reports(results)) +
                           f"\n({head(results)}; {peers_said(results)}.)\n")
    return blocks
