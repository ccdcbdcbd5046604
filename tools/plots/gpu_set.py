"""A set of results of a GPU: results/MACHINE/COMMIT with bench.json of gpu_bench, baselines.json of
tools/gpu_baselines.py, and the other files of gpu_rounds."""

import datetime
import json
import pathlib
import re

from plots import gpu_goals, gpu_tables
from plots.reports import Unusable

# A report's kind: what writes it, a list that it has, and keys of its entries.
KINDS = {
    "bench": ("gpu_bench --json", "measurements", ("name", "rows", "seconds", "most_seconds")),
    "baselines": ("tools/gpu_baselines.py --out", "attention", ("shape", "tokens", "us")),
    "rounds": ("gpu_rounds --json", "contexts", ("context", "fp16_kv_bytes", "runs")),
}
# What is run for each file of a set, in this order.
COMMANDS = {
    "baselines": ("tools/gpu_baselines.py --out baselines.json", ),
    "bench": ("gpu_bench --baselines baselines.json --json bench.json", ),
    "7b": ("tools/make_random_model.py llama-2-7b m7",
           "gpu_rounds -m m7 --draft-len 6,10 --warm-up 128 --json 7b.json"),
    "8b": ("tools/make_random_model.py llama-3.1-8b m8",
           "gpu_rounds -m m8 --draft-len 3,5,7 --warm-up 128 --json 8b.json"),
    "8b8": ("gpu_rounds -m m8 --target-weights 8 --acceptance 0.93 --draft-len 4,6 --warm-up 128 "
            "--json 8b8.json", ),
}


def load(path):
    kind = path.stem if path.stem in KINDS else "rounds"
    writer, rows, keys = KINDS[kind]
    try:
        data = json.loads(path.read_text())
        _ = data["device"]
        for row in data[rows] or [{}]:
            _ = [row[key] for key in keys]
        return data
    except OSError as error:
        raise Unusable(f"{path}: cannot be read: {error.strerror}") from error
    except (json.JSONDecodeError, UnicodeDecodeError, LookupError, TypeError) as error:
        raise Unusable(f"{path}: not what {writer} writes") from error


def card(device):
    """The GPU's name, of "cuda (GPU 0: NVIDIA H200, kernels for 9.0)" or as PyTorch says it."""
    found = re.search(r"GPU \d+: ([^,)]+)", device)
    return found[1] if found else device


def is_gpu(folder):
    return (folder / "bench.json").exists()


class GpuSet:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.name = "/".join(self.folder.parts[-2:])
        missing = [name for name in COMMANDS if not (self.folder / f"{name}.json").exists()]
        if missing:
            raise Unusable(f"{self.name} has no {missing[0]}.json")
        self.files = {name: load(self.folder / f"{name}.json") for name in COMMANDS}
        self.bench = gpu_tables.Bench(self.files["bench"])
        self.baselines = self.files["baselines"]
        self.reports = sorted((gpu_tables.Rounds(data) for name, data in self.files.items()
                               if name not in KINDS), key=gpu_tables.Rounds.order)

    def about(self):
        """Machine, commit and date of all reports. Raises ValueError where they differ."""
        facts = {(card(data["device"]), data["run"]["hardware"], data["run"]["commit"])
                 for data in self.files.values()}
        if len(facts) != 1:
            raise ValueError(f"{self.name}: its reports are not of one machine and commit: "
                             + "; ".join(" at ".join(fact[1:]) for fact in sorted(facts)))
        _, hardware, commit = facts.pop()
        return hardware, commit, max(data["run"]["date"] for data in self.files.values())

    def is_of_a_commit(self):
        return not self.name.endswith("-dirty")

    def full(self):
        """Rounds of bf16 targets."""
        return [report for report in self.reports if report.bits == 16]

    def eight(self):
        """Rounds of the target of 8 bits."""
        return next(report for report in self.reports if report.bits == 8)

    def of_bf16(self, eight):
        """Rounds of the same shape's bf16 target."""
        return next(report for report in self.full() if report.shape == eight.shape)

    def goals(self):
        return gpu_goals.goals(self.bench, self.reports)


def keep(source, commit, results):
    """Puts the files of a folder into the set of that commit below `results`; returns its folder."""
    files = {name: load(source / f"{name}.json") for name in COMMANDS}
    cards = {card(data["device"]) for data in files.values()}
    if len(cards) != 1:
        raise Unusable(f"{source}: of several GPUs: {', '.join(sorted(cards))}")
    machine = re.sub(r"[^a-z0-9.]+", "-", cards.pop().lower())
    folder = results / machine / commit
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        measured = datetime.datetime.fromtimestamp((source / f"{name}.json").stat().st_mtime,
                                                   datetime.timezone.utc)
        data["run"] = {"commands": list(COMMANDS[name]), "date": measured.date().isoformat(),
                       "commit": commit, "hardware": card(data["device"])}
        (folder / f"{name}.json").write_text(json.dumps(data) + "\n")
    return folder
