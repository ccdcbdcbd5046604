#!/usr/bin/env python3
"""End-to-end tests of `quantspec eval`. Usage: eval_cli_test.py BINARY [unittest arguments]

Runs the binary on the bundled model with a short text. Standard library only.
"""

import json
import math
import os
import pty
import re
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

HANGS = 300  # seconds: what takes longer does not end, however busy the machine is
BINARY = None
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from plots import reports, tables  # noqa: E402

TEXT = f"text:{ROOT / 'tests/testdata/datasets/books/keeper.txt'}"
SMALL = ["-m", str(ROOT / "models/pg-24m"), "-d", TEXT, "--ctx-size", "256", "--tokens", "16",
         "--prompts", "1", "--page-size", "32", "-t", "1", "-o", "json"]


def evaluate(*args):
    return subprocess.run([BINARY, "eval", *args], capture_output=True, text=True, timeout=HANGS)


class EvalTest(unittest.TestCase):
    def measure(self, *args):
        done = evaluate(*args, *SMALL)
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual(list(report), ["meta", "rows"])
        self.assertEqual(report["meta"]["measurement"], args[0])
        return report["rows"]

    def test_help_fits_80_columns(self):
        for command in [[], ["perplexity"], ["axes"], ["fidelity"], ["targets"], ["prefill"],
                        ["sensitivity"], ["lossless"]]:
            text = evaluate(*command, "--help").stdout
            self.assertIn("Example", text)
            for line in text.splitlines():
                self.assertLessEqual(len(line), 80, line)

    def test_fidelity_has_the_documented_keys(self):
        rows = self.measure("fidelity", "--plan", "kv-only")
        self.assertEqual(list(rows[0]), [
            "kind", "reading", "reference", "context", "prompts", "tokens", "acceptance",
            "acceptance_error", "top1_agreement", "kl_mean", "kl_error", "kl_p99", "nll",
            "acceptance_values", "tokens_values", "nll_values", "kl_values",
            "top1_agreement_values"])
        self.assertEqual([row["reading"] for row in rows if row["kind"] == "fidelity"],
                         ["8-bit KV", "8-bit KV, paper's", "kv-only"])
        self.assertIsNone(rows[0]["acceptance_error"])  # one prompt says nothing of others
        self.assertEqual(rows, self.measure("fidelity", "--plan", "kv-only"))

    def test_prefill_has_the_documented_keys(self):
        documented = (ROOT / "docs" / "eval.md").read_text()
        for kind in ("text", "recall"):
            done = evaluate("prefill", *SMALL[:2], "-d", TEXT.replace("text:", f"{kind}:"),
                            *SMALL[4:], "--chunks", "64,256")
            self.assertEqual(done.returncode, 0, done.stderr)
            report = json.loads(done.stdout)
            self.assertEqual(report["meta"]["chunks"], [64, 256])
            for key in {*report["meta"], *(key for row in report["rows"] for key in row)}:
                self.assertIn(f"`{key}`", documented)
            in_parts, whole, drafts, drafts_whole = report["rows"]
            self.assertEqual([row["kind"] for row in report["rows"]],
                             ["prefill", "prefill", "prefill_drafts", "prefill_drafts"])
            self.assertEqual([row["chunk"] for row in report["rows"]], [64, 256, 64, 256])
            self.assertTrue(0 < in_parts["kl_mean"] < 1e-3, in_parts)
            self.assertEqual((whole["kl_mean"], whole["delta_nll"], whole["top1_agreement"]), (0, 0, 1))
            self.assertEqual(drafts_whole["acceptance_change"], 0)
            self.assertEqual((drafts["plan"], drafts["tokens"]), ("quantspec", 16))
            self.assertAlmostEqual(drafts["acceptance_change"],
                                   drafts["acceptance"] - drafts["whole_acceptance"])
            self.assertAlmostEqual(in_parts["ratio"],
                                   in_parts["seconds"] / in_parts["whole_seconds"])
            self.assertIsNone(in_parts["kl_error"])

    def test_targets_against_another_reading_of_the_model(self):
        documented = (ROOT / "docs" / "eval.md").read_text()
        for options, against, reference, backend, weights in (
                ([], "reference", "reference backend", "reference, fp32 loops, 1 threads", "bf16"),
                (["--target-weights", "8"], "reference", "reference backend",
                 "reference, fp32 loops, 1 threads", "8 bits"),
                (["--target-weights", "8", "--against", "checkpoint", "--backend", "cpu"],
                 "checkpoint", "checkpoint's weights", None, "bf16")):
            report = self.report("targets", *SMALL, *options)
            meta, rows = report["meta"], report["rows"]
            self.assertEqual((meta["against"], meta["against_weights"]), (against, weights))
            self.assertEqual(meta["against_backend"], backend or meta["backend"])
            for key in {*meta, *(key for row in rows for key in row)}:
                self.assertIn(f"`{key}`", documented)
            self.assertEqual([(row["kind"], row["reading"], row["reference"]) for row in rows],
                             [("targets", kv, reference) for kv in ("fp16 KV", "8-bit KV")])
            for row in rows:
                self.assertEqual((row["context"], row["prompts"], row["tokens"]), (256, 1, 16))
                self.assertTrue(0 < row["kl_mean"] < 1e-2, row)
                self.assertAlmostEqual(row["perplexity_change"],
                                       row["perplexity"] - row["reference_perplexity"])
                self.assertAlmostEqual(row["perplexity"],
                                       row["reference_perplexity"] * math.exp(row["delta_nll"]))
                self.assertIsNone(row["delta_nll_error"])

    def test_the_reference_backend_against_itself_is_exact(self):
        plain, paged = self.report("targets", *SMALL, "--backend", "reference")["rows"]
        self.assertEqual((plain["kl_mean"], plain["top1_agreement"], plain["delta_nll"]), (0, 1, 0))
        self.assertTrue(0 < paged["kl_mean"] < 1e-3, paged)

    def test_prefill_measures_the_backends_chunk_unless_told(self):
        report = self.report("prefill", *SMALL, "--plan", "kv-only")
        self.assertEqual(report["meta"]["chunks"], [1024])
        self.assertEqual([row["chunk"] for row in report["rows"]], [1024, 1024])

    def test_a_path_that_is_not_utf8_costs_no_measurement(self):
        with tempfile.TemporaryDirectory() as folder:
            text = Path(folder) / os.fsdecode(b"k\xffeper.txt")
            text.symlink_to(TEXT.removeprefix("text:"))
            done = evaluate("lossless", *SMALL[:2], "-d", f"text:{text}", *SMALL[4:], "--plan",
                            "quantspec", "--draft-len", "3")
            self.assertEqual(done.returncode, 0, done.stderr)
            report = json.loads(done.stdout)
            name = "k\N{REPLACEMENT CHARACTER}eper.txt"
            self.assertEqual(report["meta"]["dataset"], f"text:{folder}/{name}")
            self.assertTrue(report["rows"][0]["prompt"].startswith(name))

    def report(self, *args):
        done = evaluate(*args)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_a_budget_may_be_a_share(self):
        data = self.report("fidelity", *SMALL, "--plan", "quantspec+sparse,streaming",
                           "--draft-budget", "1/2")
        self.assertEqual(data["meta"]["draft_budget"], "1/2")
        self.assertEqual([row["reading"] for row in data["rows"] if row["kind"] == "fidelity"][-2:],
                         ["quantspec+sparse", "streaming"])

    def test_values_of_prompts_give_their_mean(self):
        books = f"text:{ROOT / 'tests/testdata/datasets/books'}"
        rows = self.report("fidelity", *SMALL[:2], "-d", books, "--ctx-size", "256", "--tokens", "16",
                           "--prompts", "2", *SMALL[10:], "--plan", "quantspec")["rows"]
        for row in rows:
            self.assertEqual(len(row["tokens_values"]), 2)
            self.assertEqual(row["tokens"], sum(row["tokens_values"]))
            for mean, values in (("acceptance", "acceptance_values"), ("kl_mean", "kl_values"),
                                 ("nll", "nll_values"),
                                 ("top1_agreement", "top1_agreement_values")):
                self.assertAlmostEqual(row[mean], statistics.mean(row[values]))

    def test_meta_says_what_the_numbers_are_of(self):
        common = ["measurement", "version", "commit", "date", "model", "dataset", "draft_store",
                  "target_weights", "backend", "cpu", "threads", "ranks", "context_ranks", "page_size", "contexts",
                  "prompts", "tokens", "recall_distance"]
        documented = (ROOT / "docs" / "eval.md").read_text()
        with tempfile.TemporaryDirectory() as folder:
            plan_file = ["--plan-file", str(Path(folder) / "plan.json")]
            for name, options, own in (
                    ("perplexity", [], ["stride"]), ("axes", [], ["stride"]),
                    ("fidelity", ["--plan", "quantspec"], ["draft_budget", "round"]),
                    ("lossless", ["--plan", "quantspec", "--draft-len", "1"],
                     ["draft_budget", "temperature", "seed"]),
                    ("sensitivity", plan_file,
                     ["draft_budget", "round", "draft_bytes", "target_bytes"])):
                size = ["--ctx-size", "160", "--tokens", "8"] if name == "sensitivity" else SMALL[4:8]
                file = Path(folder) / f"{name}.json"
                data = self.report(name, *SMALL[:4], *size, *SMALL[8:], *options)
                file.write_text(json.dumps(data))
                meta = data["meta"]
                compared = ["identical"] if name == "lossless" else []
                self.assertEqual(list(meta), [*common, *own, *compared, "complete", "conclusion"])
                self.assertEqual((meta["measurement"], meta["contexts"], meta["threads"]),
                                 (name, [int(size[1])], 1))
                self.assertRegex(meta["commit"], r"^([0-9a-f]{12}(-dirty)?|unknown)$")
                for key in {*meta, *(key for row in data["rows"] for key in row)}:
                    self.assertIn(f"`{key}`", documented)
                report = reports.load(file)  # by which docs/results.md is written
                self.assertEqual((report.kind, report.contexts_name()), (name, size[1]))
                self.assertIn("--:|", getattr(tables, name)([report]).replace(" ", ""))

    def test_sensitivity_says_where_its_plan_is_worse(self):
        with tempfile.TemporaryDirectory() as folder:
            # One short prompt chooses badly for others.
            args = ("sensitivity", *SMALL[:4], "--ctx-size", "160", "--tokens", "8", "--prompts", "1",
                    "--page-size", "32", "-t", "1", "--plan", "quantspec+sparse", "--plan-file",
                    str(Path(folder) / "plan.json"))
            said = evaluate(*args).stdout.splitlines()[-1]
            self.assertRegex(said, r"the chosen plan is WORSE than quantspec\+sparse: acceptance "
                             r"0\.\d{4} becomes 0\.\d{4} \(-0\.\d{4}\), .*\. Draft by "
                             r"quantspec\+sparse, or let more prompts choose \(--prompts 2\)\.$")
            report = self.report(*args, "-o", "json")
            self.assertEqual(report["meta"]["conclusion"], said)
            base, chosen = (row for row in report["rows"] if row["kind"] == "plan")
            self.assertIs(chosen["worse"], True)
            self.assertIsNone(base["worse"])
            self.assertAlmostEqual(chosen["acceptance_change"],
                                   chosen["acceptance"] - base["acceptance"])
            self.assertIn(f"{base['acceptance']:.4f} becomes {chosen['acceptance']:.4f}", said)

    def test_lossless(self):
        done = evaluate("lossless", "--plan", "quantspec", "--draft-len", "3,auto", *SMALL[:-2])
        self.assertEqual(done.stdout.splitlines()[-1],
                         "4 generations of 16 tokens (greedy and coupled): all identical")
        rows = self.measure("lossless", "--plan", "quantspec", "--draft-len", "3,auto")
        self.assertEqual(len(rows), 4)
        self.assertTrue(all(row["first_difference"] is None for row in rows))

    def test_tables_fit_100_columns_and_have_no_keys_as_headings(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("perplexity", "axes", "fidelity", "targets", "prefill", "lossless",
                         "sensitivity"):
                options = {"fidelity": ["--plan", "quantspec"], "lossless": ["--plan", "quantspec"],
                           "prefill": ["--chunks", "32,64"],
                           "sensitivity": ["--plan-file", str(Path(folder) / "plan.json"),
                                           "--ctx-size", "160", "--tokens", "8"]}.get(name, [])
                # An option may be given once.
                common = [*SMALL[:4], *SMALL[8:-2]] if "--ctx-size" in options else SMALL[:-2]
                done = evaluate(name, *common, *options)
                self.assertEqual(done.returncode, 0, done.stderr)
                lines = done.stdout.splitlines()
                tables = [line for line in lines if line.startswith("|")]
                self.assertGreater(len(tables), 3)
                for line in tables:
                    self.assertLessEqual(len(line), 100, line)
                    self.assertNotIn("_", line)
                for line in lines:
                    self.assertTrue(len(line) <= 100 or "dataset: " in line or
                                    "chosen plan" in line, line)

    def wait_for_progress(self, terminal, percent):
        """Reads the bar that is drawn there until it says so much."""
        drawn = ""
        while max(map(int, re.findall(r"generating \[\S+\] +(\d+)%", drawn)), default=0) < percent:
            self.assertTrue(select.select([terminal], [], [], HANGS)[0], drawn)
            drawn += os.read(terminal, 4096).decode()

    def test_what_was_measured_stays_when_a_signal_ends_it(self):
        # 64 generations, far more than are waited for.
        options = [*SMALL[:4], "--ctx-size", "200", "--tokens", "100", "--prompts", "1", "--page-size",
                   "32", "-t", "1", "--plan", "quantspec,kv-only", "--draft-len",
                   ",".join(map(str, range(1, 17)))]
        for form, number in (("md", signal.SIGINT), ("json", signal.SIGTERM)):
            with self.subTest(form=form, number=number):
                terminal, its_stderr = pty.openpty()
                process = subprocess.Popen([BINARY, "eval", "lossless", *options, "-o", form],
                                           stdout=subprocess.PIPE, stderr=its_stderr, text=True)
                os.close(its_stderr)
                self.wait_for_progress(terminal, 3)  # percent: one of 64 is done
                process.send_signal(number)
                out = process.communicate(timeout=HANGS)[0]
                os.close(terminal)
                self.assertEqual(process.returncode, 128 + number)
                if form == "json":
                    report = json.loads(out)
                    self.assertIs(report["meta"]["complete"], False)
                    self.assertIn(len(report["rows"]), range(1, 64))
                else:
                    self.assertIn("INCOMPLETE", out)
                    self.assertIn("| keeper.txt, token", out)

    def test_binary_files_are_no_texts(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "book.txt"
            file.write_bytes(b"Some words\0and more")
            done = evaluate("axes", "-d", f"text:{file}")
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn(f"{file}: no text: byte 10 is 0x00", done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1)
            done = subprocess.run([BINARY, "generate", *SMALL[:2], "-f", str(file)],
                                  capture_output=True, text=True, timeout=HANGS)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn(f"{file}: no text: byte 10 is 0x00", done.stderr)

    def test_prepare_says_how_much_text_calibration_needs(self):
        with tempfile.TemporaryDirectory() as folder:
            store = str(Path(folder) / "draft.qsd")

            def prepare(*args):
                command = [BINARY, "prepare", *SMALL[:2], "-t", "1", "-o", store, *args]
                return subprocess.run(command, capture_output=True, text=True, timeout=HANGS)

            done = prepare("--calibration", TEXT)
            self.assertEqual(done.returncode, 2)
            self.assertIn("--tokens 16384", done.stderr)
            self.assertIn("calibration", done.stderr)
            self.assertNotIn("prompt", done.stderr)
            done = prepare("--calibration", TEXT, "--tokens", "256")  # and its gain is to be seen
            self.assertEqual(done.returncode, 0, done.stderr)
            held_out = "text:" + str(ROOT / "tests/testdata/datasets/books")
            done = evaluate("fidelity", *SMALL[:2], "-d", held_out, *SMALL[4:], "--plan",
                            "quantspec", "--draft-store", store)
            report = json.loads(done.stdout)
            self.assertEqual(report["meta"]["draft_store"], store)
            self.assertEqual(report["rows"][-1]["reference"], "target")

    def test_what_cannot_be_is_refused(self):
        for args, *words in [
                ([], "perplexity", "lossless"),
                (["axes"], "--dataset"),
                (["axes", "-d", "tome:x"], "tome:x", "recall"),
                (["axes", "-d", TEXT, "--ctx-size", "9000"], "9000", "keeper.txt"),
                (["axes", "-d", TEXT, "--ctx-size", "64", "--stride", "64"], "--stride"),
                (["fidelity", "--ctx-size", "256,1"], "--ctx-size '256,1'", "whole numbers from 2"),
                (["lossless", "--draft-len", "4,0"], "--draft-len '4,0'", "auto or from 1 to"),
                (["axes", *SMALL[:4], "-c", "257", "--tokens", "9"], "--ctx-size 257", "258 tokens or more"),
                (["axes", *SMALL[:4], "-c", "32769"], "--ctx-size 32769", "up to 32768"),
                (["lossless", *SMALL[:4], "-c", "128", "--tokens", "32641"], "--tokens 32641",
                 "has room for 32640"),
                (["fidelity", *SMALL[:4], "-c", "128", "--tokens", "32640", "--plan",
                  "quantspec"], "32641", "32640"),
                (["lossless", *SMALL, "-s", "18446744073709551616"], "--seed", "2^64"),
                (["fidelity", *SMALL, "--plan", "quantspec,quantspec+w4"], "has quantspec already"),
                (["prefill", *SMALL, "--chunks", "64,100"], "--chunks 100", "page size, 32"),
                (["prefill", *SMALL, "--chunks", "64,64"], "--chunks '64,64'", "64 twice"),
                (["targets", *SMALL, "--against", "checkpoint"], "--against checkpoint", "bf16",
                 "--target-weights 8", "--against reference works"),
                (["targets", *SMALL, "--against", "paper"], "--against 'paper'", "reference, checkpoint"),
                (["targets", *SMALL[:4], "-c", "200", "--prompts", "1"], "--ctx-size 200", "256 tokens or more"),
                (["targets", *SMALL, "--draft-store", "x.qsd"], "--draft-store"),
                (["fidelity", *SMALL, "--plan", "warp"], "warp", "streaming"),
                (["fidelity", *SMALL, "--plan", "streaming", "--draft-budget", "999"], "999")]:
            with self.subTest(args=args):
                done = evaluate(*args)
                lines = done.stderr.splitlines()
                self.assertEqual((done.returncode, done.stdout), (2, ""), lines)
                command = "eval " + args[0] if args else "eval"
                self.assertEqual(lines[1:], [f"try quantspec {command} --help"])
                for word in words:
                    self.assertIn(word, lines[0])

    def test_a_plan_file_that_cannot_be_written_is_known_first(self):
        done = evaluate("sensitivity", *SMALL, "--plan-file", "/no/such/folder/x")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (
            1, "", "quantspec: error: cannot write /no/such/folder/x: No such file or directory\n"))

    def test_the_report_is_not_lost_with_the_plan_file(self):
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "place"
            place.mkdir()
            process = subprocess.Popen(
                [BINARY, "eval", "sensitivity", *SMALL[:4], "--ctx-size", "160", "--tokens", "8",
                 "--prompts", "1", "--page-size", "32", "--plan-file", str(place / "plan.json"),
                 "-o", "json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            maps = Path(f"/proc/{process.pid}/maps")
            while process.poll() is None and "model.safetensors" not in maps.read_text():
                time.sleep(0.001)  # the folder was looked at before the model is loaded
            place.rmdir()
            out, err = process.communicate(timeout=HANGS)
        self.assertEqual(process.returncode, 1)
        self.assertIn("chosen", {row["kind"] for row in json.loads(out)["rows"]})
        self.assertIn(f"cannot write {place}/plan.json", err)

    def test_what_breaks_lines_does_not_break_tables(self):
        with tempfile.TemporaryDirectory() as folder:
            plan = Path(folder) / "plan.json"
            plan.write_text('{"name": "x\\u001b[31m\\n|y"}')
            done = evaluate("fidelity", *SMALL[:-2], "--plan", f"plan:{plan}")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(r"plan:x\u001b[31m\n\|y", done.stdout)

    def test_sensitivity_writes_a_plan_that_fidelity_reads(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "plan.json"
            done = evaluate("sensitivity", *SMALL[:4], "--ctx-size", "160", "--tokens", "8",
                            "--prompts", "1", "--page-size", "32", "--plan-file", str(file),
                            "-o", "json")
            self.assertEqual(done.returncode, 0, done.stderr)
            kinds = {row["kind"] for row in json.loads(done.stdout)["rows"]}
            self.assertEqual(kinds, {"entropy", "sensitivity", "plan", "chosen"})
            rows = self.measure("fidelity", "--plan", f"plan:{file}")
            self.assertIn("plan", rows[2]["reading"])


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    BINARY = str(Path(sys.argv.pop(1)).resolve())
    unittest.main()
