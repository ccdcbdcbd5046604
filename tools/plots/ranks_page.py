"""results/ranks: what gpu_rounds measured with one GPU and several, and a model of what is between and
beyond. Writes its README.md, and a section of docs/results-gpu.md."""

import itertools
import json

from plots.gpu_tables import context_name, times
from plots.tables import prose, table

PLAIN = "plain, 8-bit cache"
LAYERS = {"8b": 32, "8b-q8": 32, "70b": 80}
NAMES = {"8b": "8B, bf16", "8b-q8": "8B, Q8_0", "70b": "70B, Q8_0"}
GPUS = (1, 2, 4, 8)
CONTEXTS = (4096, 131072, 1 << 20)
MOST_DRAFTED = 8


class Rounds:
    """A file of gpu_rounds --json, with its run."""

    def __init__(self, path):
        data = json.loads(path.read_text())
        self.file, self.ranks, self.shape = path.name, data["ranks"], data["shape"]
        self.acceptance = data["simulated_acceptance"]
        self.run, self.contexts = data["run"], data["contexts"]

    def name(self):
        return NAMES[self.shape]

    def machine(self):
        return self.run["hardware"], self.run["commit"], self.run["date"]


def best(context, kind):
    """The fastest run of a kind."""
    runs = [run for run in context["runs"] if run["name"].startswith(kind)]
    return max(runs, key=lambda run: run["tokens_per_second"], default=None)


def rounds_of(folder):
    shapes = list(LAYERS)
    return sorted((Rounds(path) for path in folder.glob("*.json")),
                  key=lambda rounds: (shapes.index(rounds.shape), rounds.contexts[-1]["context"], rounds.ranks))


# --- what was measured ---------------------------------------------------------------------------


def measured(all_rounds):
    """A row for each model, context and number of GPUs, and its ratios to the fewest with the same contexts."""
    rows = []
    for _, group in itertools.groupby(all_rounds, lambda r: (r.shape, [c["context"] for c in r.contexts])):
        group = list(group)
        for i, context in enumerate(group[0].contexts):
            for rounds in group:
                here = rounds.contexts[i]
                cells = [f"{rounds.name()}, {context_name(here['context'])}", rounds.ranks,
                         " / ".join(f"{here[key]:.2f}" for key in ("prefill_seconds", "warm_prefill_seconds")
                                    if key in here)]
                for kind in (PLAIN, "dense", "sparse"):
                    run, first = best(here, kind), best(context, kind)
                    cells += ["-", "-"] if run is None else [
                        f"{run['tokens_per_second']:.0f}" + (f" ({run['draft_len']})" if run["draft_len"] else ""),
                        times(run["tokens_per_second"] / first["tokens_per_second"])]
                drafts = best(here, "dense")
                cells += [f"{drafts['draft_step_ms']:.2f}", f"{drafts['verify_ms']:.2f}"]
                rows.append(cells)
    return table(["model, context", "GPUs", "prompt, s", "plain", "over the first", "dense drafts", "over the first",
                  "sparse drafts", "over the first", "a draft step, ms", "verification, ms"], rows)


def shared_contexts(folder):
    """Of 8B: ranks that share its heads beside ranks that share each context; what ran, and a table."""
    ways = {"one": "one", "by-heads": "two, by heads", "shared": "two that share each context"}
    all_rounds = {way: Rounds(folder / f"contexts/{way}.json") for way in ways}
    lines = []
    for way, rounds in all_rounds.items():
        for context in rounds.contexts:
            drafts = best(context, "dense")
            lines.append([f"{ways[way]}, {context_name(context['context'])}",
                          f"{context['prefill_seconds'] or context['warm_prefill_seconds']:.2f}",
                          *(f"{ms:.2f}" for ms in (best(context, PLAIN)["verify_ms"], drafts["draft_step_ms"],
                                                   drafts["verify_ms"])),
                          f"{context['kv_bytes'] / 1e6:.0f}"])
    commands = ", ".join(f"`{rounds.run['commands'][0]}`" for rounds in all_rounds.values())
    said = prose(f"""{all_rounds['one'].run['hardware']}, {all_rounds['one'].run['commit']}: {commands}. Seconds of the first
prompt (into an fp16 cache, which cannot be shared, else an 8-bit one), and ms; pages and ring are of one GPU. [0022](../../docs/decisions/0022-contexts-of-gpus.md) has more.""")
    return said, table(["GPUs, context", "prompt", "a plain token", "a draft step", "verification", "pages, MB"], lines)


# --- beside another engine -------------------------------------------------------------------------


class Beside:
    """What llama-bench measured of the same files on the same GPUs. A row's speed is that of its fastest
    repetition: the first of a process captures graphs, which ours have done before they are timed."""

    def __init__(self, folder):
        data = json.loads((folder / "beside/llama-bench.json").read_text())
        self.program, self.run, self.rows = data["program"], data["run"], data["rows"]

    def speed(self, *of):
        """Of a shape, a number of GPUs and a context; None where that did not run."""
        return next((max(row["repetitions"]) for row in self.rows
                     if (row["shape"], row["gpus"], row["context"]) == of), None)

    def table(self, all_rounds):
        lines = []
        for row in self.rows:
            context = next(context for rounds in all_rounds
                           if (rounds.shape, rounds.ranks) == (row["shape"], row["gpus"])
                           for context in rounds.contexts if context["context"] == row["context"])
            theirs = max(row["repetitions"])
            runs = [best(context, kind) for kind in (PLAIN, "dense", "sparse")]
            plain, dense, sparse = (run and run["tokens_per_second"] for run in runs)
            lines.append([f"{NAMES[row['shape']]}, {context_name(row['context'])}", row["gpus"], row["split"],
                          f"{theirs:.0f} ({min(row['repetitions']):.0f})", f"{plain:.0f}", times(plain / theirs),
                          f"{dense:.0f}", f"{sparse:.0f}" if sparse else "-",
                          times(max(plain, dense, sparse or 0) / theirs)])
        return table(["model, context", "GPUs", "its split", "llama.cpp, fastest (slowest)", "plain", "over it",
                      "dense drafts", "sparse drafts", "the fastest, over it"], lines)


# --- a model of the gain -------------------------------------------------------------------------


def passes(rounds):
    """(context, ms) of plain passes, draft steps and verifications, all of as many drafted tokens, the
    most that there are."""
    found = {"plain": [], "draft": [], "verify": []}
    lengths = [{run["draft_len"] for run in context["runs"]} - {0} for context in rounds.contexts]
    length = max(set.intersection(*lengths))
    for context in rounds.contexts:
        drafts = next(run for run in context["runs"] if run["name"] == "dense" and run["draft_len"] == length)
        found["plain"].append((context["context"], best(context, PLAIN)["verify_ms"]))
        found["draft"].append((context["context"], drafts["draft_step_ms"]))
        found["verify"].append((context["context"], drafts["verify_ms"]))
    return found


def least_squares(terms, values):
    """What the terms are multiplied by, of which as many as there are of each row."""
    count = len(terms[0])
    rows = [[sum(t[i] * t[j] for t in terms) for j in range(count)]
            + [sum(t[i] * v for t, v in zip(terms, values))] for i in range(count)]
    for i in range(count):  # Gauss and Jordan; the squares' matrix is positive
        rows[i] = [x / rows[i][i] for x in rows[i]]
        for j in range(count):
            if j != i:
                rows[j] = [x - rows[j][i] * y for x, y in zip(rows[j], rows[i])]
    return [row[-1] for row in rows]


def fitted(points):
    """a, b and c of ms = a + (b + c context) / GPUs, by relative errors, of which the worst one."""
    terms = [(1 / ms, 1 / gpus / ms, context / gpus / ms) for gpus, context, ms in points]
    found = least_squares(terms, [1.0] * len(points))
    return found, max(abs(sum(x * y for x, y in zip(found, row)) - 1) for row in terms)


class Model:
    """Passes of a shape by number of GPUs and context."""

    def __init__(self, all_rounds, shape, like=None):
        self.worst, self.terms = 0, {}
        for kind in ("plain", "draft", "verify"):
            points = [(rounds.ranks, context, ms) for rounds in all_rounds if rounds.shape == shape
                      for context, ms in passes(rounds)[kind]]
            if like is None:
                self.terms[kind], worst = fitted(points)
            else:  # of one number of GPUs: what does not shrink is the other's, by layers
                fixed = like.terms[kind][0] * LAYERS[shape] / LAYERS["8b"]
                rest = least_squares([(1, context) for _, context, _ in points],
                                     [gpus * (ms - fixed) for gpus, _, ms in points])
                self.terms[kind], worst = (fixed, *rest), 0
            self.worst = max(self.worst, worst)

    def ms(self, kind, gpus, context):
        a, b, c = self.terms[kind]
        return a + (b + c * context) / gpus

    def speculative(self, gpus, context, acceptance):
        """Tokens a second at the best draft length, and it."""
        def speed(n):
            tokens = (1 - acceptance**(n + 1)) / (1 - acceptance)
            return 1e3 * tokens / (n * self.ms("draft", gpus, context) + self.ms("verify", gpus, context))
        return max((speed(n), n) for n in range(1, MOST_DRAFTED + 1))


def gain(all_rounds):
    acceptance = all_rounds[0].acceptance
    of_8b = Model(all_rounds, "8b")
    rows = []
    for shape, model in (("8b", of_8b), ("70b", Model(all_rounds, "70b", like=of_8b))):
        for context in CONTEXTS:
            cells = [f"{NAMES[shape]}, {context_name(context)}"]
            for gpus in GPUS:
                speed, length = model.speculative(gpus, context, acceptance)
                cells.append(f"{1e3 / model.ms('plain', gpus, context):.0f} / {speed:.0f} ({length})")
            rows.append(cells)
    return of_8b, table(["model, context", *(f"{n} GPU{'s' if n > 1 else ''}" for n in GPUS)], rows)


# --- pages ---------------------------------------------------------------------------------------


def page(folder):
    """README.md of the folder."""
    all_rounds = rounds_of(folder)
    runs = "\n".join(f"- {rounds.file}: {rounds.run['hardware']}, {rounds.run['commit']}, {rounds.run['date']}: "
                     + ", ".join(f"`{command}`" for command in rounds.run["commands"]) for rounds in all_rounds)
    beside, shared = Beside(folder), shared_contexts(folder)
    of_8b, gains = gain(all_rounds)
    fixed = {kind: terms[0] for kind, terms in of_8b.terms.items()}
    said = prose(f"""A model, not a measurement: a pass takes a + (b + c · context) / GPUs, by least squares over the
passes of 8B above, which it gives within {100 * of_8b.worst:.0f}%. What does not shrink, a, is {fixed['plain']:.2f} ms of a
plain token, {fixed['draft']:.2f} of a draft step and {fixed['verify']:.2f} of verification: launches, norms, sums between
GPUs, and blocks that are too few. Of 70B a is that of 8B by layers, b and c follow from 2 GPUs. Verification is taken to cost the same whatever the length. So 8 GPUs and 1M tokens
are beyond all that was measured, and 70B's columns are of an H200, 8B's of an H100. Tokens a second, plain / with dense
drafts at acceptance {all_rounds[0].acceptance} and the best length:""")
    return f"""# Several GPUs

{prose('''Made by `tools/make_results.py --write` from the JSON beside it, which `gpu_rounds` wrote. Weights are random, of
Llama-3.1-8B's and 70B's shapes, 8B's in bf16 with a vocabulary of 8,192. Drafted tokens are accepted with a probability that is
given. GPUs of a machine reach each other by NVLink. 8b is written by `tools/make_random_model.py llama-3.1-8b 8b --tokenizer models/pg-24m`, 8b.gguf and 70b.gguf by `tools/write_gguf.py random llama-3.1-8b --type q8_0` and so on.''')}

{runs}

{prose('''8b-1, 8b-2 and 8b-4 are of that commit as it is. 8b-long is of it with an early state of the commit "cuda: ranks
read prompts with the bits of one", which changes prompts alone; those of 8b-long-2 were copied by cudaMemcpy2DAsync,
which kernels do by now. 8B in bf16 at 32k stands there twice, as it was in both calls.''')}

## Rounds

Tokens a second, with the 8-bit cache, and of drafts at the better length (in brackets). Prompts: into an fp16 cache, and
then into an 8-bit one. While the first of a process is read, memory and libraries' algorithms are taken.

{measured(all_rounds)}
## Beside llama.cpp

{prose(f'''{beside.program} (of its kernels those that these files need), on the machine, the GPUs and the files of
8b-q8-1, 8b-q8-2 and 70b-2, right after them, {beside.run['hardware']}: `{beside.run['commands'][0]}`, and for 8B after
4k `-r 5` in a process of its own. It has an fp16 cache; `-sm row` refuses these files ("does not support split
buffers"). After deeper contexts in the same process it was slower: 213 and 246 for 8B after 4k; in an earlier
call one GPU wrote 168 after 32k. Without NCCL
(`GGML_CUDA_ALLREDUCE=internal`) two GPUs were not faster: 245 and 192 after 4k and 32k. Plain decoding assumes nothing,
drafts an acceptance. Tokens a second:''')}

{beside.table(all_rounds)}
## Contexts that GPUs share

{shared[0]}

{shared[1]}
## What more GPUs bring

{said}

{gains}"""


def section(folder):
    """Of docs/results-gpu.md: a row for each model and context, of the first files that have it."""
    all_rounds = rounds_of(folder)
    beside = Beside(folder)
    rows, cards = {}, {}
    for rounds in all_rounds:
        cards.setdefault(rounds.shape, rounds.run["hardware"])
        for context in rounds.contexts:
            by_gpus = rows.setdefault((rounds.shape, context["context"]), {})
            by_gpus.setdefault(rounds.ranks, context)
    cells = []
    for (shape, tokens), by_gpus in rows.items():
        cells.append([f"{NAMES[shape]}, {context_name(tokens)}, {cards[shape].split(' x ')[1]}"])
        for kind in (PLAIN, "dense", "sparse"):
            speeds = [best(by_gpus[gpus], kind) if gpus in by_gpus else None for gpus in GPUS[:3]]
            cells[-1].append("-" if not any(speeds) else " / ".join(
                f"{run['tokens_per_second']:.0f}" if run else "-" for run in speeds))
        its = [beside.speed(shape, gpus, tokens) for gpus in GPUS[:3]]
        cells[-1].append("-" if not any(its) else " / ".join(f"{speed:.0f}" if speed else "-" for speed in its))
    return f"""## Several GPUs

{prose('''`gpu_rounds --ranks N`, random weights, acceptance 0.93, and {0}, on the same machine and files:
tokens a second of 1 / 2 / 4 GPUs. More: [results/ranks](../results/ranks/README.md).'''.format(beside.program))}

{table(["model, context, card", "plain", "dense drafts", "sparse drafts", "llama.cpp"], cells)}"""
