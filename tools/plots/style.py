"""How every picture looks: fonts that are legible at half a page's width, colours that colour-blind
readers tell apart (each with a marker of its own), lines labelled where they end."""

import textwrap

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (the backend comes first)
import matplotlib.ticker  # noqa: E402

from plots.reports import family, tokens_name  # noqa: E402

WIDTH = 4.8  # inches, of every picture
FONT, SMALL = 10, 7  # points
GREY = "#666666"
# Okabe and Ito's palette without its yellow, and Tol's for the rest.
METHODS = {
    "plain-fp16": ("#000000", "|"),
    "plain-int8": ("#666666", "_"),
    "quantspec": ("#0072B2", "o"),
    "kv-only": ("#56B4E9", "^"),
    "weights-only": ("#E69F00", "s"),
    "quantspec+sparse": ("#009E73", "X"),
    "quantspec+bounds": ("#44AA99", "P"),
    "streaming": ("#D55E00", "v"),
    "snapkv": ("#CC79A7", "D"),
    "retrieval": ("#882255", "<"),
    "layer-skip": ("#999999", "h"),
    "auto": ("#000000", "*"),
    "plan file": ("#332288", ">"),
}
PARTS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#999999")  # of stacked bars
MAX_BYTES = 200_000

plt.rcParams.update({
    "font.size": FONT,
    "axes.titlesize": FONT,
    "axes.labelsize": FONT,
    "xtick.labelsize": FONT - 1,
    "ytick.labelsize": FONT - 1,
    "legend.fontsize": FONT - 1,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E0E0E0",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "errorbar.capsize": 2,
    "legend.frameon": False,
    "svg.hashsalt": "quantspec",
    "font.family": "DejaVu Sans",
})


def look(plan):
    """Colour and marker of a plan's method; dashed if its name ends in w8, dotted if in wfull."""
    color, marker = METHODS.get(family(plan), ("#332288", ">"))
    dashes = {"w8": "--", "wfull": ":", "w16": ":"}.get(plan.split("+")[-1], "-")
    return {"color": color, "marker": marker, "linestyle": dashes}


def canvas(height, rows=1, columns=1, **options):
    """A figure of the common width, `height` inches of it for axes, and its axes."""
    figure, axes = plt.subplots(rows, columns, figsize=(WIDTH, height), layout="constrained",
                                **options)
    return figure, axes


def spread(rows, field):
    """Medians, and how far the least and the greatest are from them, as errorbar wants it."""
    values = [row[field] for row in rows]
    below = [max(0, row[field] - row[f"{field}_min"]) for row in rows]
    above = [max(0, row[f"{field}_max"] - row[field]) for row in rows]
    return values, [below, above]


def curve(axes, xs, rows, field, plan):
    values, errors = spread(rows, field)
    axes.errorbar(xs, values, yerr=errors, elinewidth=0.9, markeredgewidth=0.8, **look(plan))
    return xs[-1], values[-1], plan, look(plan)["color"]


def settle(heights, gap):
    """Moves sorted heights apart to `gap`, each run of crowded ones as little as can be."""
    blocks = []  # [sum of wanted starts, count]: a block's members stand `gap` apart
    for height in heights:
        blocks.append([height, 1])
        while len(blocks) > 1:
            (low, n), (high, m) = blocks[-2:]
            if low / n + (n + m) / 2 * gap <= high / m:
                break
            blocks[-2:] = [[low + high, n + m]]
    return [
        total / count + (i - (count - 1) / 2) * gap for total, count in blocks for i in range(count)
    ]


def label_ends(axes, ends):
    """Will name lines at their right ends, when the layout is known. ends: (x, y, text, colour)."""
    labels = getattr(axes.figure, "end_labels", [])
    axes.figure.end_labels = labels + [(axes, ends)]


def draw_end_labels(axes, ends, size=FONT - 1):
    box = axes.get_window_extent()
    ends = sorted(ends, key=lambda end: end[1])
    wanted = [(axes.transData.transform((x, y))[1] - box.y0) / box.height for x, y, _, _ in ends]
    gap = size * 1.2 / 72 * axes.figure.dpi / box.height
    for (x, y, text, color), height in zip(ends, settle(wanted, gap)):
        axes.annotate(
            text, (x, y), xytext=(1.06, height), textcoords="axes fraction", color=color,
            fontsize=size, va="center", annotation_clip=False, arrowprops={
                "arrowstyle": "-",
                "color": color,
                "linewidth": 0.6,
                "relpos": (0, 0.5),
                "shrinkA": 0,
                "shrinkB": 4
            })


def legend_above(axes):
    """In as many columns as there is room for."""
    longest = max(len(text) for text in axes.get_legend_handles_labels()[1])
    axes.legend(loc="lower left",
                bbox_to_anchor=(-0.02, 1),
                ncols=max(1, 42 // (longest + 4)),
                handlelength=1,
                handletextpad=0.4,
                columnspacing=1,
                borderaxespad=0)


def context_axis(axes, contexts):
    axes.set_xscale("log", base=2)
    axes.set_xticks(contexts, [tokens_name(context) for context in contexts])
    axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    axes.set_xlabel("context, tokens")


def finish(figure, title, source, path):
    """Title above, small print below; writes the file."""
    figure.suptitle("\n".join(textwrap.wrap(title, 50)), x=0.02, ha="left", fontsize=FONT + 0.5,
                    fontweight="bold")
    figure.supxlabel("\n".join(textwrap.wrap(source, 88)), x=0.02, ha="left", fontsize=SMALL,
                     color=GREY)
    figure.canvas.draw()
    for axes, ends in getattr(figure, "end_labels", []):
        draw_end_labels(axes, ends)
    reproducible = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, dpi=130, metadata=reproducible, bbox_inches="tight", pad_inches=0.06)
    plt.close(figure)
    if path.stat().st_size > MAX_BYTES:
        raise RuntimeError(f"{path}: {path.stat().st_size} bytes, above {MAX_BYTES}")
