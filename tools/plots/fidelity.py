"""Pictures of `quantspec eval`. Each takes the reports of its kind and a file to write."""

import math

import matplotlib.ticker

from plots import style
from plots.reports import Missing, dataset_name, tokens_name


def perplexity(reports, path):
    """Table 2: what the precision of KV and weights costs, over fp16 KV."""
    increases(reports, "perplexity", "Perplexity by precision of KV and weights", path)


def axes(reports, path):
    """Table 5: 4-bit KV by the axes along which it is grouped."""
    increases(reports, "perplexity", "4-bit KV by the axes of its groups", path)


def increases(reports, kind, what, path):
    tables = [(text_name(report), report.of_kind(kind)) for report in reports]
    variants = [row["variant"] for row in tables[0][1][1:]]
    if not variants:
        raise Missing("eval rows of two variants or more")
    height = 0.8 / len(tables)
    figure, panel = style.canvas(1.3 + 0.21 * len(variants) * (len(tables) + 1))
    worst = {}
    for i, (name, rows) in enumerate(tables):
        rows = [row for row in rows if row["variant"] in variants]
        places = [
            variants.index(row["variant"]) + (i - (len(tables) - 1) / 2) * height for row in rows
        ]
        values = [percent(row["delta_nll"]) for row in rows]
        errors = [100 * (row["delta_nll_error"] or 0) for row in rows]
        panel.barh(places, values, xerr=errors, height=0.9 * height, color=style.PARTS[i],
                   label=name, error_kw={
                       "elinewidth": 0.9,
                       "capsize": 2
                   })
        for place, value, error, row in zip(places, values, errors, rows):
            panel.annotate(f"{row['perplexity']:.3f} ({value:+.2g}%)",
                           (max(0, value + error), place), xytext=(4, 0),
                           textcoords="offset points", va="center", fontsize=style.FONT - 2)
            worst[row["variant"]] = max(value, worst.get(row["variant"], -math.inf))
    panel.set_yticks(range(len(variants)), variants)
    panel.invert_yaxis()
    panel.axvline(0, color=style.GREY, linewidth=1)
    low, high = panel.get_xlim()
    panel.set_xlim(min(low, 0), high + 0.45 * (high - low))
    panel.set_xlabel("perplexity above that of fp16 KV, %")
    panel.grid(axis="y", visible=False)
    if len(tables) > 1:
        style.legend_above(panel)
    low, high = min(worst, key=worst.get), max(worst, key=worst.get)
    base = "; ".join(f"fp16 KV has {rows[0]['perplexity']:.3f} on {name}" for name, rows in tables)
    style.finish(figure, f"{what}: from {worst[low]:+.2g}% ({low}) to {worst[high]:+.2g}% ({high})",
                 f"{base}. Bars: standard error. {reports[0].source(text=False)}", path)


def acceptance(reports, path):
    """The chance that a plan's first drafted token is accepted, by context."""
    rows = [(report, row) for report in reports for row in report.of_kind("fidelity")
            if row["acceptance"] is not None and row["reference"] != "fp16 KV"]
    plans = list(dict.fromkeys(row["reading"] for _, row in rows))
    if not plans:
        raise Missing("eval fidelity rows of drafts")
    texts = list(dict.fromkeys((text_name(report, False), row["context"]) for report, row in rows))
    figure, panel = style.canvas(1.2 + 0.15 * len(plans) * (len(texts) + 1))
    step = 0.8 / len(texts)
    for i, text in enumerate(texts):
        these = [row for report, row in rows if (text_name(report, False), row["context"]) == text]
        places = [plans.index(row["reading"]) + (i - (len(texts) - 1) / 2) * step for row in these]
        panel.errorbar([row["acceptance"] for row in these], places, fmt="osD^v<>"[i % 7],
                       xerr=[row["acceptance_error"] or 0
                             for row in these], color=style.PARTS[i % len(style.PARTS)],
                       label=f"{text[0]}, {tokens_name(text[1])}")
    panel.set_yticks(range(len(plans)), plans)
    panel.invert_yaxis()
    panel.set_xlim(right=1)
    panel.xaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1, decimals=0))
    panel.set_xlabel("accepted, one draft step at temperature 1")
    style.legend_above(panel)
    top = max(rows, key=lambda pair: pair[1]["acceptance"])[1]
    low = min(rows, key=lambda pair: pair[1]["acceptance"])[1]
    style.finish(
        figure, f"One draft step is accepted from {low['acceptance']:.1%} ({low['reading']}) to "
        f"{top['acceptance']:.1%} ({top['reading']})",
        f"Bars: standard error. {reports[0].source(text=False)}", path)


def sensitivity(reports, path):
    """What one layer's setting alone changes: lowered for a target, and raised for a draft."""
    report = reports[0]
    rows = report.of_kind("sensitivity")
    layers = list(dict.fromkeys(str(row["layer"]) for row in rows))
    raised = [row for row in rows if row["from"] == "draft"]
    lowered = [row for row in rows if row["from"] == "target"]
    if not raised or not lowered:
        raise Missing("eval sensitivity rows of a target and a draft")
    figure, panels = style.canvas(6, rows=2, sharex=True)
    for change, color, marker in zip(changes_of(lowered), style.PARTS, "os^Dv<"):
        these = [row for row in lowered if row["change"] == change and row["kl_change"] > 0]
        panels[0].plot([layers.index(row["layer"]) for row in these],
                       [row["kl_change"] for row in these], marker, color=color, label=change)
    panels[0].set_yscale("log")
    panels[0].set_ylabel("lowered in a target:\nKL, nats")
    style.legend_above(panels[0])
    changes = changes_of(raised)
    width = 0.8 / len(changes)
    for i, change in enumerate(changes):
        these = [row for row in raised if row["change"] == change]
        panels[1].bar(
            [layers.index(row["layer"]) + (i - (len(changes) - 1) / 2) * width
             for row in these], [row["kl_change"] for row in these], width=0.9 * width,
            label=change, color=style.PARTS[-1 - i])
    panels[1].axhline(0, color=style.GREY, linewidth=1)
    panels[1].set_xticks(range(len(layers)), layers)
    panels[1].set_xlabel("layer whose setting alone is changed")
    panels[1].set_ylabel("raised in a draft:\nchange of KL, nats")
    style.legend_above(panels[1])
    most = min(raised, key=lambda row: row["kl_change"])
    style.finish(
        figure, f"What helps the draft most: {part_name(most['layer'])}, {most['change']} "
        f"({most['kl_change']:+.2g} nats)",
        f"KL divergence from the unchanged target. {report.source()}", path)


def changes_of(rows):
    return list(dict.fromkeys(row["change"] for row in rows))


def percent(delta_nll):
    return 100 * math.expm1(delta_nll)


def part_name(layer):
    return "the head" if layer == "head" else f"layer {layer}"


def text_name(report, with_context=True):
    name = dataset_name(report.meta["dataset"])
    context = report.contexts_name()
    return f"{name}, {context}" if with_context and context else name


# Kind of report: end of the file's name, what is drawn.
FIGURES = {
    "perplexity": ("perplexity", perplexity),
    "axes": ("axes", axes),
    "fidelity": ("acceptance", acceptance),
    "sensitivity": ("layers", sensitivity)
}
