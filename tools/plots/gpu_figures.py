"""The pictures of a set of results of a GPU. Each takes the set (gpu_page.py) and a file to write."""

import matplotlib.ticker

from plots import style
from plots.gpu_goals import LINEAR, LINEAR_MATRICES, PAPER_SPEED_UP, rows_name
from plots.gpu_tables import HEADS, MATRICES, ROWS, context_name

BLUE, ORANGE, GREEN, PURPLE, SKY, GREY = style.PARTS
COPY = ("100%, the grey line: what a device-to-device copy reads and writes, measured in the same "
        "run; no upper bound, reads alone can be faster.")
# What is drawn: (what is read, queries), its name, colour, marker, line.
ATTENTION = {
    ("draft", 1): ("draft, 1 query", BLUE, "o", "-"),
    ("verify", 1): ("verify, 1 query", ORANGE, "^", "-"),
    ("verify", 8): ("verify, 8 queries", ORANGE, "v", "--"),
    ("fp16", 1): ("our fp16, 1 query", "black", "s", ":"),
}
SHADES = ("#0072B2", "#56B4E9", "#E69F00", "#D55E00")  # of 1, 4, 8 and 17 rows
MARKERS = ("o", "s", "^", "D")


def source(results):
    hardware, commit, _ = results.about()
    return f"{hardware}, {commit}."


def percent_axis(axis):
    axis.set_major_formatter(matplotlib.ticker.PercentFormatter(1, decimals=0))


def attention(results, path):
    """The share of the copy bandwidth that decode attention reaches, by context."""
    bench, baselines = results.bench, results.baselines
    figure, axes = style.canvas(5.8, rows=2, sharex=True, sharey=True)
    contexts = bench.contexts()
    for panel, (heads, title) in zip(axes, HEADS.items()):
        panel.axhline(1, color=style.GREY, linewidth=1.2)
        for (read, queries), (label, color, marker, line) in ATTENTION.items():
            points = [(tokens, bench.attention(heads, tokens, read, queries, "of_copy"))
                      for tokens in contexts]
            points = [point for point in points if point[1] is not None]
            panel.plot(*zip(*points), line, color=color, marker=marker, label=label)
        copy = baselines["copy_bytes_per_second"]
        torch = [(row["tokens"], row["bytes_per_second"] / copy) for row in baselines["attention"]
                 if row["shape"] == heads and row["queries"] == 1 and row["tokens"] in contexts]
        panel.plot(*zip(*torch), "-", color="#AAAAAA", marker="x", label="PyTorch, 1 query",
                   zorder=1)
        panel.set_title(title, loc="left", fontsize=style.FONT - 1)
        panel.set_ylim(0, 1.15)
        panel.set_ylabel("of copy bandwidth")
        percent_axis(panel.yaxis)
    axes[0].legend(loc="lower right", bbox_to_anchor=(1.02, 1.1), ncols=3, handlelength=1.6,
                   handletextpad=0.4, columnspacing=1, fontsize=style.FONT - 2, borderaxespad=0.2)
    style.context_axis(axes[1], contexts)
    axes[1].set_xticks(contexts, [context_name(tokens) for tokens in contexts])
    style.finish(figure, "Decode attention: share of the copy bandwidth",
                 f"{COPY} Heads of 128 channels. {source(results)}", path)


def linear(results, path):
    """The share of the copy bandwidth that products with weights reach, by matrix."""
    bench, baselines = results.bench, results.baselines
    figure, axes = style.canvas(6.6, rows=2, sharex=True)
    places = range(len(MATRICES))
    for panel, (weights, (goal, rows)) in zip(axes, LINEAR.items()):
        panel.axvline(1, color=style.GREY, linewidth=1.2)
        panel.vlines(goal, -0.5, len(LINEAR_MATRICES) - 0.5, color=style.GREY, linewidth=1,
                     linestyle=":", zorder=1)
        panel.text(goal, -0.55, f"goal, {rows_name(rows)}", fontsize=style.SMALL,
                   color=style.GREY, ha="right", va="bottom")
        for y, name in zip(places, MATRICES):
            shares = [bench.value(f"{name} {weights}", n, "of_copy") for n in ROWS]
            known = [share for share in shares if share is not None]
            if known:
                panel.plot([min(known), max(known)], [y, y], "-", color="#CCCCCC", linewidth=2,
                           zorder=1)
        for n, color, marker in zip(ROWS, SHADES, MARKERS):
            shares = [bench.value(f"{name} {weights}", n, "of_copy") for name in MATRICES]
            points = [(share, y) for share, y in zip(shares, places) if share is not None]
            panel.plot(*zip(*points), marker, color=color, markeredgecolor="white",
                       markeredgewidth=0.5, markersize=6.5,
                       label=f"{n} row{'s' if n > 1 else ''}", zorder=6 - MARKERS.index(marker))
        if weights == "bf16":
            draw_cublas(panel, baselines)
        panel.set_yticks(places, list(MATRICES.values()), fontsize=style.FONT - 2)
        panel.set_ylim(len(MATRICES) - 0.5, -1.3)
        panel.set_xlim(0, 1.12)
        percent_axis(panel.xaxis)
        panel.set_title(f"{weights} weights", loc="left", fontsize=style.FONT - 1)
    handles, labels = axes[1].get_legend_handles_labels()
    axes[0].legend(handles, labels, loc="lower right", bbox_to_anchor=(1.02, 1.08), ncols=5,
                   handletextpad=0.1, columnspacing=0.8, fontsize=style.FONT - 2,
                   borderaxespad=0.2)
    axes[1].set_xlabel("of copy bandwidth")
    style.finish(figure, "Products with weights: share of the copy bandwidth",
                 f"{COPY} Two marks in one place: the fewer rows are in front. {source(results)}",
                 path)


def draw_cublas(panel, baselines):
    found = {(row["outputs"], row["inputs"]): row for row in baselines["linear"]
             if row["rows"] == 1}
    shares = []
    for name in MATRICES:
        row = found[tuple(int(n) for n in name.split()[-1].split("x"))]
        shares.append(row["bytes_per_second"] / baselines["copy_bytes_per_second"])
    panel.plot(shares, range(len(MATRICES)), "|", color="black", markersize=11,
               markeredgewidth=1.3, label="cuBLAS, 1 row", zorder=7)


def draw_line(axes, report, value, kind, color, marker, line):
    """Of a kind of decoding, by context, where there are runs of it; returns the last point."""
    points = [(context, value(context, kind)) for context in report.contexts]
    points = [point for point in points if point[1] is not None]
    axes.plot(*zip(*points), line, color=color, marker=marker)
    return points[-1]


def speed_up(results, path):
    """Speed-up over plain decoding with an fp16 cache, by context, and the paper's."""
    reports = results.full()
    figure, axes = style.canvas(3.6)
    looks = (("dense", "dense", "o", "-"), ("sparse", "sparse (4k)", "X", "--"))
    ends = []
    for report, color in zip(reports, (BLUE, GREEN)):
        for kind, name, marker, line in looks:
            end = draw_line(axes, report, report.speed_up, kind, color, marker, line)
            ends.append((*end, f"{report.size}, {name}", color))
    # A little to the left of its context, where it hides nothing.
    paper = [(context * 0.88, value) for context, values in PAPER_SPEED_UP.items()
             for value in values]
    axes.plot(*zip(*paper), "D", color=ORANGE, markerfacecolor="white", markersize=4)
    ends.append((*paper[-1], "paper, A6000", ORANGE))
    axes.axhline(1, color=style.GREY, linewidth=1.2)
    contexts = sorted(PAPER_SPEED_UP)
    style.context_axis(axes, contexts)
    axes.set_ylim(0.8)
    axes.set_ylabel("over plain fp16 decoding")
    style.label_ends(axes, ends)
    style.finish(
        figure, "End to end: speed-up over plain decoding with an fp16 cache",
        "Ours: random weights of Llama-2-7B's (MHA) and Llama-3.1-8B's (GQA) shape, best draft "
        f"length; acceptance is simulated, {reports[0].acceptance} per token, not judged. The "
        "paper's, each a little left of its context: 7B models on its data sets, acceptance as "
        f"measured there. {source(results)}", path)


def eight_bits(results, path):
    """Tokens a second of a target of 8 bits, by context, beside plain decoding of its bf16 checkpoint."""
    figure, axes = style.canvas(3.4)
    eight = results.eight()
    full = results.of_bf16(eight)
    contexts = list(eight.contexts)
    looks = ((full, "plain, 8-bit", "bf16, plain", "black", "s", ":"),
             (eight, "plain, 8-bit", "8 bits, plain", ORANGE, "^", "-"),
             (eight, "dense", "8 bits, dense", BLUE, "o", "-"),
             (eight, "sparse 4096", "8 bits, sparse (4k)", BLUE, "X", "--"))
    ends = []
    for report, kind, name, color, marker, line in looks:
        ends.append((*draw_line(axes, report, report.speed, kind, color, marker, line), name, color))
    style.context_axis(axes, contexts)
    axes.set_ylim(0)
    axes.set_ylabel("tokens/s")
    style.label_ends(axes, ends)
    style.finish(
        figure, "A target of 8 bits: tokens a second",
        f"Random weights of {eight.shape.name}'s shape, 8-bit cache, best draft length; acceptance is "
        f"simulated, {eight.acceptance} per token, not judged. {source(results)}", path)
