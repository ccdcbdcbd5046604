#!/usr/bin/env python3
"""Tests of tools/plot_results.py and tools/make_results.py on the small reports of
testdata/results. Usage: plot_results_test.py TablesTest|FiguresTest

FiguresTest needs matplotlib, and without it exits with 77: skipped.
"""

import argparse
import copy
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

HANGS = 300  # seconds: what takes longer does not end, however busy the machine is
ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "tests" / "testdata" / "results"
PLOT = ROOT / "tools" / "plot_results.py"
SKIPPED = 77
sys.path.insert(0, str(ROOT / "tools"))

import make_results  # noqa: E402
from plots import gpu_page, gpu_set, kernel_tables, pages, ranks_page, reports, streams_page, tables  # noqa: E402


def load(name):
    return reports.load(REPORTS / f"{name}.json")


class TablesTest(unittest.TestCase):
    def test_reports_are_told_apart(self):
        kinds = {path.stem: reports.load(path).kind for path in REPORTS.glob("*.json")}
        self.assertEqual(
            kinds, {
                "bench": "bench",
                "draft-length": "bench",
                "budget": "bench",
                "perplexity": "perplexity",
                "axes": "axes",
                "fidelity": "fidelity",
                "sensitivity": "sensitivity",
                "lossless": "lossless",
                "roofline": "roofline",
                "kernels": "kernels"
            })

    def test_reports_with_older_keys_are_read(self):
        # As testdata/results still has them.
        old = json.loads((REPORTS / "perplexity.json").read_text())
        self.assertEqual(old["meta"]["context"], "4096")
        new = copy.deepcopy(old)
        del new["meta"]["context"]
        new["meta"] |= {"contexts": [4096], "commit": "0123456789ab", "date": "2030-01-02T03:04:05Z"}
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "perplexity.json"
            file.write_text(json.dumps(new))
            report = reports.load(file)
        self.assertEqual(tables.perplexity([report]), tables.perplexity([load("perplexity")]))
        self.assertIn("2030-01-02 · 0123456789ab", report.source())
        meta = load("bench").meta
        self.assertEqual((meta["version"], meta["tokens"]), ("0.1.0", 96))

    def test_what_sensitivity_says_stands_under_its_plans(self):
        report = load("sensitivity")
        before = tables.sensitivity([report])
        report.meta["conclusion"] = "The chosen plan is WORSE."
        after = tables.sensitivity([report])
        self.assertIn("\n\nThe chosen plan is WORSE.\n\n", after)
        self.assertEqual(after.replace("\nThe chosen plan is WORSE.\n", ""), before)

    def test_what_is_no_report_is_refused_in_one_line(self):
        with tempfile.TemporaryDirectory() as folder:
            for text, message in (("{", "not JSON"), ("[]", "not a report"), ('{"meta": {}}',
                                                                              "not a report"),
                                  ('{"meta": {}, "rows": [{"plan": 1}]}', "not a report")):
                file = Path(folder) / "file.json"
                file.write_text(text)
                with self.assertRaisesRegex(reports.Unusable, f"^{file}: .*{message}[^\n]*$"):
                    reports.load(file)
            with self.assertRaisesRegex(reports.Unusable, "cannot be read"):
                reports.load(Path(folder) / "none.json")

    def test_speed_has_the_rows_of_the_report(self):
        report = load("bench")
        text = tables.speed([report])
        row = next(row for row in report.rows
                   if (row["plan"], row["context"], row["temperature"]) == ("kv-only", 8192, 1))
        self.assertIn(
            f"| kv-only | 8k | auto, {row['draft_len_mean']:.1f} | {row['acceptance_rate']:.3f} | "
            f"{row['tokens_per_round']:.2f} | {row['peak_bytes'] / 1e6:.0f} | "
            f"{row['decode_tokens_per_second']:.0f} | {row['speedup_fp16']:.2f} "
            f"({row['speedup_fp16_min']:.2f}-{row['speedup_fp16_max']:.2f}) | ", text)
        self.assertIn("temperature 1; 1 prompt × 2 repeats of 96 tokens", text)
        self.assertIn(", greedy;", text)
        self.assertEqual(
            sum(
                line.startswith("| plain-fp16 | 2k | - | - | 1.00 |")
                for line in text.splitlines()), 2)
        lines = [line for line in text.splitlines() if line.startswith("|")]
        self.assertEqual(len(lines), len(report.rows) + 2 * len(report.temperatures()))
        self.assertEqual({line.count("|") for line in lines}, {10})

    def test_axes_have_keys_in_columns(self):
        report = load("axes")
        found = {row["variant"]: f"{row['perplexity']:.3f}" for row in report.rows}
        self.assertIn(
            f"| values token-wise | {found['keys token-wise, values token-wise']} | "
            f"{found['keys channel-wise, values token-wise']} |", tables.axes([report]))

    def test_texts_stand_side_by_side_in_perplexity(self):
        other = load("perplexity")
        other.meta["dataset"] = "wikitext:/somewhere/test.txt"
        text = tables.perplexity([load("perplexity"), other])
        self.assertIn("perplexity, wikitext:test, 4096", text)
        self.assertNotIn("somewhere", text)
        self.assertEqual({line.count("|") for line in text.splitlines()}, {10})

    def test_a_difference_in_lossless_is_counted(self):
        report = load("lossless")
        self.assertRegex(tables.lossless([report]),
                         r"\| auto \| greedy \| 1 auto \| 2 \| 128 \| 0 \|")
        next(row for row in report.rows
             if (row["plan"], row["sampling"]) == ("auto", "greedy"))["first_difference"] = 3
        self.assertRegex(tables.lossless([report]),
                         r"\| auto \| greedy \| 1 auto \| 2 \| 128 \| 1 \|")

    def test_the_other_tables_have_all_rows(self):
        for name, write, rows in (("draft-length", tables.draft_lengths, 6),
                                  ("budget", tables.budgets, 7), ("fidelity", tables.fidelity, 7),
                                  ("roofline", tables.roofline, 16)):
            lines = [
                line for line in write([load(name)]).splitlines()
                if line.startswith("|") and "--:" not in line
            ]
            titles = 2 if name == "roofline" else 1
            self.assertEqual(len(lines), rows + titles, name)
        self.assertIn("| head | - | - |", tables.sensitivity([load("sensitivity")]))

    def test_the_best_row_is_of_the_default_budget_and_length(self):
        row = {"context": 8192, "draft_budget": 2048, "draft_len": "auto", "speedup_fp16": 1}
        others = [
            row | {
                "draft_budget": 512,
                "speedup_fp16": 9
            }, row | {
                "draft_len": 4,
                "speedup_fp16": 9
            }
        ]
        self.assertIs(reports.best([*others, row]), row)
        fixed = [row | {"draft_len": n, "speedup_fp16": n % 3} for n in (1, 2, 3)]
        self.assertEqual(reports.best(fixed)["draft_len"], 2)

    def test_of_a_method_the_fastest_weights_lead(self):
        report = copy.deepcopy(load("bench"))
        slow = next(row for row in report.rows
                    if row["plan"] == "snapkv" and row["context"] == 8192)
        report.rows.append(slow | {"plan": "snapkv+w4", "speedup_fp16": slow["speedup_fp16"] + 1})
        self.assertIn("snapkv+w4", reports.leaders(report, 1))
        self.assertNotIn("snapkv", reports.leaders(report, 1))

    def test_of_a_kernel_the_fastest_repetition_counts(self):
        name = "attention/dram/upper/d128/mha/q1"
        data = json.loads((REPORTS / "kernels.json").read_text())
        times = [
            row["typical_us"] for row in data["benchmarks"]
            if row["name"] == f"{name}/real_time" and row["run_type"] == "iteration"
        ]
        self.assertEqual(len(set(times)), 2)
        rows = {row["name"]: row for row in load("kernels").rows}
        self.assertEqual(rows[name]["typical_us"], min(times))  # and not that of the mean, 1
        self.assertIn("region/empty/t2", rows)  # which has no time but Google Benchmark's

    def test_of_another_engine_the_fastest_repetition_counts(self):
        def run(name, length, speed):
            return {"name": name, "draft_len": length, "tokens_per_second": speed,
                    "draft_step_ms": 1, "verify_ms": 10 + length}

        runs = [run("plain, 8-bit cache", 0, 80), run("dense", 2, 90), run("dense", 3, 100)]
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            (folder / "beside").mkdir()
            (folder / "ours.json").write_text(json.dumps({
                "ranks": 2, "shape": "70b", "simulated_acceptance": 0.9, "run": {},
                "contexts": [{"context": 4096, "runs": runs}]}))
            (folder / "beside/llama-bench.json").write_text(json.dumps({
                "program": "it", "run": {},
                "rows": [{"shape": "70b", "gpus": 2, "split": "tensor", "context": 4096,
                          "repetitions": [30, 50, 40]}]}))
            ours, beside = ranks_page.rounds_of(folder), ranks_page.Beside(folder)
            self.assertEqual(beside.speed("70b", 2, 4096), 50)
            self.assertIsNone(beside.speed("70b", 1, 4096))
            row = beside.table(ours).splitlines()[2]
            self.assertEqual([cell.strip() for cell in row.split("|")[1:-1]],
                             ["70B, Q8_0, 4k", "2", "tensor", "50 (30)", "80", "1.60x", "100", "-", "2.00x"])
            # What a model is made of: the longest drafts, whose verification costs the most.
            self.assertEqual(ranks_page.passes(ours[0])["verify"], [(4096, 13)])

    def test_of_another_engine_many_streams_stand_beside_ours(self):
        def rows(streams, speeds):
            return [{"context": 4096, "streams": streams, "plan": plan, "acceptance_rate": 0.8,
                     "draft_len_mean": 0 if streams == 1 else 1,
                     "output_tokens_per_second": speed}
                    for plan, speed in zip(streams_page.PLANS, speeds)]

        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            (folder / "ours-4k.json").write_text(json.dumps({
                "meta": {"contexts": [4096], "streams": [1, 8], "repeats": 2}, "run": {"commands": ["ours"], "commit": "c"},
                "rows": rows(1, [10, 20, 30, 40]) + [row for row in rows(8, [50, 60, 70, 80]) if row["plan"] != "quantspec"]}))
            (folder / "llama-batched-bench.json").write_text(json.dumps({
                "program": "it", "run": {"commands": ["its"], "commit": "b", "date": "d", "hardware": "h"},
                "rows": [{"pp": 4096, "pl": streams, "speed_tg": speed, "cache": cache}
                         for streams, speed, cache in ((1, 8, "f16"), (1, 10, "f16"), (8, 40, "f16"), (1, 5, "q8_0"),
                                                       (8, 20, "q8_0"))]}))
            text = streams_page.page(folder)
            self.assertIn("| 1 x 4k | 10 (8) | 5 | 10 | 20 | 30 | 40 | 1.00x | 2.00x | 4.00x | 4.00x |", text)
            self.assertIn("| 8 x 4k | 40 | 20 | 50 | 60 | - | 80 | 1.25x | 1.50x | 2.00x | 3.00x |", text)
            prose = text.replace("\n", " ")
            self.assertIn("accepted at 0.80 with 8 x 4k (`auto`). A stream drafts less", prose)
            self.assertIn("measured not to pay, in 1 x 4k (`quantspec`), 1 x 4k (`auto`). `quantspec bench`", prose)
            self.assertNotIn("Rounds at a given acceptance", text)
            runs = [("plain, fp16 cache", 0, 100), ("plain, 8-bit cache", 0, 125), ("dense", 3, 150), ("dense", 5, 200)]
            (folder / "rounds-a.json").write_text(json.dumps({
                "run": {"commands": ["rounds"], "commit": "c", "date": "d", "hardware": "h"},
                "simulated_acceptance": 0.93, "streams": 8, "target_weights": "bf16",
                "contexts": [{"context": 4096, "fp16_kv_bytes": 8 * 4096 * 131072, "runs": [
                    {"name": name, "draft_len": length, "tokens_per_second": speed, "speed_up": speed / 100,
                     "draft_step_ms": 1, "verify_ms": 5, "round_ms": 4}
                    for name, length, speed in runs]}]}))
            # 5.04 tokens in 10 ms, where plain decoding takes 4 for one.
            self.assertIn("| 8 x 4k, 8B, 16 bits | 0.93 | 100 | 125 | 200 (5) | 2.00x | 2.02x | 1.60x | - | - | - | - |",
                          streams_page.page(folder))
            self.assertNotIn("FlashInfer", streams_page.page(folder))
            other = json.loads((folder / "rounds-a.json").read_text())
            other["run"]["hardware"] = "another"
            (folder / "rounds-b.json").write_text(json.dumps(other))
            self.assertRaisesRegex(ValueError, "one kind of GPU", streams_page.page, folder)
            (folder / "rounds-b.json").unlink()
            run = {"commands": ["it"], "commit": "c", "date": "d", "hardware": "h"}
            (folder / "attention.json").write_text(json.dumps({"run": run, "measurements": [
                {"name": "gqa 2x4096 fp16", "rows": 1, "seconds": 3e-6},
                *({"name": "gqa 2x4096 verify", "rows": rows, "seconds": 2e-6} for rows in (1, 5))]}))
            (folder / "flashinfer.json").write_text(json.dumps({"run": run, "flashinfer": "0.6", "batches": [
                {"batch": "2x4096", "queries": queries, "kv": kv, "best_us": us}
                for queries, kv, us in ((1, "fp16", 6), (1, "fp8", 5), (5, "fp16", 7), (5, "fp8", None))]}))
            self.assertIn("| 2 x 4k | 1 | 6.0 | 5.0 | 3.0 | 2.0 | 2.50x |", streams_page.page(folder))
            self.assertIn("| 2 x 4k | 5 | 7.0 | - | - | 2.0 | 3.50x |", streams_page.page(folder))

    def test_goals_stand_beside_what_was_measured(self):
        report, avx2 = load("kernels"), load("kernels")
        for row in report.rows:
            rate = {"read/dram/t2": 40e9, "linear/dram/bf16/4096x4096/r1": 36e9}.get(row["name"])
            if rate is not None:
                row["bytes_per_second"] = rate
            head, _, shape = row["name"].partition("/d128/")
            row["typical_us"] = {
                ("attention/dram/fp16", "mha/q1"): 1000,
                ("attention/dram/upper", "mha/q1"): 250,
                ("attention/dram/both", "mha/q1"): 800,
                ("attention/dram/fp16", "gqa4/q1"): 1200,
                ("attention/dram/upper", "gqa4/q1"): 400,
            }.get((head, shape), 1)
        avx2.rows = [row for row in avx2.rows if row["name"].startswith("read")]
        lines = kernel_tables.goals([report, avx2]).splitlines()
        found = {
            cells[0]: cells[1:]
            for cells in ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
        }
        self.assertIn("40.0 GB/s with 2 threads", lines[0])
        self.assertEqual(found["attention, upper plane, 1 query"][1::2], ["4.00×", "yes"])
        self.assertEqual(found["attention, both planes, 1 query"][1::2], ["1.25×", "-32%"])
        self.assertEqual(
            found["GQA, 4 query heads: upper plane, 1 query, over the MHA figure"][1::2],
            ["0.75×", "-17%"])
        self.assertEqual(found["AVX2: upper plane, 1 query"], ["≥ 2.80×", "-", "-", "not run"])
        self.assertEqual(found["bf16 4096×4096, 1 row"], ["≥ 90%", "90%", "90%", "yes"])
        self.assertEqual(found["bf16 14336×4096, 1 row"][-1], "not run")

    def test_every_kernel_has_a_row(self):
        report = load("kernels")
        text = kernel_tables.kernels([report, report])
        for part in ("| d128/gqa4/q5 |", "| upper, 4096×4096, 1 | dram |",
                     "| sampling/greedy/v8192 |",
                     "| attention/dram/upper-sparse4/d128/mha/q1 |", "| region/empty/t2 |"):
            self.assertIn(part, text)

    def test_a_forced_instruction_set_is_part_of_the_command(self):
        run = make_results.kernel_sections()[0].runs[1]
        self.assertTrue(
            make_results.shown(run, run.commands[0]).startswith("QUANTSPEC_ISA=avx2 kernel_bench --"))

    def test_only_what_stands_between_marks_is_written(self):
        page = "# Results\n\nBefore.\n<!-- results:a -->\nold\n<!-- /results:a -->\nAfter.\n"
        filled = make_results.fill(page, "a", "A", "new\n")
        self.assertEqual(filled, page.replace("old", "new"))
        longer = make_results.fill(filled, "b", "B title", r"more \1" + "\n")
        self.assertEqual(
            longer, filled + "\n## B title\n\n<!-- results:b -->\nmore \\1\n<!-- /results:b -->\n")
        self.assertEqual(make_results.fill(longer, "b", "B title", r"more \1" + "\n"), longer)

    def test_sections_and_runs_have_names_of_their_own(self):
        sections = make_results.all_sections()
        names = [section.name for section in sections]
        runs = [run.name for section in sections for run in section.runs]
        self.assertEqual(len(set(names)), len(names))
        self.assertEqual(len(set(runs)), len(runs))

    def test_a_section_tells_its_commands(self):
        report = load("bench")
        report.run.update(commands=["quantspec bench -d text:BOOKS"])
        section = next(section for section in make_results.bundled_sections()
                       if section.name == "bundled-speed")
        text = make_results.section_text(section, [report], {"img/a.svg": "A picture."})
        self.assertTrue(text.startswith("    quantspec bench -d text:BOOKS\n\n"))
        self.assertIn('<img src="img/a.svg" width="49%" alt="A picture.">', text)

    def test_a_machine_is_a_folder(self):
        self.assertEqual(make_results.machine_of("AMD EPYC, 2 cores"), "amd-epyc-2")
        self.assertEqual(make_results.machine_of("Intel(R) Xeon(R) Processor @ 2.10GHz, 16 cores"),
                         "intel-xeon-16")

    def test_a_set_is_of_one_commit_and_shown_without_changes(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, commit in (("a", "0123456"), ("b", "0123456")):
                self.keep(Path(folder), name, commit)
            self.assertEqual(pages.Set(folder).about()[1], "0123456")
            self.keep(Path(folder), "b", "7654321")
            with self.assertRaisesRegex(ValueError, "not of one machine and commit"):
                pages.Set(folder).about()
        with tempfile.TemporaryDirectory() as folder:
            dirty = Path(folder) / "machine" / "0123456-dirty"
            dirty.mkdir(parents=True)
            self.keep(dirty, "a", "0123456-dirty")
            with self.assertRaisesRegex(reports.Unusable, "in no commit"):
                pages.cpu_page(pages.Set(dirty))

    @staticmethod
    def keep(folder, name, commit):
        data = json.loads((REPORTS / "bench.json").read_text())
        data["run"] = {"commands": [], "commit": commit, "hardware": "One", "date": "2030-01-01"}
        (folder / f"{name}.json").write_text(json.dumps(data))

    def changed(self, kind, name, change):
        """{file: text} of the pages that differ once change(data) was made to a report of the shown set."""
        sets = json.loads((ROOT / "results/shown.json").read_text())
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            for shown in sets.values():
                shutil.copytree(ROOT / "results" / shown, root / "results" / shown)
            for file in ("results/shown.json", "README.md", "docs/compare.md"):
                (root / file).parent.mkdir(exist_ok=True)
                shutil.copy(ROOT / file, root / file)
            before = make_results.written(root)
            file = root / "results" / sets[kind] / name
            data = json.loads(file.read_text())
            change(data)
            file.write_text(json.dumps(data))
            after = make_results.written(root)
        set_page = root / "results" / sets[kind] / "README.md"
        return {"set" if path == set_page else path.relative_to(root).as_posix(): after[path]
                for path in before if before[path] != after[path]}

    def test_figures_are_those_of_the_reports(self):
        """What make_results.py --check compares, where one report says something else."""
        def change(data):
            row = next(row for row in data["rows"]
                       if (row["plan"], row["context"], row["temperature"]) == ("auto", 8192, 1))
            row["speedup_fp16"] = 98.765

        changed = self.changed("cpu", "speed.json", change)
        self.assertEqual(set(changed), {"README.md", "docs/results.md", "set"})
        for text in changed.values():
            self.assertIn("98.7", text)

    def test_figures_of_a_gpu_are_those_of_the_reports(self):
        def change(data):
            run = next(run for run in data["contexts"][0]["runs"] if run["name"] == "dense")
            run["speed_up"] = 98.765

        changed = self.changed("gpu", "7b.json", change)
        self.assertEqual(set(changed), {"README.md", "docs/results-gpu.md", "docs/compare.md", "set"})
        for text in changed.values():
            self.assertIn("98.7", text)

    def test_what_was_measured_on_one_gpu_is_kept(self):
        shown = ROOT / "results" / json.loads((ROOT / "results/shown.json").read_text())["gpu"]
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "measured"
            shutil.copytree(shown, source)
            kept = gpu_set.keep(source, "0123456", Path(folder) / "results")
            results = gpu_set.GpuSet(kept)
            self.assertEqual(results.name, f"{shown.parent.name}/0123456")
            self.assertEqual(results.about()[1], "0123456")
            with self.assertRaisesRegex(reports.Unusable, "no picture"):
                gpu_page.page(results)
            data = json.loads((kept / "7b.json").read_text())
            data["run"]["commit"] = "7654321"
            (kept / "7b.json").write_text(json.dumps(data))
            with self.assertRaisesRegex(ValueError, "not of one machine and commit"):
                gpu_set.GpuSet(kept).about()
            data["device"] = "cuda (GPU 0: NVIDIA B200, kernels for 10.0)"
            (source / "7b.json").write_text(json.dumps(data))
            with self.assertRaisesRegex(reports.Unusable, "of several GPUs: NVIDIA B200, NVIDIA H"):
                gpu_set.keep(source, "0123456", Path(folder) / "results")
            (source / "7b.json").write_text('{"contexts": [{}]}')
            with self.assertRaisesRegex(reports.Unusable, "not what gpu_rounds --json writes"):
                gpu_set.keep(source, "0123456", Path(folder) / "results")


class FiguresTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)

    def drawn(self, *names, **options):
        from plot_results import plot
        paths, missing = plot([load(name) for name in names], self.folder, **options)
        return {path.stem for path in paths}, missing

    def test_every_figure_is_drawn_and_small(self):
        names, _ = self.drawn(
            "draft-length", "budget", "perplexity", "axes", "fidelity", "sensitivity", "roofline",
            "kernels", wanted={
                "draft-length", "positions", "budget", "perplexity", "axes", "acceptance", "layers",
                "decode-planes", "prefill-planes", "share", "kernels"
            })
        self.assertEqual(
            names, {
                "draft-length-draft-length", "draft-length-positions", "budget-positions",
                "budget-budget", "perplexity-perplexity", "axes-axes", "fidelity-acceptance",
                "sensitivity-layers", "roofline-decode-planes", "roofline-prefill-planes",
                "roofline-share", "kernels-kernels"
            })
        figures = ("speedup", "rounds", "memory", "predicted")
        names, missing = self.drawn("bench", wanted={"ablation", *figures})
        self.assertEqual(
            names, {
                "bench-ablation-t1", *(f"bench-{name}-{end}" for name in figures
                                       for end in ("t1", "greedy"))
            })
        self.assertEqual(set(missing), {"bench-ablation-greedy"})  # was not run
        for path in self.folder.glob("*.svg"):
            self.assertGreater(path.stat().st_size, 5_000, path)
            self.assertLess(path.stat().st_size, 200_000, path)
            self.assertIn("</svg>", path.read_text()[-20:])

    def test_pictures_of_a_gpu_are_drawn_and_small(self):
        shown = json.loads((ROOT / "results/shown.json").read_text())["gpu"]
        kept = self.folder / "gpu" / "set"
        shutil.copytree(ROOT / "results" / shown, kept, ignore=shutil.ignore_patterns("img"))
        gpu_page.draw(gpu_set.GpuSet(kept))
        drawn = {path.stem: path.stat().st_size for path in (kept / "img").iterdir()}
        self.assertEqual(set(drawn), set(gpu_page.FIGURES))
        self.assertLess(max(drawn.values()), 130_000)

    def test_a_new_set_of_a_gpu_gets_its_pictures(self):
        shown = json.loads((ROOT / "results/shown.json").read_text())["gpu"]
        source = self.folder / "measured"
        shutil.copytree(ROOT / "results" / shown, source, ignore=shutil.ignore_patterns("img"))
        with mock.patch.multiple(make_results, ROOT=self.folder, RESULTS=self.folder / "kept"):
            make_results.keep_gpu(argparse.Namespace(gpu=source, commit="0123456"))
        kept = self.folder / "kept" / Path(shown).parent / "0123456"
        self.assertEqual({path.stem for path in (kept / "img").iterdir()}, set(gpu_page.FIGURES))
        self.assertIn("# Results at 0123456", (kept / "README.md").read_text())

    def test_what_cannot_be_drawn_says_which_data_it_needs(self):
        names, missing = self.drawn("bench", wanted={"draft-length", "budget"})
        self.assertEqual(names, set())
        self.assertIn("--sweep draft-len", missing["bench-draft-length-t1"])
        self.assertIn("--sweep budget", missing["bench-budget-greedy"])

    def test_the_same_report_gives_the_same_bytes(self):
        self.drawn("axes")
        first = (self.folder / "axes-axes.svg").read_bytes()
        self.drawn("axes")
        self.assertEqual((self.folder / "axes-axes.svg").read_bytes(), first)

    def test_titles_say_what_the_report_says(self):
        from plots import speed, style
        titles = []
        finish, style.finish = style.finish, lambda figure, title, *_: (titles.append(title),
                                                                        style.plt.close(figure))
        self.addCleanup(setattr, style, "finish", finish)
        report = load("bench")
        for row in report.rows:
            row["speedup_fp16"], row["speedup_int8"] = 1.0, 0.5
            if row["plan"] == "snapkv":
                row["speedup_fp16"], row["speedup_int8"] = 7.25, 6.5
        speed.speedup(report, 1, None)
        self.assertEqual(titles, [
            "At 8k tokens the fastest is snapkv: 7.25× plain decoding with fp16 KV, "
            "6.50× with 8-bit KV"
        ])

    def test_labels_are_moved_apart_no_more_than_needed(self):
        from plots.style import settle
        self.assertEqual(settle([0.0, 1.0, 5.0], 1), [0, 1, 5])
        moved = settle([0.0, 0.1, 0.2, 3.0, 3.5], 1)
        for low, high in zip(moved, moved[1:]):
            self.assertGreaterEqual(high - low, 1 - 1e-9)
        self.assertAlmostEqual(sum(moved[:3]), 0.3)  # a crowd stays where it was, as a whole
        self.assertAlmostEqual(sum(moved[3:]), 6.5)

    def test_command_line(self):
        def run(*args):
            return subprocess.run([sys.executable, PLOT, *args], capture_output=True, text=True,
                                  timeout=HANGS)

        out = self.folder / "cli"
        done = run(REPORTS / "axes.json", "-o", out, "--format", "png")
        self.assertEqual((done.returncode, done.stdout), (0, f"{out / 'axes-axes.png'}\n"),
                         done.stderr)
        self.assertEqual((out / "axes-axes.png").read_bytes()[1:4], b"PNG")
        broken = self.folder / "broken.json"
        broken.write_text(json.dumps({"rows": []}))
        done = run(broken, "-o", out)
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(
            done.stderr, f"plot_results: {broken}: not a report of quantspec bench, eval or "
            "roofline\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["FiguresTest"] and importlib.util.find_spec("matplotlib") is None:
        print("skipped: pictures need matplotlib (tools/install_deps.sh plots)")
        sys.exit(SKIPPED)
    unittest.main()
