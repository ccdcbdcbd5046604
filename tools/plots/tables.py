"""Tables of results in Markdown: the forms of arXiv:2502.10424's tables 1, 2, 3, 5 and 6, and a few
more. Each takes the reports of a section and returns text."""

import pathlib
import textwrap

from plots.reports import (PLAIN, counted, dataset_name, machine_name, plan_name,
                           temperature_name, tokens_name)


def prose(text):
    """A paragraph, in lines."""
    return textwrap.fill(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False)


def table(titles, rows, texts=1):
    """The first columns are text, the others numbers."""
    lines = [titles, ["---"] * texts + ["--:"] * (len(titles) - texts), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) + "\n"


# --- quantspec bench -----------------------------------------------------------------------------


def speed(reports):
    """Table 3's form, by text and temperature: acceptance, memory and speed-up by context."""
    return by_temperature(reports, ("plan", named), ("context", context),
                          ("draft length", draft_len), ("accepted", share),
                          ("tokens per round", lambda row: f"{row['tokens_per_round']:.2f}"),
                          ("peak MB", lambda row: megabytes(row["peak_bytes"])),
                          ("tokens/s", tokens_per_second), *SPEED_UP_COLUMNS)


def draft_lengths(reports):
    """Table 6's form: the search for the draft length."""
    return by_temperature(reports, PLAN_COLUMN, ("context", context), ("draft length", draft_len),
                          ("accepted", share), ("tokens/s", tokens_per_second), *SPEED_UP_COLUMNS,
                          wanted=drafts)


def budgets(reports):
    """What sparse drafts give by the tokens that they read."""
    return by_temperature(reports, PLAN_COLUMN, ("context", context), ("budget", budget),
                          ("draft length", draft_len), ("accepted", share), *SPEED_UP_COLUMNS,
                          wanted=drafts)


def by_temperature(reports, *columns, wanted=lambda row: True):
    """A table for every report and temperature. columns: title, cell of a row."""
    parts = []
    for report in reports:
        for temperature in report.temperatures():
            rows = [row for row in of_temperature(report, temperature) if wanted(row)]
            parts.append(
                heading(report, rows, temperature) + table([title for title, _ in columns], [
                    [cell(row) for _, cell in columns] for row in rows
                ]))
    return "\n".join(parts)


def drafts(row):
    return row["plan"] not in PLAIN


def of_temperature(report, temperature):
    return [row for row in report.rows if row["temperature"] == temperature]


def heading(report, rows, temperature):
    row, store = rows[0], report.meta["draft_store"]
    weights = f", draft weights of {pathlib.PurePath(store).name}" if store else ""
    return (f"{report.meta['model']}, {dataset_name(report.meta['dataset'])}, "
            f"{temperature_name(temperature)}{weights}; {counted(row['prompts'], 'prompt')} × "
            f"{counted(row['repeats'], 'repeat')} of {row['tokens']} tokens:\n\n")


def named(row):
    """The plan, and what auto chose."""
    name = plan_name(row["plan"])
    return f"{name} ({row['chosen_plan']})" if name == "auto" and row["chosen_plan"] else name


def context(row):
    return tokens_name(row["context"])


def budget(row):
    if not row["draft_budget"]:
        return "all"
    return f"{row['draft_budget']} ({row['draft_budget'] / row['context']:.0%})"


def tokens_per_second(row):
    return f"{row['decode_tokens_per_second']:.0f}"


def draft_len(row):
    if row["plan"] in PLAIN:
        return "-"
    return f"auto, {row['draft_len_mean']:.1f}" if row["draft_len"] == "auto" else row["draft_len"]


def share(row):
    return "-" if row["acceptance_rate"] is None else f"{row['acceptance_rate']:.3f}"


def ratio(row, field):
    return f"{row[field]:.2f} ({row[f'{field}_min']:.2f}-{row[f'{field}_max']:.2f})"


def times(value):
    return f"{value:.2f}x"


def streams(reports, wanted=lambda row: True):
    """Many requests at once."""
    return "\n".join(table(
        ["plan", "context", "streams", "sampling", "tokens/s of all", "over fp16 KV",
         "over 8-bit KV", "ms between arrivals, median", "99%"],
        [[plan_name(row["plan"]), context(row), row["streams"], temperature_name(row["temperature"]),
          f"{row['output_tokens_per_second']:.0f}", ratio(row, "speedup_fp16"),
          ratio(row, "speedup_int8"), f"{row['itl_p50_ms']:.1f}", f"{row['itl_p99_ms']:.1f}"]
         for row in report.rows if wanted(row)]) for report in reports)


def peers(reports):
    """Ours without drafts beside llama.cpp, on one file a row."""
    def titled(row):
        name = tokens_name(row["tokens"])
        return f"decode at {name}" if row["what"] == "decode" else f"prompt of {name}"

    return table(["llama.cpp / ours", *(titled(row) for row in reports[0].rows)], [[
        report.meta["model"].removesuffix(".gguf"),
        *(f"{row['llama_cpp']:.4g} / {row['plain_tokens_per_second']:.4g}, "
          f"{times(row['plain_ratio']['median'])}" for row in report.rows)
    ] for report in reports])


def megabytes(count):
    return f"{count / 1e6:.0f}"


PLAN_COLUMN = ("plan", lambda row: plan_name(row["plan"]))
SPEED_UP_COLUMNS = (("over fp16 KV", lambda row: ratio(row, "speedup_fp16")),
             ("over 8-bit KV", lambda row: ratio(row, "speedup_int8")))


# --- quantspec eval ------------------------------------------------------------------------------


def perplexity(reports):
    """Table 2: variants against fp16 KV, for every text."""
    titles, texts = ["KV and weights"], [report.of_kind("perplexity") for report in reports]
    for report in reports:
        name = f"{dataset_name(report.meta['dataset'])}, {report.contexts_name()}"
        titles += [f"perplexity, {name}", "Δ nats per token", "KL", "same top-1"]
    rows = []
    for variant in (row["variant"] for row in texts[0]):
        cells = [variant]
        for text in texts:
            row = next(row for row in text if row["variant"] == variant)
            cells += [
                f"{row['perplexity']:.3f}",
                with_error(row, "delta_nll", "delta_nll_error"), f"{row['kl_mean']:.1e}",
                f"{row['top1_agreement']:.4f}"
            ]
        rows.append(cells)
    return table(titles, rows)


def axes(reports):
    """Table 5: keys in columns, values in rows."""
    parts = []
    for report in reports:
        found = {row["variant"]: row for row in report.of_kind("perplexity")}
        ways = ("token-wise", "channel-wise")
        parts.append(
            f"Perplexity of {report.meta['model']}, {dataset_name(report.meta['dataset'])}, "
            f"windows of {report.contexts_name()}; fp16 KV: "
            f"{found['fp16 KV']['perplexity']:.3f}:\n\n" +
            table(["4-bit KV", *(f"keys {way}" for way in ways)], [[
                f"values {value}", *(f"{found[f'keys {key}, values {value}']['perplexity']:.3f}"
                                     for key in ways)
            ] for value in ways]))
    return "\n".join(parts)


def fidelity(reports):
    """How far targets and drafts are from what they stand for."""
    def reading(report, row):
        budget = report.meta.get("draft_budget", 0)
        return f"{row['reading']}@{budget}" if budget and row["reference"] == "target" else (
            row["reading"])

    rows = [[
        reading(report, row), row["reference"],
        dataset_name(report.meta["dataset"]),
        tokens_name(row["context"]), row["tokens"],
        with_error(row, "acceptance", "acceptance_error"), f"{row['top1_agreement']:.4f}",
        f"{row['kl_mean']:.1e}", f"{row['kl_p99']:.1e}"
    ] for report in reports for row in report.of_kind("fidelity")]
    return table([
        "reading", "against", "text", "context", "tokens", "Σ min(p, q)", "same top-1", "KL, nats",
        "KL, 99%"
    ], rows)


def draft_weights(reports):
    """What drafts of one plan give with weights that were made in several ways."""
    rows = [[
        pathlib.PurePath(report.meta["draft_store"]).stem or "rounded while loading",
        plan_name(row["reading"]),
        tokens_name(row["context"]), row["tokens"],
        with_error(row, "acceptance", "acceptance_error"), f"{row['top1_agreement']:.4f}",
        f"{row['kl_mean']:.4f}", f"{row['kl_p99']:.3f}"
    ] for report in reports for row in report.of_kind("fidelity") if row["reference"] == "target"]
    return table([
        "draft weights", "plan", "context", "tokens", "Σ min(p, q)", "same top-1", "KL, nats",
        "KL, 99%"
    ], rows)


def sensitivity(reports):
    """The plan that was chosen layer by layer, against the uniform one, on held-out prompts."""
    rows = [[
        plan_name(row["plan"]),
        dataset_name(report.meta["dataset"]), report.contexts_name(),
        f"{row['draft_bytes'] / 1e6:.2f}",
        with_error(row, "acceptance",
                   "acceptance_error"), f"{row['kl_mean']:.2e}", f"{row['target_kl_mean']:.1e}"
    ] for report in reports for row in report.of_kind("plan")]
    layers = [[
        row["layer"], f"{row['entropy']:.2f}", f"{row['entropy_relative']:.2f}",
        changes(report, row["layer"])
    ] for report in reports for row in report.of_kind("entropy")]
    heads = [["head", "-", "-", changes(report, "head")] for report in reports]
    said = "".join(f"\n{report.meta['conclusion']}\n" for report in reports
                   if report.meta.get("conclusion"))
    return (table(
        ["plan", "text", "context", "MB a draft reads", "accepted", "KL, nats", "target's KL"],
        rows) + said + "\n" + table([
            "layer", "attention entropy, nats", "of the greatest",
            "what changing it alone changes: draft's KL, nats; acceptance"
        ], layers + heads))


def changes(report, layer):
    rows = [
        row for row in report.of_kind("sensitivity")
        if str(row["layer"]) == str(layer) and row["from"] == "draft"
    ]
    return "<br>".join(f"{row['change']}: {row['kl_change']:+.1e}; {row['acceptance_change']:+.4f}"
                       for row in rows) or "-"


def lossless(reports):
    """Speculation against plain decoding."""
    counts = {}
    for report in reports:
        for row in report.of_kind("lossless"):
            key = (row["plan"], row["sampling"])
            total = counts.setdefault(key, [[], 0, 0, 0])
            total[0] += [] if str(row["draft_len"]) in total[0] else [str(row["draft_len"])]
            total[1] += 1
            total[2] += row["tokens"]
            total[3] += row["first_difference"] is not None
    return table(["plan", "sampling", "draft lengths", "generations", "tokens", "that differ"],
                 [[plan, sampling, " ".join(lengths), runs, tokens, different]
                  for (plan, sampling), (lengths, runs, tokens, different) in counts.items()])


def with_error(row, field, error):
    if row[field] is None:
        return "-"
    error = row[error]
    return f"{row[field]:.4f}" + (f" ± {error:.4f}" if error is not None else "")


# --- quantspec roofline --------------------------------------------------------------------------


def roofline(reports):
    """Table 1 with the constants in, and the rounds that it predicts."""
    parts = []
    for report in reports:
        meta, ends = report.meta, sorted({row["context"] for row in report.data["table1"]})
        batch = min(row["batch"] for row in report.data["table1"])
        parts.append(
            f"{meta['model']} on {machine_name(meta['machine'])}: "
            f"{meta['bandwidth_bytes_per_second'] / 1e9:.0f} GB/s, "
            f"{meta['flops_per_second'] / 1e12:.3g} TFLOP/s, ridge at "
            f"{meta['ridge_flops_per_byte']:.0f} FLOP/byte; batch {batch}, "
            f"{meta['generated_tokens']} tokens decoded:\n\n" +
            table(["phase, part", "context", "GFLOP", "GB", "FLOP/byte", "bound by"], [[
                f"{row['phase']}, {row['part']}",
                tokens_name(row["context"]), f"{row['flops'] / 1e9:,.0f}",
                f"{row['bytes'] / 1e9:,.1f}", f"{row['intensity']:,.1f}", row["bound"]
            ] for row in report.data["table1"] if row["batch"] == batch and row["context"] in (
                ends[0], ends[-1])]) + "\n" + table([
                    "acceptance", "context", "plain fp16, ms", "plain 8-bit, ms",
                    "best draft length", "ms per token", "over fp16 KV", "over 8-bit KV"
                ], [[
                    row["acceptance"],
                    tokens_name(row["context"]), f"{row['plain_fp16_ms']:.2f}",
                    f"{row['plain_int8_ms']:.2f}", row["draft_len"], f"{row['ms_per_token']:.2f}",
                    f"{row['speedup_fp16']:.2f}", f"{row['speedup_int8']:.2f}"
                ] for row in report.data["steps"] if row["batch"] == batch]))
    return "\n".join(parts)
