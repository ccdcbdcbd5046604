"""Pictures of `quantspec bench`. Each takes a report, a temperature and a file to write."""

import matplotlib.ticker

from plots import style
from plots.reports import (PLAIN, Missing, best, by_plan, counted, family, leaders, line, plan_name,
                           temperature_name, tokens_name)

BASELINES = {"speedup_fp16": "plain decoding, fp16 KV", "speedup_int8": "plain decoding, 8-bit KV"}


def speedup(report, temperature, path):
    """Speed-up against context, over both baselines."""
    contexts = report.contexts()
    if len(contexts) < 2:
        raise Missing("bench rows at two contexts or more")
    plans = [plan for plan in leaders(report, temperature) if plan not in PLAIN]
    if not plans:
        raise Missing("bench rows of a plan")
    figure, axes = style.canvas(5.6, rows=2, sharex=True)
    for panel, (field, baseline) in zip(axes, BASELINES.items()):
        curves(panel, report, plans, temperature, field)
        panel.axhline(1, color=style.GREY, linewidth=1)
        panel.set_ylabel("speed-up, ×")
        panel.set_title(f"over {baseline}", loc="left")
    style.context_axis(axes[1], contexts)
    top = max((line(report, plan, temperature)[-1] for plan in plans),
              key=lambda row: row["speedup_fp16"])
    style.finish(
        figure, f"At {tokens_name(contexts[-1])} tokens the fastest is {plan_name(top['plan'])}: "
        f"{top['speedup_fp16']:.2f}× plain decoding with fp16 KV, "
        f"{top['speedup_int8']:.2f}× with 8-bit KV",
        f"Of each method the fastest draft weights. {conditions(report, temperature)}", path)


def ablation(report, temperature, path):
    """Figure 4 of arXiv:2502.10424: what quantized weights and KV give, alone and both."""
    parts = {
        "quantspec": "both",
        "kv-only": "KV alone",
        "weights-only": "weights alone",
        "plain-int8": "no drafts, 8-bit KV"
    }
    contexts = report.contexts()
    present = {row["plan"] for row in at_longest(report, temperature)}
    if len(contexts) < 2 or not {"quantspec", "kv-only", "weights-only"} <= present:
        raise Missing("bench rows of quantspec, kv-only and weights-only at two contexts or more")
    figure, axes = style.canvas(3.4)
    ends = []
    for plan, name in parts.items():
        rows = line(report, plan, temperature)
        x, y, _, color = style.curve(axes, [row["context"] for row in rows], rows, "speedup_fp16",
                                     plan)
        ends.append((x, y, name, color))
    axes.axhline(1, color=style.GREY, linewidth=1)
    style.context_axis(axes, contexts)
    axes.set_ylabel("speed-up over plain\ndecoding, fp16 KV, ×")
    style.label_ends(axes, ends)
    last = {plan: line(report, plan, temperature)[-1]["speedup_fp16"] for plan in parts}
    style.finish(
        figure, f"4-bit drafts at {tokens_name(contexts[-1])} tokens: weights alone "
        f"{last['weights-only']:.2f}×, KV alone {last['kv-only']:.2f}×, both "
        f"{last['quantspec']:.2f}×", conditions(report, temperature), path)


def draft_length(report, temperature, path):
    """Figure 9: acceptance against draft length; and the speed-up that comes of it."""
    rows = [row for row in at_longest(report, temperature) if isinstance(row["draft_len"], int)]
    plans = several(rows, "draft_len")
    if not plans:
        raise Missing("bench rows of a plan at three draft lengths or more (--sweep draft-len)")
    figure, axes = style.canvas(5.2, rows=2, sharex=True)
    for panel, field, name in zip(axes, ("acceptance_rate", "speedup_fp16"),
                                  ("accepted of the drafted", "speed-up over\nfp16 KV, ×")):
        ends = [
            style.curve(panel, [row["draft_len"] for row in many], many, field, plan)
            for plan, many in plans.items()
        ]
        panel.set_ylabel(name)
        if field == "acceptance_rate":
            percent_axis(panel)
        style.label_ends(panel, named(ends))
    axes[1].set_xlabel("draft length, tokens")
    axes[1].xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
    shares = ", ".join(f"{plan_name(plan)} {many[0]['acceptance_rate']:.0%} to "
                       f"{many[-1]['acceptance_rate']:.0%}" for plan, many in plans.items())
    lengths = [row["draft_len"] for row in next(iter(plans.values()))]
    style.finish(figure, f"Accepted from {lengths[0]} to {lengths[-1]} tokens of draft: {shares}",
                 conditions(report, temperature, rows), path)


def positions(report, temperature, path):
    """Accepted tokens by their position in the draft."""
    rows = [row for row in at_longest(report, temperature) if isinstance(row["draft_len"], int)]
    length = max((row["draft_len"] for row in rows), default=0)
    chosen = [
        row for row in by_plan([row for row in rows if row["draft_len"] == length]).values()
        if row["plan"] in leaders(report, temperature)
    ]
    if length < 2:
        raise Missing("bench rows with drafts of a fixed length, of two tokens or more")
    figure, axes = style.canvas(3.4)
    ends = []
    for row in chosen:
        shares = row["accepted_per_position"]
        axes.plot(range(1, len(shares) + 1), shares, **style.look(row["plan"]))
        ends.append((len(shares), shares[-1], row["plan"], style.look(row["plan"])["color"]))
    axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
    axes.set_xlabel("position in the draft")
    axes.set_ylabel("accepted of those\ndrafted there")
    percent_axis(axes)
    style.label_ends(axes, named(ends))
    chosen.sort(key=lambda row: row["accepted_per_position"][-1])
    ends = chosen if len(chosen) < 3 else [chosen[-1], chosen[0]]
    few = ", ".join(f"{plan_name(row['plan'])} {row['accepted_per_position'][0]:.0%} and "
                    f"{row['accepted_per_position'][-1]:.0%}" for row in ends)
    style.finish(figure, f"Accepted at the first and the last position of a draft: {few}",
                 conditions(report, temperature, chosen), path)


def rounds(report, temperature, path):
    """Where the time of a round goes, and what a token costs."""
    rows = by_plan(at_longest(report, temperature))
    rows = sorted((rows[plan] for plan in leaders(report, temperature)),
                  key=lambda row: -row["ms_per_token"])
    if not rows:
        raise Missing("bench rows")
    figure, axes = style.canvas(1.2 + 0.27 * len(rows))
    starts = [0.0] * len(rows)
    for phase, color in zip(("draft", "verify", "commit"), style.PARTS):
        widths = [row[f"{phase}_ms"] for row in rows]
        axes.barh(range(len(rows)), widths, left=starts, color=color, height=0.7, label=phase)
        starts = [start + width for start, width in zip(starts, widths)]
    for i, (row, end) in enumerate(zip(rows, starts)):
        axes.text(end + 0.01 * max(starts), i, f"{row['tokens_per_round']:.1f} tokens, "
                  f"{row['ms_per_token']:.2f} ms each", va="center", fontsize=style.FONT - 2)
    axes.set_yticks(range(len(rows)), [plan_name(row["plan"]) for row in rows])
    axes.set_xlim(0, 1.65 * max(starts))
    axes.set_xlabel("time of a round, ms")
    axes.grid(axis="y", visible=False)
    style.legend_above(axes)
    fastest = rows[-1]
    time = sum(fastest[f"{phase}_ms"] for phase in ("draft", "verify", "commit"))
    style.finish(
        figure, f"At {tokens_name(rows[0]['context'])} tokens {plan_name(fastest['plan'])} "
        f"spends {fastest['draft_ms'] / time:.0%} of a round on drafts",
        f"Plain decoding is one verify pass a round. {conditions(report, temperature, rows)}", path)


def memory(report, temperature, path):
    """Memory against context, by part: plain decoding, QuantSpec, and what keeps KV of its own."""
    parts = {
        "weights_bytes": "weights",
        "draft_weights_bytes": "draft weights",
        "kv_bytes": "KV",
        "ring_bytes": "ring",
        "gathered_bytes": "draft's own KV",
        "prefill_bytes": "prefill"
    }
    plans = [
        plan for plan in (*PLAIN, *leaders(report, temperature))
        if family(plan) in (*PLAIN, "quantspec")
    ]
    gathering = [row for row in at_longest(report, temperature) if row["gathered_bytes"]]
    if gathering:
        plans.append(max(gathering, key=lambda row: row["gathered_bytes"])["plan"])
    plans = list(dict.fromkeys(plans))
    contexts = report.contexts()
    figure, (above, axes) = style.canvas(4.0, rows=2, columns=len(plans), sharey="row",
                                         squeeze=False, height_ratios=[0.75, 3])
    for panel, plan in zip(axes, plans):
        stack(panel, line(report, plan, temperature), parts)
        panel.set_title(plan_name(plan).replace("+", "\n+", 1), fontsize=style.FONT - 1)
    axes[0].set_ylabel("memory, MB")
    axes[0].set_xlabel("context, k tokens", loc="left")
    for panel in above:  # room for the legend, which is as wide as the figure
        panel.set_axis_off()
    above[0].legend(*axes[0].get_legend_handles_labels(), loc="lower left", ncols=3,
                    bbox_to_anchor=(-0.3, 0), handlelength=1, columnspacing=1,
                    borderaxespad=0).set_in_layout(False)
    total = {plan: line(report, plan, temperature)[-1]["peak_bytes"] for plan in plans}
    second = next(plan for plan in plans if plan != "plain-fp16")
    ours = next((plan for plan in plans if family(plan) == "quantspec"), second)
    style.finish(
        figure, f"At {tokens_name(contexts[-1])} tokens {ours} takes {total[ours] / 1e6:.0f} MB, "
        f"plain decoding with fp16 KV {total['plain-fp16'] / 1e6:.0f} MB",
        conditions(report, temperature), path)


def budget(report, temperature, path):
    """Acceptance and speed-up against the tokens that a sparse draft reads."""
    rows = at_longest(report, temperature)
    plans = several([row for row in rows if row["draft_budget"]], "draft_budget")
    if not plans:
        raise Missing("bench rows of a sparse plan at three budgets or more (--sweep budget)")
    context = rows[0]["context"]
    dense = [
        row for row in by_plan([row for row in rows if not row["draft_budget"]]).values()
        if row["plan"] not in PLAIN and row["plan"] != "auto"
    ]
    figure, axes = style.canvas(5.2, rows=2, sharex=True)
    for panel, field, name in zip(axes, ("acceptance_rate", "speedup_fp16"),
                                  ("accepted of the drafted", "speed-up over\nfp16 KV, ×")):
        panel.set_xscale("log", base=2)
        ends = [
            style.curve(panel, [row["draft_budget"] for row in many], many, field, plan)
            for plan, many in plans.items()
        ]
        most = max(end[0] for end in ends)
        for row in dense:
            color = style.look(row["plan"])["color"]
            panel.axhline(row[field], color=color, linestyle="--", linewidth=1.2)
            ends.append((most, row[field], f"{row['plan']}, all", color))
        panel.set_ylabel(name)
        if field == "acceptance_rate":
            percent_axis(panel)
        style.label_ends(panel, named(ends))
    budgets = sorted({row["draft_budget"] for many in plans.values() for row in many})
    axes[1].set_xticks(budgets,
                       [f"{tokens_name(value)}\n{value / context:.0%}" for value in budgets])
    axes[1].xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    axes[1].set_xlabel("budget: tokens read, and share of the context")
    top = max((row for many in plans.values() for row in many), key=lambda row: row["speedup_fp16"])
    style.finish(
        figure, f"At {tokens_name(context)} tokens the fastest budget is "
        f"{top['draft_budget']} tokens with {top['plan']}: {top['speedup_fp16']:.2f}×, "
        f"{top['acceptance_rate']:.0%} accepted", conditions(report, temperature, rows), path)


def predicted(report, temperature, path):
    """The roofline's time per token beside the measured one, at the ends of the contexts."""
    contexts = sorted({report.contexts()[0], report.contexts()[-1]})
    plans = leaders(report, temperature)
    if len(plans) < 2 or not all(row["predicted_ms_per_token"] for row in report.rows):
        raise Missing("bench rows with predictions")
    figure, axes = style.canvas(1.3 + 0.27 * len(plans), columns=len(contexts), sharey=True,
                                squeeze=False)
    ratios = []
    for panel, context in zip(axes[0], contexts):
        for i, plan in enumerate(reversed(plans)):
            row = next(
                (row for row in line(report, plan, temperature) if row["context"] == context), None)
            if row is None:
                continue
            foreseen, (took, errors) = row["predicted_ms_per_token"], style.spread([row],
                                                                                   "ms_per_token")
            ratios.append(took[0] / foreseen)
            color = style.look(plan)["color"]
            panel.plot([foreseen, took[0]], [i, i], color=color, linewidth=1)
            panel.errorbar(took, [i], xerr=errors, fmt="o", color=color)
            panel.plot(foreseen, i, "o", color=color, markerfacecolor="white")
        panel.set_title(f"{tokens_name(context)} tokens", fontsize=style.FONT - 1)
        panel.set_xlim(left=0)
        panel.set_xlabel("ms per token")
        panel.grid(axis="y", visible=False)
    axes[0][0].set_yticks(range(len(plans)), [plan_name(plan) for plan in reversed(plans)])
    style.finish(
        figure, f"Measured time per token (filled) is {min(ratios):.1f} to {max(ratios):.1f} "
        "times what the roofline predicts (hollow)", conditions(report, temperature), path)


# Name of the file's end, what is drawn.
FIGURES = {
    "speedup": speedup,
    "ablation": ablation,
    "draft-length": draft_length,
    "positions": positions,
    "rounds": rounds,
    "memory": memory,
    "budget": budget,
    "predicted": predicted
}

# --- parts of them -------------------------------------------------------------------------------


def curves(axes, report, plans, temperature, field):
    ends = []
    for plan in plans:
        rows = line(report, plan, temperature)
        ends.append(style.curve(axes, [row["context"] for row in rows], rows, field, plan))
    style.label_ends(axes, named(ends))


def named(ends):
    return [(x, y, plan_name(plan), color) for x, y, plan, color in ends]


def stack(axes, rows, parts):
    """A bar for each row, of the parts on top of one another, in MB."""
    bottoms = [0.0] * len(rows)
    for (field, name), color in zip(parts.items(), style.PARTS):
        heights = [row[field] / 1e6 for row in rows]
        axes.bar(range(len(rows)), heights, bottom=bottoms, color=color, width=0.75, label=name)
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights)]
    for i, top in enumerate(bottoms):
        axes.text(i, top, f"{top:.0f}", ha="center", va="bottom", fontsize=style.FONT - 2.5)
    axes.set_xticks(range(len(rows)), [f"{row['context'] / 1024:.3g}" for row in rows])
    axes.grid(axis="x", visible=False)


def percent_axis(axes):
    axes.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1, decimals=None))


def at_longest(report, temperature):
    context = report.contexts()[-1]
    return [
        row for row in report.rows
        if row["context"] == context and row["temperature"] == temperature
    ]


def several(rows, field):
    """{plan: one row for each value of the field, sorted}, of plans with three or more."""
    plans = {}
    for row in rows:
        plans.setdefault(row["plan"], {}).setdefault(row[field], []).append(row)
    return {
        plan: [best(values[key]) for key in sorted(values)]
        for plan, values in plans.items() if len(values) >= 3
    }


def conditions(report, temperature, rows=None):
    """The small print."""
    rows = rows or report.rows
    contexts = sorted({row["context"] for row in rows})
    parts = [temperature_name(temperature), f"{rows[0]['tokens']} tokens a run"]
    if len(contexts) == 1:
        parts.insert(0, f"{tokens_name(contexts[0])} tokens of context")
    lengths = {row["draft_len"] for row in rows if row["plan"] not in PLAIN}
    if len(lengths) == 1:
        parts.append(f"draft length {lengths.pop()}")
    repeats, prompts = rows[0]["repeats"], counted(rows[0]["prompts"], "prompt")
    runs = f"median, least and greatest of {repeats} repeats" if repeats > 1 else "1 repeat"
    return f"{', '.join(parts).capitalize()}; {runs} on {prompts}. {report.source()}"
