"""Pages that show one set of results of a GPU: README.md of the set, with all tables, docs/results-gpu.md
whole, and blocks of README.md and docs/compare.md."""

from plots import gpu_goals, gpu_tables
from plots.gpu_tables import HEADS, LAYERS, MATRICES, ROWS, context_name, times
from plots.pages import MAX_LINES, head, listed, picture
from plots.reports import Unusable
from plots.tables import prose, table

K = 1024
FIGURES = {
    "speed-up": "Speed-up over plain decoding by context, beside the paper's.",
    "eight-bits": "Tokens a second of a target of 8 bits, by context.",
    "attention": "Share of the copy bandwidth that decode attention reaches, by context.",
    "linear": "Share of the copy bandwidth that products with weights reach, by matrix and rows.",
}
SHOWN_CONTEXTS = (4 * K, 32 * K, 128 * K)  # those of rounds; the set's page has more
WEIGHTS = ("4-bit", "8-bit", "bf16", "Q4_K", "Q6_K", "Q8_0")


def draw(results):
    from plots import gpu_figures
    folder = results.folder / "img"
    folder.mkdir(exist_ok=True)
    for name in FIGURES:
        getattr(gpu_figures, name.replace("-", "_"))(results, folder / f"{name}.svg")


def short(report):
    """7B, 8B, 8B with 8 bits."""
    return report.size + (", target of 8 bits" if report.bits == 8 else "")


# --- tables --------------------------------------------------------------------------------------


def rounds(reports):
    """Plain decoding, and drafts of the better length."""
    rows = []
    for report in reports:
        for context in report.contexts:
            cells = [f"{short(report)}, {context_name(context)}",
                     f"{report.speed(context, 'plain, fp16'):.0f}",
                     f"{report.speed(context, 'plain, 8-bit'):.0f}"]
            for kind in ("dense", "sparse 4096"):
                run = report.best(context, kind)
                cells += ["-"] * 3 if run is None else [
                    f"{run['tokens_per_second']:.0f} ({run['draft_len']})", times(run["speed_up"]),
                    times(report.over_8_bit(context, kind))]
            rows.append(cells)
    return table(["shape, context", "plain, fp16 cache", "plain, 8-bit cache", "dense drafts (length)",
                  "over fp16", "over 8-bit", "sparse drafts (length)", "over fp16", "over 8-bit"], rows)


def eight_bits(results):
    """Rounds of a target of 8 bits beside those of bf16, at one acceptance."""
    eight = results.eight()
    full, rows = results.of_bf16(eight), []
    for context in eight.contexts:
        def expected(report, kind):
            speeds = [report.expected_speed(run, eight.acceptance) for run in report.runs(context, kind)]
            return f"{max(speeds):.0f}" if speeds else "-"

        cells = [context_name(context), f"{full.speed(context, 'plain, 8-bit'):.0f}",
                 f"{eight.speed(context, 'plain, 8-bit'):.0f}"]
        for kind in ("dense", "sparse 4096"):
            speed = eight.speed(context, kind)
            cells += [expected(full, kind), expected(eight, kind), "-" if speed is None else f"{speed:.0f}"]
        rows.append(cells)
    columns = ["bf16, expected", "8 bits, expected", "8 bits, measured"]
    return table(["context", "plain, bf16", "plain, 8 bits",
                  *(f"{kind}, {column}" for kind in ("dense", "sparse") for column in columns)], rows)


def attention_cell(bench, name, queries):
    row = bench.rows.get((name, queries))
    return "-" if row is None else (
        f"{1e6 * row['seconds']:.1f} µs, {row['of_copy']:.0%}, {times(row['over_baseline'])}")


def attention(bench):
    rows = [[f"{heads.upper()}, {context_name(tokens)}",
             *(attention_cell(bench, f"{heads} {tokens} {read}", queries)
               for read, queries in (("draft", 1), ("verify", 1), ("verify", 8), ("fp16", 1)))]
            for heads in HEADS for tokens in SHOWN_CONTEXTS]
    return table(["heads, context", "draft, 1 query", "verify, 1", "verify, 8", "our fp16, 1"], rows)


def layer_seconds(bench, matrices, weights, rows):
    """Of a layer's four products; None where one was not measured."""
    each = [bench.value(f"{matrix} {weights}", rows, "seconds") for matrix in matrices]
    return None if None in each else sum(each)


def layer_baseline(bench, matrices, weights, rows):
    return sum(bench.value(f"{matrix} {weights}", rows, "baseline_seconds") for matrix in matrices)


def products(results):
    """A layer's four products, by rows."""
    bench, rows = results.bench, []
    for report in results.full():
        matrices = report.shape.matrices
        for weights in WEIGHTS:
            one = layer_seconds(bench, matrices, weights, 1)
            if one is None:
                continue
            cells = [f"{short(report)}, {weights}", f"{1e6 * one:.1f}"]
            for n in ROWS:
                seconds = layer_seconds(bench, matrices, weights, n)
                over = layer_baseline(bench, matrices, weights, n) / seconds
                cells.append(times(over) if n == 1 else f"{times(seconds / one)}, {times(over)}")
            rows.append(cells)
    return table(["shape, weights", "1 row, µs", "over cuBLAS",
                  *(f"{n} rows over 1, over cuBLAS" for n in ROWS[1:])], rows)


def memory(results):
    """After the longest context."""
    rows = []
    for report in results.reports:
        context, at = max(report.contexts.items())
        rows.append([f"{short(report)}, {context_name(context)}", *(f"{at[key] / 1e9:.2f}" for key in (
            "weights_bytes", "draft_weights_bytes", "kv_bytes", "fp16_kv_bytes", "device_bytes_used")),
            f"{at['kv_bytes'] / at['fp16_kv_bytes']:.3f}"])
    return table(["GB of", "weights", "draft weights", "our cache", "an fp16 cache",
                  "all in use, with one layer in fp16 for prompts",
                  "our cache over fp16"], rows)


# --- claims --------------------------------------------------------------------------------------


def contexts_said(report, kind):
    return listed(context_name(c) for c in report.contexts if report.best(c, kind))


def gains(report, kind, value):
    return listed(times(value(c, kind)) for c in report.contexts if report.best(c, kind))


def gained(report, kind):
    """Over plain decoding with an fp16 cache."""
    return [times(report.speed_up(context, kind)) for context in report.contexts]


def one_look(results):
    full, eight, bench = results.full(), results.eight(), results.bench
    by = "`gpu_rounds`"

    def over_all(kind, over):
        return "; ".join(f"{gains(report, kind, getattr(report, over))} ({short(report)})" for report in full)

    def more_rows(n):
        return listed(times(layer_seconds(bench, one.shape.matrices, "4-bit", n) /
                            layer_seconds(bench, one.shape.matrices, "4-bit", 1)) for one in full)

    def at_128k(heads, read, field):
        return times(bench.attention(heads, 128 * K, read, 1, field))

    cache = full[0].contexts[128 * K]
    right = sum(check["right"] for check in bench.checks.values())
    return [
        ["drafts that read all of the cache, over plain decoding with an fp16 cache, at "
         f"{contexts_said(full[0], 'dense')}", over_all("dense", "speed_up"), by],
        ["the same over plain decoding with our own 8-bit cache", over_all("dense", "over_8_bit"), by],
        [f"drafts that read 4k tokens, over plain with an fp16 cache, at {contexts_said(full[0], 'sparse')}",
         over_all("sparse 4096", "speed_up"), by],
        [f"a target of 8 bits at acceptance {eight.acceptance}, {eight.size}: dense drafts over its plain "
         f"decoding with an fp16 cache; those that read 4k, at {contexts_said(eight, 'sparse')}",
         f"{gains(eight, 'dense', eight.speed_up)}; {gains(eight, 'sparse 4096', eight.speed_up)}", by],
        ["draft attention after 128k over PyTorch's best; over FlashAttention, with which the paper compares",
         f"{at_128k('mha', 'draft', 'over_baseline')}; {at_128k('mha', 'draft', 'over_flash')} (MHA)", "`gpu_bench`"],
        ["a layer's products with 4-bit weights: 4 rows over 1; 8 rows over 1",
         f"{more_rows(4)}; {more_rows(8)} ({listed(map(short, full))})", "`gpu_bench`"],
        ["cache of 128k tokens, 7B, what drafts read included",
         f"{cache['kv_bytes'] / 1e9:.1f} GB where fp16 takes {cache['fp16_kv_bytes'] / 1e9:.1f}", by],
        ["ops that agree with the reference backend; rows whose bits are the same alone and in company",
         f"{right} of {len(bench.checks)} checks", "`gpu_bench`"],
    ]


def losses(results):
    """Where we lose or gain least, said plainly."""
    bench, seven = results.bench, results.full()[0]

    def slower(weights, rows):
        """Products that are slower than cuBLAS's with bf16 weights."""
        every = [bench.value(f"{name} {weights}", n, "over_baseline") for name in MATRICES for n in rows]
        every = [value for value in every if value is not None]
        return f"{sum(value < 1 for value in every)} of {len(every)}, the worst {times(min(every))}"

    def over(read, queries):
        return listed(times(bench.attention("gqa", tokens * K, read, queries, "over_baseline"))
                      for tokens in (4, 8))

    ours = bench.attention("mha", 128 * K, "fp16", 1, "seconds")
    theirs = bench.attention("mha", 128 * K, "fp16", 1, "baseline_seconds")
    plain = seven.best(128 * K, "plain, fp16")["round_ms"]
    shrunk = 1 - 1e3 * LAYERS * (ours - theirs) / plain
    least, where = min((report.over_8_bit(context, "dense"), f"{short(report)}, {context_name(context)}")
                       for report in results.reports for context in report.contexts)
    verified = [(report, report.best(4 * K, "dense")) for report in results.reports]
    return table(["what", "measured"], [
        ["what verification of a round takes over one plain token, at 4k", "; ".join(
            f"{times(run['verify_ms'] / report.best(4 * K, 'plain, 8-bit')['verify_ms'])} for {run['draft_len'] + 1} "
            f"({short(report)})" for report, run in verified)],
        ["attention after 4k / 8k with grouped heads, over PyTorch's best: a draft's query; 1 that is verified; 8",
         f"{over('draft', 1)}; {over('verify', 1)}; {over('verify', 8)}"],
        ["our fp16 attention after 128k (MHA), over PyTorch's best; with that in the plain decoder the 7B gains there "
         "would be, dense and sparse", f"{times(theirs / ours)}; " + " and ".join(
             times(seven.speed_up(128 * K, kind) * shrunk) for kind in ("dense", "sparse 4096"))],
        ["products slower than cuBLAS's: bf16 weights, 1, 4 and 8 rows", slower("bf16", (1, 4, 8))],
        ["the same: bf16 at 17 rows; 32; 64; 128; 17 rows of 4 bits; Q4_K; Q6_K",
         "; ".join([*(slower("bf16", (rows, )) for rows in (17, 32, 64, 128)),
                    *(slower(weights, (17, )) for weights in ("4-bit", "Q4_K", "Q6_K"))])],
        ["the least gain of dense drafts over our own 8-bit cache", f"{times(least)} ({where})"],
    ])


# --- pages ---------------------------------------------------------------------------------------


def machine(results):
    bench, baselines = results.bench, results.baselines
    return (f"A device-to-device copy reads and writes {bench.copy / 1e12:.2f} TB/s there, a large bf16 product of "
            f"cuBLAS does {baselines['matmul_flops_per_second'] / 1e12:.0f} TFLOP/s. PyTorch {baselines['torch']}, "
            f"CUDA {baselines['cuda']}, cuDNN {baselines['cudnn']}. A time is the median of a few series of calls; "
            f"the slowest series took at most {bench.spread():.2f} times the fastest.")


def set_page(results):
    """README.md of the set."""
    hardware, commit, date = results.about()
    commands = dict.fromkeys(command for data in results.files.values() for command in data["run"]["commands"])
    bench, full, goals = results.bench, results.full(), results.goals()
    made = prose(f"{hardware}, {date}. Made by `tools/make_results.py` from the JSON beside it. {machine(results)}")
    sections = [
        ("Goals", f"{gpu_goals.counts(goals)}.\n\n{gpu_goals.goals_table(goals)}"),
        ("Decode attention", "Time, share of copy, over PyTorch's best kernel for that many queries (over "
         f"FlashAttention).\n\n{gpu_tables.attention(bench)}"),
        ("Products with weights", "Time, share of copy, over cuBLAS with bf16 weights at that many rows.\n\n"
         + gpu_tables.linear(bench)),
        ("Other ops", gpu_tables.others(bench)),
        ("PyTorch's kernels", "FlashAttention, and the best of all: its name, its share of copy.\n\n"
         + gpu_tables.baselines(results.baselines)),
        *((f"Rounds, {report.name}", f"A token is accepted with probability {report.acceptance}.\n\n"
           + gpu_tables.rounds(report)) for report in results.reports),
        ("Steps and their kernels", gpu_tables.steps(bench, full)),
        ("What would close the gap", "Expected speed-ups of dense drafts, one change after the other.\n\n"
         + gpu_tables.gaps(bench, full)),
        ("Memory", gpu_tables.memory(results.reports)),
        ("Prefill", gpu_tables.prefill(results.reports)),
        ("Checks", gpu_tables.checks(bench)),
        ("Pictures", "".join(f'<img src="img/{name}.svg" width="49%" alt="{alt}">\n'
                             for name, alt in FIGURES.items())),
    ]
    return "\n".join([f"# Results at {commit}\n\n{made}\n\n" + "".join(f"    {command}\n" for command in commands),
                      *(f"## {title}\n\n{text}" for title, text in sections)])


def figure(results, name):
    return picture(results, name, FIGURES[name])


def page(results, of_ranks=""):
    """docs/results-gpu.md. of_ranks: its section on several GPUs (ranks_page.py)."""
    if not results.is_of_a_commit():
        raise Unusable(f"{results.name} was measured with changes that are in no commit")
    eight, goals = results.eight(), results.goals()
    chance = results.full()[0].acceptance
    made = prose(f"""{head(results)}: all of it but where another is named. `tools/make_results.py --write` makes this page of the JSON in
[results/{results.name}](../results/{results.name}/README.md), where all tables are, with the commands.
{machine(results)} Earlier pages: [an H200 at 2f66f9b](../results/nvidia-h200/2f66f9b/README.md), with tests,
sanitizers and fidelity, and [an H100 at 3873f07](../results/nvidia-h100/3873f07/README.md), with many streams.""")
    models = prose(f"""Models have Llama-2-7B's (MHA) and Llama-3.1-8B's (GQA) shape and **random weights, and
acceptance is simulated**: a drafted token passes with probability {chance}, or {eight.acceptance} where the target has 8 bits,
drawn and not judged. So a round costs what it does with real weights, and its yield is an assumption. All is of one
request; [results/streams](../results/streams/README.md) has many. Kernels are timed alone, on copies that together are
larger than the L2 cache. *Share of copy* is the bytes that an op must move over its time, over what the copy reads and writes; reading alone can be faster.""")
    rounds_said = prose("""Tokens a second, of drafts at the best length. *Dense* drafts read the upper plane of all
pages, *sparse* ones that of 4k tokens. The paper's figures are of real weights and A6000s.""")
    eight_said = prose(f"""The target of 8 bits beside bf16 at acceptance {eight.acceptance}, with the 8-bit cache;
*expected* has the measured costs and the yield that this acceptance gives on average (bf16 was measured at
{chance}):""")
    ops_said = "Time, share of copy, over PyTorch's best fp16 kernel."
    goals_said = prose(f"""{gpu_goals.counts(goals)}. They were set for an H200 before the backend was written.
[0007](decisions/0007-goals-missed-on-an-h200.md) says why some were missed at 2f66f9b, [0008](decisions/0008-tried-on-an-h200.md) what was tried.""")
    text = f"""# Results on a GPU

{made}

{models}

## In one look

{table(["claim", "measured", "by"], one_look(results), texts=3)}
## Rounds

{rounds_said}

{figure(results, "speed-up")}
{figure(results, "eight-bits")}

{rounds(results.reports)}
{eight_said}

{eight_bits(results)}
## Attention and products

{ops_said}

{figure(results, "attention")}
{figure(results, "linear")}

{attention(results.bench)}
A layer's four products, one after the other; over cuBLAS with bf16 weights and as many rows:

{products(results)}
## Memory

{memory(results)}
{of_ranks}
## Goals

{goals_said}

{gpu_goals.goals_table(goals)}
## Where we lose, or gain least

{losses(results)}
No figure here is of real weights or of several requests. [compare.md](compare.md) is about other engines.
"""
    lines = text.count("\n")
    if lines > MAX_LINES:
        raise ValueError(f"docs/results-gpu.md would have {lines} lines, above {MAX_LINES}")
    return text


def readme_blocks(results):
    """{name of the marks: what stands between them}."""
    said = (f"({head(results)}; random weights, drafts accepted by chance, with probability "
            f"{results.full()[0].acceptance} where nothing else is said. {gpu_goals.counts(results.goals())}: "
            "[docs/results-gpu.md](docs/results-gpu.md) has all of it.)")
    return {"gpu": table(["claim", "number", "command"], one_look(results), texts=3) + f"\n{prose(said)}\n"}


def compare_blocks(results):
    """Of docs/compare.md."""
    hardware, commit, _ = results.about()
    seven, eight = results.full()[0], results.eight()
    ours = (f"Ours, for the shape of the paper's 7B: {listed(gained(seven, 'dense'))} at "
            f"{contexts_said(seven, 'dense')} ({head(results)}, random weights, acceptance **simulated** at {seven.acceptance}: "
            "[results-gpu.md](results-gpu.md)).")
    rows = "; ".join(f"{listed(gained(report, 'dense'))} ({report.size})" for report in results.full())
    lost = (f"- **One {hardware}.** At {commit} {gpu_goals.counts(results.goals())} ([results-gpu.md](results-gpu.md#goals), "
            f"[0007](decisions/0007-goals-missed-on-an-h200.md)). Dense drafts decode {rows} as fast as plain decoding "
            f"with an fp16 cache at {contexts_said(seven, 'dense')}, and with targets of 8 bits "
            f"{listed(gained(eight, 'dense'))}. [Its last table](results-gpu.md#where-we-lose-or-gain-least) has what is "
            "slower than PyTorch's, our fp16 attention and products of many rows, and where the gain is least.")
    return {"gpu-paper": f"{prose(ours)}\n",
            "gpu-losses": prose(lost).replace("\n", "\n  ") + "\n"}
