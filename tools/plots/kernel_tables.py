"""Tables of kernel_bench (docs/kernel-bench.md): its goals, and what every kernel reaches. Each takes
the reports of a section, the first with the best instruction set, and returns text."""

from plots.tables import table

QUERIES = (1, 2, 3, 5, 8)
SHAPES = {"4096x4096": "4096×4096", "14336x4096": "14336×4096"}  # beyond the caches


class Kernels:
    """The rows of one report by name. What was not run is None, and so is all that needs it."""
    def __init__(self, report):
        self.rows = {row["name"]: row for row in report.rows}
        self.threads = max(
            [int(name.rsplit("t")[-1]) for name in self.rows if name.startswith("read/")],
            default=1)

    def value(self, name, field):
        return self.rows.get(name, {}).get(field)

    def bandwidth(self, threads):
        return self.value(f"read/dram/t{threads}", "bytes_per_second")

    def of_bandwidth(self, name):
        """The part of what all threads read from memory at most, as it was measured in this run."""
        return quotient(self.value(name, "bytes_per_second"), self.bandwidth(self.threads))

    def over_fp16(self, read, shape, where="dram"):
        """How many times as fast as fp16 K and V of the same shape, "d128/mha/q1"."""
        return quotient(self.value(f"attention/{where}/fp16/{shape}", "typical_us"),
                        self.value(f"attention/{where}/{read}/{shape}", "typical_us"))


def quotient(a, b):
    return None if a is None or b is None else a / b


def goal_rows(best, avx2):
    """(what, goal, measured, part of bandwidth or None) of each goal that one kernel shows."""
    mha, gqa = "d128/mha/q", "d128/gqa4/q"

    def attention(what, kernels, goal, read, shape):
        return (what, goal, kernels.over_fp16(read, shape),
                kernels.of_bandwidth(f"attention/dram/{read}/{shape}"), "×")

    def like_mha(what, read, queries):
        both = (best.over_fp16(read, f"{head}{queries}") for head in (gqa, mha))
        return (f"GQA, 4 query heads: {what}, over the MHA figure", 0.9, quotient(*both),
                best.of_bandwidth(f"attention/dram/{read}/{gqa}{queries}"), "×")

    def linear(what, name):
        part = best.of_bandwidth(f"linear/dram/{name}")
        return (what, 0.9, part, part, "%")

    name = f"attention/dram/fp16/{mha}1"
    rows = [("attention, fp16, 1 query", 0.95, best.of_bandwidth(name), best.of_bandwidth(name),
             "%"),
            attention("attention, upper plane, 1 query", best, 3.4, "upper", f"{mha}1"),
            attention("attention, both planes, 1 query", best, 1.85, "both", f"{mha}1"),
            attention("attention, both planes, 5 queries", best, 1.75, "both", f"{mha}5"),
            like_mha("upper plane, 1 query", "upper", 1),
            like_mha("both planes, 1 query", "both", 1),
            like_mha("both planes, 5 queries", "both", 5),
            attention("AVX2: upper plane, 1 query", avx2, 2.8, "upper", f"{mha}1"),
            attention("AVX2: both planes, 1 query", avx2, 1.7, "both", f"{mha}1")]
    for shape, text in SHAPES.items():
        rows += [linear(f"4-bit {text}, 1 row", f"upper/{shape}/r1")]
        rows += [linear(f"bf16 {text}, {n} row{'s' if n > 1 else ''}", f"bf16/{shape}/r{n}")
                 for n in (1, 5)]
    return rows


def goals(reports):
    """Goal against measured, a row each; attention over our own fp16 kernel of the same shape."""
    best, avx2 = (Kernels(report) for report in reports)
    lines = []
    for what, goal, measured, part, unit in goal_rows(best, avx2):
        lines.append([
            what, f"≥ {shown(goal, unit)}", shown(measured, unit), shown(part, "%"),
            verdict(goal, measured)
        ])
    return bounds(best) + table(["what", "goal", "measured", "of read bandwidth", "reached"], lines)


def verdict(goal, measured):
    if measured is None:
        return "not run"
    return "yes" if measured >= goal else f"{measured / goal - 1:.0%}"


def shown(value, unit):
    if value is None:
        return "-"
    return f"{value:.0%}" if unit == "%" else f"{value:.2f}×"


def bounds(kernels):
    """A sentence: what bounds all of them."""
    parts = [f"{gigabytes(kernels.bandwidth(n))} with {n} thread{'s' if n > 1 else ''}"
             for n in sorted({1, kernels.threads}) if kernels.bandwidth(n)]
    return f"Memory is read at {', '.join(parts)}.\n\n" if parts else ""


def gigabytes(rate):
    return "-" if rate is None else f"{rate / 1e9:.1f} GB/s"


def kernels(reports):
    """What every kernel reaches, after the goals."""
    best = Kernels(reports[0])
    return "\n".join([goals(reports), attention(best), linear(best), others(best)])


def attention(kernels):
    lines = []
    for shape in [f"{dim}/{head}/q{n}" for dim in ("d128", "d64") for head in ("mha", "gqa4")
                  for n in QUERIES]:
        dram = [kernels.of_bandwidth(f"attention/dram/{read}/{shape}")
                for read in ("fp16", "upper", "both")]
        if not any(dram):
            continue
        ratios = [kernels.over_fp16(read, shape) for read in ("upper", "both")]
        clocks = [kernels.value(f"attention/l2/{read}/{shape}", "el_per_clk_core")
                  for read in ("fp16", "upper", "both")]
        lines.append([shape, *(shown(part, "%") for part in dram),
                      *(shown(ratio, "×") for ratio in ratios),
                      *("-" if clock is None else f"{clock:.1f}" for clock in clocks)])
    return ("Attention, from memory: parts of the read bandwidth, and over fp16; from the "
            "second-level cache: elements of K and V per clock and core.\n\n" + table([
                "head_dim, heads, queries", "fp16", "upper", "both", "upper over fp16",
                "both over fp16", "fp16, el/clk", "upper, el/clk", "both, el/clk"
            ], lines))


def linear(kernels):
    lines = []
    for name, row in kernels.rows.items():
        if name.startswith("linear/"):
            _, where, read, shape, rows = name.split("/")
            lines.append([f"{read}, {shape.replace('x', '×')}, {rows.removeprefix('r')}", where,
                          f"{row['bytes_per_second'] / 1e9:.1f}",
                          shown(kernels.of_bandwidth(name), "%"), f"{row['flops'] / 1e9:.0f}"])
    return ("Products with the weights of decoding.\n\n" + table(
        ["weights, outputs × inputs, rows", "from", "GB/s", "of read bandwidth", "GFLOP/s"],
        lines))


def others(kernels):
    lines = []
    for name, row in kernels.rows.items():
        if name.split("/")[0] in ("attention", "linear", "read"):
            if "sparse" not in name:
                continue
        rate = (f"{row['flops'] / 1e9:.0f} GFLOP/s" if name.startswith("prefill") else
                gigabytes(row["bytes_per_second"]) if "bytes_per_second" in row else "-")
        lines.append([name, f"{row['typical_us']:.3g}", rate])
    return "The rest.\n\n" + table(["kernel", "µs", "rate"], lines)
