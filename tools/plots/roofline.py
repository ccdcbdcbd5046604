"""Pictures of `quantspec roofline`. Each takes a report and a file to write."""

import matplotlib.colors
import matplotlib.ticker
import numpy

from plots import style
from plots.reports import Missing, machine_name, tokens_name

MEMORY, COMPUTE, SHADES = "#0072B2", "#D55E00", "YlGnBu"


def decode_planes(report, path):
    """Figure 2: arithmetic intensity of decoding over batch and context, and the ridge."""
    planes(report, "decode", path)


def prefill_planes(report, path):
    """Figure 5: arithmetic intensity of prefill over batch and context, and the ridge."""
    planes(report, "prefill", path)


def planes(report, phase, path):
    rows, contexts, batches = grid_of(report.data["planes"], phase)
    ridge = report.meta["ridge_flops_per_byte"]
    figure, axes = style.canvas(0.9 + 3 * (0.45 + 0.19 * len(batches)), rows=3, sharex=True)
    # The colours part at the ridge: white there, blue what memory bounds, red what compute does.
    shades = matplotlib.colors.LinearSegmentedColormap.from_list(
        "ridge", [MEMORY, "#9CC9E6", "#FFFFFF", "#F3B98F", COMPUTE])
    fields = ("linear_intensity", "attention_intensity", "aggregate_intensity")
    reach = max(abs(numpy.log(row[field] / ridge)) for row in rows for field in fields)
    norm = matplotlib.colors.Normalize(-reach, reach)
    for panel, field in zip(axes, fields):
        values = as_grid(rows, contexts, batches, field)
        panel.imshow(numpy.log(values / ridge), cmap=shades, norm=norm, aspect="auto",
                     origin="lower")
        annotate(panel, values, lambda value: number(value),
                 lambda value: abs(numpy.log(value / ridge)) > 0.62 * reach)
        cell_axes(panel, contexts, batches)
        panel.set_title(field.removesuffix("_intensity"), loc="left")
    axes[1].set_ylabel("batch, sequences")
    axes[2].set_xlabel("context, tokens")
    bar = figure.colorbar(matplotlib.cm.ScalarMappable(norm, shades), ax=list(axes), shrink=0.5,
                          pad=0.02, ticks=[-reach, 0, reach])
    bar.ax.set_yticklabels([
        number(ridge * numpy.exp(-reach)), f"ridge\n{ridge:.0f}",
        number(ridge * numpy.exp(reach))
    ])
    bar.outline.set_visible(False)
    memory_bound = sum(row["aggregate_intensity"] < ridge for row in rows)
    kind, count = max((("memory", memory_bound), ("compute", len(rows) - memory_bound)),
                      key=lambda pair: pair[1])
    style.finish(
        figure, f"{'Decoding' if phase == 'decode' else 'Prefill'} is {kind}-bound at {count} of "
        f"{len(rows)} points", "FLOP per byte; blue: memory-bound, orange: "
        f"compute-bound. {report.source()}", path)


def share(report, path):
    """The colour of Figure 2, and Figure 6: attention's share of the time of decoding, and the KV
    cache against the machine's memory."""
    rows, contexts, batches = grid_of(report.data["planes"], "decode")
    figure, axes = style.canvas(1.4 + 0.19 * len(batches) + 2.6, rows=2,
                                height_ratios=[0.19 * len(batches), 2.6])
    values = as_grid(rows, contexts, batches, "attention_share")
    axes[0].imshow(values, cmap=SHADES, vmin=0, vmax=1, aspect="auto", origin="lower")
    annotate(axes[0], values, lambda value: f"{value:.0%}", lambda value: value > 0.6)
    cell_axes(axes[0], contexts, batches)
    axes[0].set_title("attention's share of the time of decoding", loc="left")
    axes[0].set_ylabel("batch")
    cache(axes[1], report, contexts, batches)
    meta = report.meta
    room = meta["memory_bytes"] - meta["weights_bytes"]
    plain = room / meta["kv_fp16_bytes_per_token"]
    ours = (room - meta["draft_weights_bytes"]) / meta["kv_both_planes_bytes_per_token"]
    style.finish(
        figure, f"Beside the weights, {machine_name(meta['machine'])} holds the KV of "
        f"{number(plain)} tokens in fp16, of {number(ours)} with QuantSpec",
        f"QuantSpec with its draft's weights. {report.source()}", path)


def cache(axes, report, contexts, batches):
    some = [
        batch for batch in batches if batch in (batches[0], batches[len(batches) // 2], batches[-1])
    ]
    ends = []
    for batch, color in zip(some, style.PARTS):
        rows = sorted((row for row in report.data["kv"] if row["batch"] == batch),
                      key=lambda row: row["context"])
        for field, dashes in (("kv_fp16_bytes", "-"), ("kv_bytes", "--")):
            axes.plot(contexts, [row[field] / 1e9 for row in rows], dashes, color=color,
                      label=f"batch {batch}, {'fp16' if dashes == '-' else 'QuantSpec'}")
        ends.append((contexts[-1], rows[-1]["kv_fp16_bytes"] / 1e9, f"batch {batch}", color))
    axes.set_yscale("log")
    room = (report.meta["memory_bytes"] - report.meta["weights_bytes"]) / 1e9
    axes.axhline(room, color=style.GREY, linewidth=1.2)
    ends.append((contexts[-1], room, "free memory", style.GREY))
    axes.yaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    style.context_axis(axes, contexts)
    axes.set_ylabel("KV cache, GB")
    axes.set_title("solid: fp16; dashed: QuantSpec, both planes and ring", loc="left",
                   fontsize=style.FONT - 1)
    style.label_ends(axes, ends)


# --- parts ---------------------------------------------------------------------------------------


def grid_of(planes_rows, phase):
    rows = [row for row in planes_rows if row["phase"] == phase]
    contexts = sorted({row["context"] for row in rows})
    batches = sorted({row["batch"] for row in rows})
    if len(contexts) < 2 or len(batches) < 2:
        raise Missing("roofline rows at two contexts and two batches or more")
    return rows, contexts, batches


def as_grid(rows, contexts, batches, field):
    values = numpy.zeros((len(batches), len(contexts)))
    for row in rows:
        values[batches.index(row["batch"]), contexts.index(row["context"])] = row[field]
    return values


def annotate(axes, values, text_of, is_dark):
    for (i, j), value in numpy.ndenumerate(values):
        axes.text(j, i, text_of(value), ha="center", va="center", fontsize=style.FONT - 2.5,
                  color="white" if is_dark(value) else "black")


def cell_axes(axes, contexts, batches):
    axes.set_xticks(range(len(contexts)), [tokens_name(context) for context in contexts])
    axes.set_yticks(range(len(batches)), batches)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


def number(value):
    """Two digits below 100, then whole, then thousands and millions."""
    if value < 100:
        return f"{value:.2g}"
    if value < 1e4:
        return f"{value:.0f}"
    return f"{value / 1e3:.0f}k" if value < 1e6 else f"{value / 1e6:.1f}M"


# End of the file's name, what is drawn.
FIGURES = {"decode-planes": decode_planes, "prefill-planes": prefill_planes, "share": share}
