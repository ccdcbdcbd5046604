"""What gpu_bench, gpu_baselines.py and gpu_rounds measured on a GPU, and its tables, which gpu_page.py
puts together. Functions return Markdown; what was not measured is None or "-"."""

import dataclasses

from plots.tables import table

HEADS = {"mha": "MHA, 32 heads", "gqa": "GQA, 32 heads on 8"}
MATRICES = {  # of gpu_bench; the 7B shape's first
    "7b qkv 12288x4096": "qkv 12288×4096, 7B",
    "o 4096x4096": "o 4096×4096, both",
    "7b gate-up 22016x4096": "gate-up 22016×4096, 7B",
    "7b down 4096x11008": "down 4096×11008, 7B",
    "7b head 32000x4096": "head 32000×4096, 7B",
    "8b qkv 6144x4096": "qkv 6144×4096, 8B",
    "8b gate-up 28672x4096": "gate-up 28672×4096, 8B",
    "8b down 4096x14336": "down 4096×14336, 8B",
    "8b head 128256x4096": "head 128256×4096, 8B",
}
ROWS = (1, 4, 8, 17)
LAYERS, HIDDEN = 32, 4096  # of both shapes
RING_TOKENS = 256  # two pages in full precision


@dataclasses.dataclass(frozen=True)
class Shape:
    """A model whose shape was decoded with."""
    name: str
    heads: str  # of gpu_bench's attention
    matrices: tuple  # of a layer, as gpu_bench names them
    head: str
    vocabulary: int


SHAPES = {  # by bytes of a token's fp16 KV
    524288: Shape("Llama-2-7B", "mha", tuple(list(MATRICES)[:4]), "7b head 32000x4096", 32000),
    131072: Shape("Llama-3.1-8B", "gqa", ("8b qkv 6144x4096", "o 4096x4096",
                                          "8b gate-up 28672x4096", "8b down 4096x14336"),
                  "8b head 128256x4096", 128256),
}
SEVEN, EIGHT = (shape.name for shape in SHAPES.values())

# --- what was measured ---------------------------------------------------------------------------


class Bench:
    """A report of gpu_bench."""
    def __init__(self, report):
        self.device = report["device"]
        self.copy = report["copy_bytes_per_second"]
        self.checks = {check["name"]: check for check in report["checks"]}
        self.rows = {(row["name"], row["rows"]): row for row in report["measurements"]}

    def value(self, name, rows, field):
        return self.rows.get((name, rows), {}).get(field)

    def attention(self, heads, tokens, read, queries, field):
        return self.value(f"{heads} {tokens} {read}", queries, field)

    def contexts(self):
        return sorted({int(name.split()[1]) for name, _ in self.rows if name[:4] in ("mha ", "gqa ")
                       and name.split()[1].isdigit()})

    def spread(self):
        """The slowest series of calls over the fastest, at most."""
        return max(row["most_seconds"] / row["least_seconds"] for row in self.rows.values())


class Rounds:
    """A report of gpu_rounds."""
    def __init__(self, report):
        self.acceptance = report["simulated_acceptance"]
        self.contexts = {context["context"]: context for context in report["contexts"]}
        first = report["contexts"][0]
        self.streams = report.get("streams", 1)
        self.token_bytes = first["fp16_kv_bytes"] // first["context"] // self.streams
        if self.token_bytes not in SHAPES:
            raise ValueError(f"fp16 KV of {self.token_bytes} bytes a token: of neither {SEVEN}'s "
                             f"nor {EIGHT}'s shape")
        self.shape = SHAPES[self.token_bytes]
        self.bits = 8 if report["target_weights"].startswith("8") else 16  # of the target's weights
        self.size = self.shape.name.split("-")[-1]  # 7B or 8B
        self.name = self.shape.name + (", 8 bits" if self.bits == 8 else "")

    def order(self):
        """Of reports in tables."""
        return -self.bits, self.shape.name

    def runs(self, context, name):
        return [run for run in self.contexts.get(context, {}).get("runs", [])
                if run["name"].startswith(name)]

    def best(self, context, name):
        """The fastest of a kind's draft lengths, or None."""
        return max(self.runs(context, name), key=lambda run: run["speed_up"], default=None)

    def speed_up(self, context, name):
        run = self.best(context, name)
        return run and run["speed_up"]

    def speed(self, context, name):
        """Tokens a second."""
        run = self.best(context, name)
        return run and run["tokens_per_second"]

    def over_8_bit(self, context, name):
        """Over plain decoding with our own 8-bit cache."""
        run, plain = self.best(context, name), self.best(context, "plain, 8-bit")
        return run and plain and run["tokens_per_second"] / plain["tokens_per_second"]

    def expected_speed(self, run, acceptance):
        """Tokens a second of rounds of full length that yield what the acceptance says, at the
        measured costs."""
        drafted = run["draft_len"]
        tokens = sum(acceptance**i for i in range(drafted + 1))
        return 1e3 * tokens / (drafted * run["draft_step_ms"] + run["verify_ms"])

    def expected_speed_up(self, context, run):
        plain = self.best(context, "plain, fp16")["round_ms"]
        return self.expected_speed(run, self.acceptance) * plain / 1e3

    def memory(self, context):
        """(bytes used, bytes that the goal allows without its 3%); None where not measured."""
        at = self.contexts.get(context)
        return at and (at["device_bytes_used"], at["weights_bytes"] + at["draft_weights_bytes"] +
                       0.52 * at["fp16_kv_bytes"] + RING_TOKENS * self.token_bytes)

    def plain_bytes(self, context):
        """That a token of plain decoding has to read: weights but the embedding, and fp16 KV."""
        at = self.contexts[context]
        return at["weights_bytes"] - 2 * HIDDEN * self.shape.vocabulary + at["fp16_kv_bytes"]

    def savings_ms(self, bench, context):
        """Of a dense draft step: if its weights were read at 72% of the copy bandwidth, and its
        attention read at 90%; None where not measured."""
        def saved(name, share):
            row = bench.rows.get((name, 1))
            return row and max(0, row["seconds"] * (1 - row["of_copy"] / share))

        weights = [saved(f"{matrix} 4-bit", 0.72) for matrix in self.shape.matrices]
        attention = saved(f"{self.shape.heads} {context} draft", 0.9)
        head = saved(f"{self.shape.head} 4-bit", 0.72)
        if None in (*weights, attention, head):
            return None
        return 1e3 * (LAYERS * sum(weights) + head), 1e3 * LAYERS * attention

    def kernels_ms(self, bench, context, weights, read):
        """The sum of the times of a pass's kernels, one row."""
        def seconds(matrix):
            return bench.value(f"{matrix} {weights}", 1, "seconds")

        layer = [bench.attention(self.shape.heads, context, read, 1, "seconds"),
                 *(seconds(matrix) for matrix in self.shape.matrices)]
        head = seconds(self.shape.head)
        if None in (*layer, head):
            return None
        return 1e3 * (LAYERS * sum(layer) + head)


# --- cells ---------------------------------------------------------------------------------------


def times(value, more=0):
    """`more` digits than usual."""
    return "-" if value is None else f"{value:.{2 + more}f}x"


def percent(value, more=0):
    return "-" if value is None else f"{value:.{more}%}"


def beside(value, goal, shown):
    """With another digit within 1% of the goal, where it may read as the goal and is not."""
    return shown(value, int(value is not None and abs(value - goal) <= 0.01 * goal))


def context_name(tokens):
    return f"{tokens // 1024}k" if tokens % 1024 == 0 else f"{tokens:,}"


def cell(bench, name, rows):
    """Time, share of the copy bandwidth, times as fast as PyTorch's best (its FlashAttention)."""
    row = bench.rows.get((name, rows))
    if row is None:
        return "-"
    text = f"{1e6 * row['seconds']:.1f} µs, {row['of_copy']:.0%}"
    if "over_baseline" in row:
        text += f", {beside(row['over_baseline'], 1, times)}"
    if "over_flash" in row:
        text += f" ({row['over_flash']:.2f}x)"
    return text


# --- tables --------------------------------------------------------------------------------------


def attention(bench):
    parts = []
    for heads, title in HEADS.items():
        lines = []
        for tokens in bench.contexts():
            names = {read: f"{heads} {tokens} {read}" for read in ("draft", "verify", "fp16")}
            lines.append([context_name(tokens), cell(bench, names["draft"], 1),
                          *(cell(bench, names["verify"], n) for n in (1, 4, 8)),
                          cell(bench, names["fp16"], 1)])
        parts.append(f"{title} of 128 channels:\n\n" + table(
            ["context", "draft, 1 query", "verify, 1", "verify, 4", "verify, 8", "our fp16, 1"],
            lines))
    return "\n".join(parts)


def linear(bench):
    parts = []
    for weights in ("4-bit", "8-bit", "bf16", "fp16", "Q4_K", "Q6_K", "Q8_0"):
        lines = [[title, *(cell(bench, f"{name} {weights}", n) for n in ROWS)]
                 for name, title in MATRICES.items() if (f"{name} {weights}", 1) in bench.rows]
        if not lines:
            continue
        parts.append(f"{weights} weights:\n\n" + table(
            ["matrix, outputs × inputs", *(f"{n} row{'s' if n > 1 else ''}" for n in ROWS)],
            lines))
    return "\n".join(parts)


def others(bench):
    lines = []
    for (name, rows), row in sorted(bench.rows.items()):
        if "prefill" in name:
            rate = f"{row['flops_per_second'] / 1e12:.0f} TFLOP/s"
        elif "quantize" in name:
            rate = f"{row['of_copy']:.0%} of copy"
        else:
            continue
        lines.append([f"{name}, {rows} rows", f"{1e3 * row['seconds']:.3f}", rate,
                      times(row.get("over_baseline"))])
    return table(["op", "ms", "rate", "over PyTorch's best"], lines)


def checks(bench):
    """What gpu_bench compared with the reference backend before it timed anything."""
    wrong = [name for name, check in bench.checks.items() if not check["right"]]
    exact = [check for check in bench.checks.values() if check["limit"] == 0]
    lines = [["bits that must be equal (a row alone and in company; pages)", len(exact), "0",
              f"{max(check['error'] for check in exact):g}"]]
    for kinds, limit in (("drafts: 4-bit codes", 0.01), ("targets: both planes and 16 bits", 0.002),
                         ("prefill", 0.004)):
        these = [check["error"] for check in bench.checks.values() if check["limit"] == limit]
        if these:
            lines.append([f"relative error, {kinds}", len(these), f"{limit:g}",
                          f"{max(these):.1e}"])
    text = table(["compared with the reference backend", "checks", "allowed", "worst"], lines)
    return text + f"\nWrong: {', '.join(wrong) if wrong else 'none'}.\n"


def rounds(report):
    lines = []
    for context in report.contexts:
        eight_bit = report.best(context, "plain, 8-bit")
        for run in report.runs(context, ""):
            drafts = run["draft_len"] > 0
            lines.append([
                run["name"], context_name(context), run["draft_len"] or "-",
                f"{run['tokens_per_second']:.1f}", times(run["speed_up"]),
                times(eight_bit and run["tokens_per_second"] / eight_bit["tokens_per_second"]),
                f"{run['tokens_per_round']:.2f}", f"{run['round_ms']:.2f}",
                f"{run['draft_step_ms']:.3f}" if drafts else "-", f"{run['verify_ms']:.2f}",
                times(report.expected_speed_up(context, run)) if drafts else "-"
            ])
    return table(["decoding", "context", "draft length", "tokens/s", "over fp16 cache",
                  "over 8-bit cache", "tokens per round", "round, ms", "draft step, ms",
                  "verify, ms", "expected over fp16"], lines)


def steps(bench, reports):
    """A pass in a round's graph beside the sum of its kernels, each timed alone."""
    passes = (("draft step, dense", "dense", "draft_step_ms", "4-bit", "draft"),
              ("plain token, fp16 cache", "plain, fp16", "verify_ms", "bf16", "fp16"),
              ("plain token, 8-bit cache", "plain, 8-bit", "verify_ms", "bf16", "verify"))
    lines = []
    for report in reports:
        for title, name, field, weights, read in passes:
            for context in report.contexts:
                run = report.best(context, name)
                kernels = report.kernels_ms(bench, context, weights, read)
                if run is None or kernels is None:
                    continue
                lines.append([f"{report.name}: {title}", context_name(context),
                              f"{kernels:.3f}", f"{run[field]:.3f}",
                              f"{run[field] / kernels - 1:+.1%}"])
    return table(["pass of one row", "context", "sum of kernels, ms", "in the graph, ms",
                  "difference"], lines)


def gaps(bench, reports):
    """What the expected speed-up of dense drafts would be if kernels reached more, one change
    after the other."""
    lines = []
    for report in reports:
        for context in report.contexts:
            runs = report.runs(context, "dense")
            saved = report.savings_ms(bench, context)
            if not runs or saved is None:
                continue
            plain = report.best(context, "plain, 8-bit")["verify_ms"]
            weights, attention = saved
            changes = ((0, None), (weights, None), (weights + attention, None),
                       (weights + attention, plain))
            lines.append([f"{report.name}, {context_name(context)}",
                          times(report.speed_up(context, "dense"))] + [
                times(max(report.expected_speed_up(context, run | {
                    "draft_step_ms": run["draft_step_ms"] - less,
                    "verify_ms": verify or run["verify_ms"]
                }) for run in runs)) for less, verify in changes])
    return table(["shape, context", "measured", "expected", "4-bit weights at 72% of copy",
                  "and draft attention at 90%", "and verifying as fast as one token"], lines)


def memory(reports):
    lines = []
    for report in reports:
        for context, at in report.contexts.items():
            used, allowed = report.memory(context)
            parts = (at["weights_bytes"], at["draft_weights_bytes"], at["kv_bytes"], used,
                     at["fp16_kv_bytes"])
            lines.append([f"{report.name}, {context_name(context)}",
                          *(f"{part / 1e9:.2f}" for part in parts),
                          f"{at['kv_bytes'] / at['fp16_kv_bytes']:.3f}",
                          f"{used / allowed - 1:+.1%}"])
    return table(["shape, context", "weights, GB", "draft weights", "KV and ring", "all in use",
                  "an fp16 cache alone", "KV and ring over it", "in use over the goal's sum"],
                 lines)


def prefill(reports):
    lines = [[f"{report.name}, {context_name(context)}", f"{at['prefill_seconds']:.2f}",
              f"{context / at['prefill_seconds']:,.0f}"]
             for report in reports for context, at in report.contexts.items()]
    return table(["prompt", "seconds", "tokens/s"], lines)


def baselines(report):
    """PyTorch's kernels."""
    copy = report["copy_bytes_per_second"]
    parts = []
    for heads, title in HEADS.items():
        lines = []
        for tokens in sorted({row["tokens"] for row in report["attention"]}):
            line = [context_name(tokens)]
            for queries in (1, 4, 8):
                row = next(row for row in report["attention"] if (
                    row["shape"], row["tokens"], row["queries"]) == (heads, tokens, queries))
                line.append(f"{row['us']['flash']:.1f}")
                line.append(f"{row['best_us']:.1f} {row['best']}, "
                            f"{row['bytes_per_second'] / copy:.0%}")
            lines.append(line)
        parts.append(f"{title}, fp16, µs:\n\n" + table(
            ["context", *(f"{what}, {n}" for n in (1, 4, 8) for what in ("flash", "best"))],
            lines))
    return "\n".join(parts)
