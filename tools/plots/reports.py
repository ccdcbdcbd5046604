"""Reports: the JSON of `quantspec bench`, `eval` and `roofline`, of kernel_bench and of tools/peers_*.py,
told apart by their fields.

The fields are those of docs/bench.md, docs/eval.md, docs/roofline.md and docs/kernel-bench.md; reports that
were written before bench and eval had the same keys are read as well. tools/make_results.py adds `run`: {"commands", "commit", "date", "hardware"}.
"""

import json
import pathlib

PLAIN = ("plain-fp16", "plain-int8")
WEIGHTS = {"w4": "4-bit weights", "w8": "8-bit weights", "wfull": "full weights",
           "w16": "full weights"}  # as reports had it before


class Unusable(Exception):
    """One line that says which file is wrong, and how."""


class Missing(Exception):
    """There is nothing to draw; the message says which data there would have to be."""


class Report:
    def __init__(self, name, data):
        self.name = name
        self.meta = data["meta"]
        self.rows = data.get("rows", [])
        self.data = data
        self.run = data.get("run", {})
        self.kind = kind_of(data)

    def of_kind(self, kind):
        return [row for row in self.rows if row.get("kind") == kind]

    def temperatures(self):
        return sorted({row["temperature"] for row in self.rows}, reverse=True)

    def contexts(self):
        return sorted({row["context"] for row in self.rows})

    def contexts_name(self):
        """What was asked for, as it is typed."""
        return ",".join(map(str, self.meta["contexts"]))

    def source(self, text=True):
        """What was measured on what, when: the small print."""
        meta, run = self.meta, self.run
        parts = [
            meta.get("model", ""),
            dataset_name(meta.get("dataset", "")) if text else "",
            self.hardware(),
            run.get("date") or meta.get("date", ""),
            run.get("commit") or meta.get("commit", "")
        ]
        if self.kind == "roofline":
            parts[1:3] = [f"computed for {machine_name(meta['machine'])}"]
        return " · ".join(
            part.split("T")[0] if part[:2] == "20" else part for part in parts if part)

    def hardware(self):
        if self.run.get("hardware"):
            return self.run["hardware"]
        threads = self.meta.get("threads")
        return self.meta.get("cpu", "") + (f", {threads} threads" if threads else "")


def kind_of(data):
    """bench, perplexity, axes, fidelity, sensitivity, lossless, roofline or kernels; else None."""
    meta, rows = data["meta"], data.get("rows")
    if "planes" in data:
        return "roofline"
    if "measurement" in meta:
        return meta["measurement"]
    return "bench" if rows and {"plan", "speedup_fp16", "draft_len"} <= rows[0].keys() else None


def renamed(meta):
    """With today's keys: quantspec, predict and eval's context are version, tokens and contexts."""
    meta = {{"quantspec": "version", "predict": "tokens"}.get(key, key): value
            for key, value in meta.items()}
    if "context" in meta:
        meta["contexts"] = [int(part) for part in meta.pop("context").split(",")]
    return meta


def of_kernels(data):
    """A report in the form of the others from Google Benchmark's: of every kernel the fastest
    repetition, since whatever else a machine does only makes one slower."""
    context, best = data["context"], {}
    for row in data["benchmarks"]:
        if row.get("run_type") != "iteration":
            continue  # a mean over repetitions
        name = row["name"].removesuffix("/real_time")
        row = {"typical_us": row["real_time"]} | row | {"name": name}
        if name not in best or row["typical_us"] < best[name]["typical_us"]:
            best[name] = row
    meta = context | {"measurement": "kernels", "cpu": context["backend"]}
    meta.pop("threads", None)  # stands in the backend's description
    rows = sorted(best.values(), key=lambda row: row["family_index"])  # as they are registered
    return {"meta": meta, "rows": rows, "run": data.get("run", {})}


def of_peers(data):
    """A report in the form of the others from that of tools/peers_*.py."""
    meta = {key: value for key, value in data.items() if key not in ("rows", "run")}
    return {"meta": meta, "rows": data["rows"], "run": data.get("run", {})}


def load(path):
    try:
        data = json.loads(pathlib.Path(path).read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise Unusable(f"{path}: cannot be read: {error}") from error
    except json.JSONDecodeError as error:
        raise Unusable(f"{path}: not JSON ({error}); quantspec writes it with -o json") from error
    if isinstance(data, dict) and "backend" in data.get("context", {}):
        data = of_kernels(data)
    if isinstance(data, dict) and str(data.get("measurement", "")).startswith("peers-speed"):
        data = of_peers(data)
    if not isinstance(data, dict) or not isinstance(data.get("meta"), dict) or not kind_of(data):
        raise Unusable(f"{path}: not a report of quantspec bench, eval or roofline")
    return Report(pathlib.Path(path).stem, data | {"meta": renamed(data["meta"])})


# --- words ---------------------------------------------------------------------------------------


def dataset_name(spec):
    """"text:/home/me/story.txt" -> "text:story": the end of a path says enough."""
    kind, _, path = spec.partition(":")
    return f"{kind}:{pathlib.PurePath(path).stem}" if path else spec


def machine_name(name):
    return {
        "a6000": "RTX A6000",
        "a100": "A100",
        "h100": "H100",
        "h200": "H200",
        "rtx4090": "RTX 4090",
        "this": "this machine"
    }.get(name, name)


def tokens_name(tokens):
    """8192 -> "8k"; 7680 -> "7.5k"; 5000 -> "5000"."""
    return f"{tokens / 1024:g}k" if tokens >= 1024 and tokens % 512 == 0 else str(tokens)


def counted(number, noun):
    """1 prompt, 2 prompts."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def temperature_name(temperature):
    return "greedy" if temperature == 0 else f"temperature {temperature:g}"


# --- plans ---------------------------------------------------------------------------------------


def family(plan):
    """The method, whatever weights it drafts with: "streaming+w4" -> "streaming"."""
    if plan.startswith("plan:"):
        return "plan file"
    if plan.startswith("layer-skip"):
        return "layer-skip"
    return "+".join(part for part in plan.split("+") if part not in WEIGHTS)


def plan_name(plan):
    """A name that fits a picture: of a plan file its stem, of skipped layers how many."""
    if plan.startswith("plan:"):
        name = plan[len("plan:"):]
        return pathlib.PurePath(name).stem if name.endswith(".json") else name
    return plan


def best(rows):
    """The row of one plan where it was run in several ways: chosen draft length, default budget."""
    def order(row):
        away = abs((row["draft_budget"] or 0) - row["context"] / 4)
        return (away, row["draft_len"] != "auto", -(row["speedup_fp16"] or 0))

    return min(rows, key=order)


def by_plan(rows):
    """{plan: its best row}, in the order of the report."""
    plans = {}
    for row in rows:
        plans.setdefault(row["plan"], []).append(row)
    return {plan: best(many) for plan, many in plans.items()}


def leaders(report, temperature):
    """Of every method the plan that is fastest at the longest context, in the report's order."""
    context = report.contexts()[-1]
    rows = [
        row for row in report.rows
        if row["temperature"] == temperature and row["context"] == context
    ]
    fastest = {}
    for plan, row in by_plan(rows).items():
        known = fastest.get(family(plan))
        if known is None or row["speedup_fp16"] > known["speedup_fp16"]:
            fastest[family(plan)] = row
    return [row["plan"] for row in fastest.values()]


def line(report, plan, temperature):
    """The plan's best row at every context, shortest first."""
    rows = [row for row in report.rows if row["plan"] == plan and row["temperature"] == temperature]
    return [
        best([row for row in rows if row["context"] == context])
        for context in sorted({row["context"]
                               for row in rows})
    ]
