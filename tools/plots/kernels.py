"""The picture of kernel_bench. It takes the report and a file to write."""

from plots import style
from plots.kernel_tables import QUERIES, Kernels
from plots.reports import Missing

# Names of what is read, its colour and its marker.
ATTENTION = {
    "fp16": ("16 bits", style.PARTS[5], "s"),
    "both": ("both planes", style.PARTS[1], "^"),
    "upper": ("upper plane", style.PARTS[0], "o"),
}
LINEAR = {
    "bf16": ("16 bits", style.PARTS[5], "s"),
    "both": ("both planes", style.PARTS[1], "^"),
    "upper": ("upper plane", style.PARTS[0], "o"),
}


def roofline(report, path):
    """Kernels that read from memory, against what the machine reads and what the same kernels reach
    from a cache."""
    kernels = Kernels(report)
    bandwidth = kernels.bandwidth(kernels.threads)
    points = [row for name, row in kernels.rows.items() if is_shown(name)]
    if not points or bandwidth is None:
        raise Missing("kernel_bench rows of read/, and of attention/dram or linear/dram")
    figure, axes = style.canvas(5.8, rows=2, sharex=True, sharey=True)
    attention(axes[0], kernels)
    linear(axes[1], kernels)
    low = 0.7 * min(row["flop_per_byte"] for row in points)
    most = max(row["flops"] for row in points)
    for panel in axes:
        panel.plot([low, 2 * most / bandwidth], [bandwidth / 1e9 * low, 2 * most / 1e9], "-",
                   color=style.GREY, linewidth=1.2, zorder=1)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log", base=2)
        panel.set_ylabel("GFLOP/s")
        panel.xaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_major_formatter("{x:g}")
    axes[0].set_title("attention, 1 to 8 queries; hollow: 4 query heads per KV head", loc="left",
                      fontsize=style.FONT - 1)
    axes[1].set_title("4096 × 4096 weights: bf16 at 1 to 8 rows, planes at 1", loc="left",
                      fontsize=style.FONT - 1)
    axes[0].legend(loc="lower right")
    axes[1].set_xlabel("FLOP per byte that must be read")
    parts = {name: kernels.of_bandwidth(f"attention/dram/{name}/d128/mha/q1")
             for name in ATTENTION}
    reached = ", ".join(f"{ATTENTION[name][0]} {part:.0%}" for name, part in parts.items() if part)
    style.finish(
        figure, f"Of {bandwidth / 1e9:.0f} GB/s, attention with one query reaches: {reached}",
        "Solid grey: the measured read bandwidth. Dashed: the same kernels from the second-level "
        f"cache, times the threads. head_dim 128. {report.source()}", path)


def is_shown(name):
    return name.startswith(("attention/dram/", "linear/dram/")) and (
        "/d128/" in name or "linear" in name) and "sparse" not in name


def attention(panel, kernels):
    for read, (label, color, marker) in ATTENTION.items():
        for head, face in (("mha", color), ("gqa4", "white")):
            rows = rows_of(kernels, [f"attention/dram/{read}/d128/{head}/q{n}" for n in QUERIES])
            panel.plot(*curve(rows), "-", color=color, marker=marker, markerfacecolor=face,
                       linewidth=1, label=label if head == "mha" else None)
            cached = rows_of(kernels, [f"attention/l2/{read}/d128/{head}/q{n}" for n in QUERIES])
            xs, ys = curve(cached)
            panel.plot(xs, [kernels.threads * y for y in ys], "--", color=color, linewidth=0.8)


def linear(panel, kernels):
    for read, (label, color, marker) in LINEAR.items():
        rows = rows_of(kernels, [f"linear/dram/{read}/4096x4096/r{n}" for n in QUERIES])
        panel.plot(*curve(rows), "-", color=color, marker=marker, linewidth=1, label=label)


def rows_of(kernels, names):
    return [kernels.rows[name] for name in names if name in kernels.rows]


def curve(rows):
    return [row["flop_per_byte"] for row in rows], [row["flops"] / 1e9 for row in rows]


# End of the file's name, what is drawn.
FIGURES = {"kernels": roofline}
