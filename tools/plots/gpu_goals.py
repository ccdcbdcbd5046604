"""The goals of the CUDA backend, which were set for an H200, against what was measured, a row each, and
the paper's figures (arXiv:2502.10424, on RTX A6000) where it has any."""

import dataclasses

from plots.gpu_tables import EIGHT, MATRICES, SEVEN, beside, percent, times
from plots.tables import table

PEAK_BF16 = 989.4e12  # FLOP/s, the vendor's; machine h200 of `quantspec roofline`
K = 1024
# Of the copy bandwidth, for products with so many rows: of these weights, with these matrices.
LINEAR = {"4-bit": (0.72, (1, )), "bf16": (0.85, (1, 4, 8))}
LINEAR_MATRICES = tuple(MATRICES)[:5]  # of the 7B shape
# The paper's tables 3 and 4.
PAPER_ATTENTION = {"draft": "2.88x at 64k, 2.86x at 256k",
                   "verify": "1.44x at 64k, 1.51x at 256k"}
PAPER_SPEED_UP = {4 * K: (1.35, ), 8 * K: (1.44, 1.61), 16 * K: (1.78, ), 32 * K: (1.99, 2.08),
                  64 * K: (2.23, ), 128 * K: (2.49, )}


def percent_exactly(value, more=0):
    return percent(value, 1 + more)


@dataclasses.dataclass(frozen=True)
class Goal:
    what: str
    goal: str
    measured: str
    met: bool | None  # None: not measured
    paper: str = "-"

    def line(self):
        verdict = {True: "met", False: "**missed**", None: "not measured"}[self.met]
        return [self.what, self.goal, self.measured, verdict, self.paper]


def at_least(what, value, goal, shown=times, paper="-"):
    return Goal(what, f"≥ {shown(goal)}", beside(value, goal, shown),
                None if value is None else value >= goal, paper)


def at_most(what, value, goal, shown, paper="-"):
    return Goal(what, f"≤ {shown(goal)}", beside(value, goal, shown),
                None if value is None else value <= goal, paper)


def attention(bench):
    def over(heads, tokens, read, queries, against="over_baseline"):
        return bench.attention(heads, tokens * K, read, queries, against)

    best = "over PyTorch's best fp16 kernel"
    goals = [at_least(f"draft attention, {heads.upper()}, {tokens}k, {best}",
                      over(heads, tokens, "draft", 1), goal,
                      paper=PAPER_ATTENTION["draft"] if heads == "mha" else "-")
             for heads, tokens, goal in (("mha", 32, 3.0), ("mha", 128, 3.4), ("mha", 256, 3.5),
                                         ("gqa", 32, 2.2), ("gqa", 128, 3.0))]
    goals += [at_least(f"verify attention, MHA, 128k, {n} quer{'y' if n == 1 else 'ies'}, {best}",
                       over("mha", 128, "verify", n), 1.85,
                       paper=PAPER_ATTENTION["verify"] if n == 1 else "-") for n in (1, 4, 8)]
    one, eight = (over("mha", 128, "verify", n, "seconds") for n in (1, 8))
    goals.append(at_most("the same, time of 8 queries over that of 1",
                         eight and one and eight / one, 1.05, times))
    name = "verify attention, GQA, 128k, 8 queries"
    goals.append(at_least(f"{name}, over FlashAttention",
                          over("gqa", 128, "verify", 8, "over_flash"), 5.0))
    goals.append(at_least(f"{name}, share of copy bandwidth",
                          over("gqa", 128, "verify", 8, "of_copy"), 0.75, percent))
    return goals


def every(what, values, goal, shown, strictly=False):
    """A goal that each of a few must reach."""
    values = [value for value in values if value is not None]
    if not values:
        return Goal(what, f"≥ {shown(goal)}", "-", None)
    good = sum(value > goal if strictly else value >= goal for value in values)
    least, most = (beside(end(values), goal, shown) for end in (min, max))
    measured = f"{least} to {most}; {good} of {len(values)}"
    sign = ">" if strictly else "≥"
    return Goal(what, f"{sign} {shown(goal)}, each", measured, good == len(values))


def linear(bench):
    def values(weights, field):
        return [bench.value(f"{matrix} {weights}", n, field)
                for matrix in LINEAR_MATRICES for n in LINEAR[weights][1]]

    shares = [every(f"{weights} weights, {rows_name(rows)}, 7B shapes, share of copy bandwidth",
                    values(weights, "of_copy"), goal, percent)
              for weights, (goal, rows) in LINEAR.items()]
    return shares + [every("the same over cuBLAS", values("bf16", "over_baseline"), 1.0, times,
                           strictly=True)]


def rows_name(rows):
    """(1, 4, 8): "1, 4 and 8 rows"."""
    *others, last = map(str, rows)
    return f"{', '.join(others)} and {last} rows" if others else f"{last} row"


def steps(bench, reports):
    ratios = []
    for report in reports:
        for context in report.contexts:
            kernels = report.kernels_ms(bench, context, "4-bit", "draft")
            run = report.best(context, "dense")
            if kernels and run:
                ratios.append(run["draft_step_ms"] / kernels - 1)
    shown = "-" if not ratios else f"{min(ratios):+.1%} to {max(ratios):+.1%}"
    return [
        Goal("kernel launches per layer of a dense draft step", "≤ 5",
             "5: qkv, attention, output, gate-up, down (counted by the test "
             "`CudaRounds.ADraftStepHasFiveLaunchesALayer`)", True),
        Goal("a draft step in the graph over the sum of its kernels", "within 10%", shown,
             max(map(abs, ratios)) <= 0.1 if ratios else None),
    ]


def end_to_end(reports, copy):
    wanted = {SEVEN: (((4, 2.0), (32, 2.25), (128, 2.45)), 4.5),
              EIGHT: (((4, 1.9), (32, 2.1), (128, 2.25)), 2.8)}
    by_name = {report.name: report for report in reports}
    goals = []
    for name, (dense, sparse) in wanted.items():
        report = by_name.get(name)

        def speed_up(context, kind):
            return report and report.speed_up(context * K, kind)

        for context, goal in dense:
            paper = " and ".join(times(x) for x in PAPER_SPEED_UP[context * K])
            goals.append(at_least(f"{name} shape, {context}k, dense drafts, over fp16 decoding",
                                  speed_up(context, "dense"), goal,
                                  paper=paper if name == SEVEN else "-"))
        goals.append(at_least(f"{name} shape, 128k, drafts that read 4k tokens, over the same",
                              speed_up(128, "sparse 4096"), sparse))
    seven = by_name.get(SEVEN)
    return goals + [memory(seven), plain(seven, copy)] + eight_bits(by_name.get(f"{EIGHT}, 8 bits"))


def eight_bits(report):
    """Of a target whose weights are rounded to 8 bits, half of which drafts read."""
    wanted = (("plain decoding, 8-bit cache", "plain, 8-bit", 4, 400), ("dense drafts", "dense", 4, 540),
              ("dense drafts", "dense", 32, 450), ("dense drafts", "dense", 128, 300),
              ("drafts that read 4k tokens", "sparse 4096", 128, 440))
    return [at_least(f"{EIGHT} shape, target of 8 bits, {context}k, {what}, tokens/s",
                     report and report.speed(context * K, kind), goal, whole)
            for what, kind, context, goal in wanted]


def whole(value, more=0):
    return "-" if value is None else f"{value:.{more}f}"


def memory(seven):
    used, allowed = (seven and seven.memory(128 * K)) or (None, None)
    return Goal("memory, 7B shape, 128k, over weights + draft weights + 0.52 fp16 KV + ring",
                "within 3%", "-" if used is None else
                f"{used / allowed - 1:+.1%} ({used / 1e9:.1f} GB)",
                None if used is None else abs(used / allowed - 1) <= 0.03, "61.2 GB, on two GPUs")


def plain(seven, copy):
    what = "plain decoding, 7B shape, fp16 cache, 4k, share of copy bandwidth"
    run = seven and seven.best(4 * K, "plain, fp16")
    if not run:
        return Goal(what, "≥ 85%", "-", None)
    share = seven.plain_bytes(4 * K) / (1e-3 * run["round_ms"]) / copy
    return at_least(what, share, 0.85, percent_exactly)


def prefill(bench):
    def rate(heads):
        return bench.value(f"{heads} prefill attention", 32 * K, "flops_per_second")

    peak = f"the bf16 peak, the vendor's {PEAK_BF16 / 1e12:.1f} TFLOP/s"
    return [at_least(f"prefill attention, {heads.upper()}, 32k, share of {peak}",
                     rate(heads) and rate(heads) / PEAK_BF16, 0.6, percent_exactly)
            for heads in ("mha", "gqa")]


def goals(bench, reports):
    """reports: Rounds of any targets."""
    full = [report for report in reports if report.bits == 16]
    return (attention(bench) + linear(bench) + prefill(bench) + steps(bench, full) +
            end_to_end(reports, bench.copy))


def counts(rows):
    """"1 of 3 goals is met, 2 are missed"."""
    met, missed = (sum(row.met is verdict for row in rows) for verdict in (True, False))
    unknown = len(rows) - met - missed
    return (f"{met} of {len(rows)} goals {'is' if met == 1 else 'are'} met, {missed} "
            f"{'is' if missed == 1 else 'are'} missed" + (f", {unknown} not measured" if unknown else ""))


def goals_table(rows):
    return table(["goal", "wanted", "measured", "", "the paper, on A6000"],
                 [row.line() for row in rows])
