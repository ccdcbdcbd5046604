#!/usr/bin/env python3
"""End-to-end tests of `quantspec bench`. Usage: bench_cli_test.py BINARY [unittest arguments]

Runs the binary on the bundled model with short prompts. Standard library only.
"""

import csv
import io
import json
import os
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HANGS = 300  # seconds: what takes longer does not end, however busy the machine is
BINARY = None
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from plots import reports, tables  # noqa: E402

MODEL = ROOT / "models" / "pg-24m"
TEXTS = f"text:{ROOT / 'prompts'}"


def command(*args, dataset=TEXTS):
    return [BINARY, "bench", "-m", str(MODEL), "-d", dataset, "-t", "1", *args]


def bench(*args, **kwargs):
    return subprocess.run(command(*args, **kwargs), capture_output=True, text=True, timeout=HANGS)


def short(*args, **kwargs):
    """A run of a second: one prompt of 256 tokens and 12 more, unless `args` say otherwise."""
    usual = {"--ctx-size": "256", "-n": "12", "--repeat": "2", "--warm-up": "4",
             "--page-size": "32"}
    left = [word for option in usual.items() if option[0] not in args for word in option]
    return bench(*left, *args, **kwargs)


class BenchTest(unittest.TestCase):
    def report(self, *args, **kwargs):
        done = short("-o", "json", *args, **kwargs)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return json.loads(done.stdout)

    def refused(self, *args, message, code=2, **kwargs):
        done = short(*args, **kwargs)
        lines = done.stderr.splitlines()
        self.assertEqual((done.returncode, done.stdout), (code, ""), lines)
        self.assertEqual(len(lines), 2 if code == 2 else 1, lines)
        self.assertIn(message, lines[0])

    def test_json_has_the_documented_fields(self):
        report = self.report("--plan", "quantspec,snapkv+w4", "--draft-len", "3", "--temp", "1,0")
        documented = (ROOT / "docs" / "bench.md").read_text()
        for record in (report["meta"], report["rows"][2]):
            for key in record:
                self.assertIn(f"`{re.sub('_(min|max|values)$', '', key)}`", documented)
        self.assertEqual([(row["plan"], row["draft_len"], row["temperature"])
                          for row in report["rows"]],
                         [(plan, length, temperature) for temperature in (1, 0)
                          for plan, length in (("plain-fp16", 0), ("plain-int8", 0),
                                               ("quantspec", 3), ("snapkv+w4", 3))])
        for row in report["rows"]:
            self.assertEqual((row["context"], row["tokens"], row["repeats"]), (256, 12, 2))
            parts = ("weights", "draft_weights", "kv", "ring", "gathered", "prefill")
            self.assertEqual(row["peak_bytes"], sum(row[part + "_bytes"] for part in parts))
            self.assertGreater(row["predicted_ms_per_token"], 0)
            for field in ("ms_per_token", "speedup_fp16", "verify_ms"):
                values = row[f"{field}_values"]
                self.assertEqual(len(values), 2)
                self.assertAlmostEqual(row[field], statistics.median(values))
                self.assertEqual((row[f"{field}_min"], row[f"{field}_max"]),
                                 (min(values), max(values)))
        self.assertEqual(report["rows"][0]["speedup_fp16"], 1)
        self.assertEqual(report["rows"][3]["draft_budget"], 64)
        self.assertGreater(report["rows"][3]["gathered_bytes"], 0)

    def test_meta_says_what_the_numbers_are_of(self):
        meta = self.report("--plan", "quantspec", "--draft-len", "2", "--temp", "0.8")["meta"]
        self.assertEqual(list(meta)[:18], [
            "measurement", "version", "commit", "date", "model", "dataset", "draft_store",
            "target_weights", "backend", "cpu", "threads", "ranks", "context_ranks", "page_size", "contexts",
            "prompts", "tokens", "recall_distance"])
        self.assertEqual((meta["measurement"], meta["model"], meta["contexts"], meta["tokens"]),
                         ("bench", "pg-24m", [256], 12))
        self.assertRegex(meta["commit"], r"^([0-9a-f]{12}(-dirty)?|unknown)$")
        self.assertRegex(meta["date"], r"^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ$")

    def test_the_tools_read_it(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "speed.json"
            args = ("--plan", "quantspec", "--draft-len", "2", "--temp", "0.8", "-o", "json")
            file.write_text(short(*args).stdout)
            report = reports.load(file)
            self.assertEqual((report.kind, report.temperatures()), ("bench", [0.8]))
            self.assertIn(report.meta["commit"], report.source())
            self.assertIn("| quantspec | 256 | 2 |", tables.speed([report]))

    def test_a_rerun_gives_the_same_tokens_and_acceptance(self):
        def outcome():
            rows = self.report("--plan", "quantspec,quantspec+sparse", "--draft-len", "2")["rows"]
            return [(row["tokens_hash"], row["acceptance_rate"], row["accepted_per_position"])
                    for row in rows]
        self.assertEqual(outcome(), outcome())

    def test_auto_chooses(self):
        rows = self.report("--plan", "auto", "--draft-len", "2,auto")["rows"][2:]
        self.assertEqual([(row["plan"], row["draft_len"], row["draft_budget"]) for row in rows],
                         [("auto", 2, None), ("auto", "auto", None)])
        self.assertLessEqual(rows[0]["draft_len_mean"], 2)

    def test_machine(self):
        args = ("--plan", "quantspec", "--draft-len", "2", "--machine")
        meta = self.report(*args, "a6000")["meta"]
        self.assertEqual((meta["machine"], meta["bandwidth_bytes_per_second"]), ("a6000", 768e9))
        this = self.report(*args, "this")["meta"]
        if not this["backend"].startswith("cuda"):  # a GPU has the name that is known of it
            self.assertEqual(this["machine"], "this")
        self.refused("--machine", "b200", message="--machine 'b200': must be one of a6000")

    def test_plans_may_be_given_again_and_have_layers(self):
        rows = self.report("--plan", "layer-skip:1,3-4,kv-only", "--plan", "quantspec+w8",
                           "--draft-len", "1")["rows"]
        self.assertEqual([row["plan"] for row in rows[2:]],
                         ["layer-skip:1,3-4", "kv-only", "quantspec+w8"])

    def test_plan_file(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "plan.json"
            file.write_text('{"default": {"weights": 8}, "target_full_layers": [0, 5],'
                            ' "layers": [{"layer": 0, "kv": "full"}]}')
            rows = self.report("--plan", f"plan:{file}", "--draft-len", "2", "--temp", "0")["rows"]
            self.assertEqual(rows[2]["plan"], f"plan:{file}")
            named = Path(folder) / "named.json"
            named.write_text('{"name": "mine"}')
            again = self.report("--plan", f"plan:{named}", "--draft-len", "2")["rows"]
            self.assertEqual((again[2]["plan"], again[2]["chosen_plan"]), ("plan:mine",) * 2)
            self.refused("--plan", f"plan:{named},plan:{named}",
                         message="the list has plan:mine already")
            self.assertGreater(rows[2]["ring_bytes"], rows[1]["ring_bytes"])
            file.write_text('{"layers": [{"layer": 6}]}')
            self.refused("--plan", f"plan:{file}", message="layer", code=1)

    def test_sweeps(self):
        rows = self.report("--sweep", "draft-len", "--plan", "quantspec")["rows"]
        self.assertEqual([row["draft_len"] for row in rows[2:]], [1, 2, 3, 4, 5, 6, 7, 8])
        rows = self.report("--sweep", "budget", "--draft-len", "2")["rows"]
        self.assertEqual([(row["plan"], row["draft_budget"]) for row in rows[2:]],
                         [("quantspec", None)] +
                         [(plan, budget) for plan in ("quantspec+sparse", "quantspec+bounds")
                          for budget in (32, 64, 128)])

    def test_all_leaves_out_what_cannot_be(self):
        done = short("--ctx-size", "100", "-n", "2", "--repeat", "1", "--warm-up", "0", "--plan", "all",
                     "--draft-len", "1", "-o", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        plans = [row["plan"] for row in report["rows"]]
        self.assertEqual(plans[2:], ["quantspec", "quantspec+w8", "weights-only", "weights-only+w8",
                                     "kv-only", "layer-skip:2-3", "auto"])
        left_out = report["meta"]["left_out"]
        self.assertEqual(len(left_out), 13)
        self.assertEqual((left_out[0]["context"], left_out[0]["plan"]), (100, "streaming"))
        self.assertRegex(done.stderr, r"\Aquantspec: warning: --plan all leaves out: at 100 tokens "
                         r"streaming, .*; quantspec\+sparse, .*\n\Z")
        with tempfile.TemporaryDirectory() as folder:
            store = str(Path(folder) / "draft.qsd")
            made = subprocess.run([BINARY, "prepare", "-m", str(MODEL), "--method", "rtn", "-o",
                                   store], capture_output=True, text=True, timeout=HANGS)
            self.assertEqual(made.returncode, 0, made.stderr)
            done = short("--plan", "all", "--draft-len", "1", "--draft-store", store, "-n", "2")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stderr, r"at 256 tokens quantspec\+w8, .* \(it reads other weights")
            self.assertIn("- --plan all leaves out", done.stdout)
            prose = [line for line in done.stdout.splitlines() if not line.startswith("|")]
            self.assertLessEqual(max(map(len, prose[4:])), 80)
            self.refused("--plan", "quantspec+w8", "--draft-store", store,
                         message="--plan quantspec+w8: it reads other weights than drafts can here")

    def test_a_head_of_8_bits_is_read_so_unless_a_plan_file_says_4(self):
        with tempfile.TemporaryDirectory() as folder:
            store, plan = str(Path(folder) / "draft.qsd"), Path(folder) / "plan.json"
            made = subprocess.run([BINARY, "prepare", "-m", str(MODEL), "--method", "rtn",
                                   "--head-bits", "8", "-o", store], capture_output=True,
                                  text=True, timeout=HANGS)
            self.assertEqual(made.returncode, 0, made.stderr)
            plan.write_text('{"name": "head of 4", "head": {"weights": 4}}')
            rows = self.report("--plan", f"quantspec,plan:{plan}", "--draft-len", "1",
                               "--draft-store", store, "-n", "2")["rows"]
            self.assertEqual([row["plan"] for row in rows[2:]], ["quantspec", "plan:head of 4"])
            # The lower plane of its codes, two to a byte.
            head = json.loads((MODEL / "config.json").read_text())
            lower = head["vocab_size"] * head["hidden_size"] // 2
            self.assertEqual(rows[2]["draft_weights_bytes"] - rows[3]["draft_weights_bytes"], lower)

    def test_a_budget_is_autos_too(self):
        rows = self.report("--plan", "quantspec,auto", "--draft-len", "2", "--draft-budget",
                           "64,96")["rows"][2:]
        self.assertEqual([(row["plan"], row["draft_budget"]) for row in rows],
                         [("quantspec", None), ("auto", 64), ("auto", 96)])
        self.refused("--plan", "auto", "--draft-budget", "256", message="--draft-budget 256")

    def test_a_budget_may_be_a_share(self):
        rows = self.report("--plan", "quantspec+sparse,streaming,auto", "--draft-len", "2",
                           "--draft-budget", "1/2")["rows"]
        self.assertEqual([(row["plan"], row["draft_budget"]) for row in rows[2:]],
                         [("quantspec+sparse", 128), ("streaming", 128), ("auto", 128)])
        for budget in ("1/1", "1/0", "2/4", "0.5", "1/", "-1", "0"):
            self.refused("--draft-budget", budget, message=f"--draft-budget '{budget}': must be")
        self.refused("--draft-budget", "64,1/9x", message="or a share such as 1/4, with commas")
        self.refused("--draft-budget", "1/4,1/4", message="has 1/4 twice")
        self.refused("--plan", "quantspec+sparse", "--draft-budget", "1/32",
                     message="--draft-budget 1/32 is 8 tokens; from 32 to 255 tokens fit")

    def test_names_are_the_same_in_every_format(self):
        args = ("--plan", "quantspec+w4,streaming+w4,snapkv+wfull", "--draft-len", "2",
                "--draft-budget", "96")
        names = ["plain-fp16", "plain-int8", "quantspec", "streaming+w4", "snapkv"]
        self.assertEqual([row["plan"] for row in self.report(*args)["rows"]], names)
        table = csv.DictReader(io.StringIO(short(*args, "-o", "csv").stdout))
        self.assertEqual([row["plan"] for row in table], names)
        text = short(*args).stdout
        self.assertEqual(re.findall(r"(?m)^\| (\S+) +\|", text.split("##")[1])[1:6],
                         [*names[:3], "streaming+w4@96", "snapkv@96"])
        self.assertIn("| accept | a/tok |", text)
        self.assertLessEqual(max(map(len, text.splitlines())), 80)

    def test_a_path_that_is_not_utf8_costs_no_measurement(self):
        with tempfile.TemporaryDirectory() as folder:
            texts = Path(folder) / os.fsdecode(b"b\xffoks")
            texts.symlink_to(ROOT / "prompts")
            report = self.report("--plan", "quantspec", "--draft-len", "2", dataset=f"text:{texts}")
            self.assertEqual(report["meta"]["dataset"],
                             f"text:{folder}/b\N{REPLACEMENT CHARACTER}oks")

    def test_recall_prompts(self):
        report = self.report("--recall-distance", "100", "--plan", "quantspec", "--draft-len", "2",
                             dataset=f"recall:{ROOT / 'prompts'}")
        self.assertEqual(report["meta"]["recall_distance"], 100)

    def test_formats(self):
        args = ("--plan", "quantspec", "--draft-len", "2")
        lines = short(*args, "-o", "jsonl").stdout.splitlines()
        self.assertEqual(list(json.loads(lines[0])), ["meta"])
        rows = [json.loads(line) for line in lines[1:]]
        table = list(csv.DictReader(io.StringIO(short(*args, "-o", "csv").stdout)))
        self.assertEqual(list(table[0]), list(rows[0]))
        self.assertEqual([row["tokens_hash"] for row in table],
                         [row["tokens_hash"] for row in rows])
        text = short(*args).stdout
        self.assertLessEqual(max(map(len, text.splitlines())), 80)
        self.assertIn("## 256 tokens of context, temperature 1", text)
        self.assertIn("1 prompt x 2 repeats of 12 tokens", text)

    def test_what_cannot_be_is_refused(self):
        self.refused("--plan", "quick", message="no plan 'quick'; known are quantspec,")
        self.refused("--plan", "quick", message="auto and, in bench, all; modifiers are +w4, +w8")
        self.refused("--plan", "quantspec+fast", message="known are w4, w8")
        self.refused("--plan", "quantspec+sparse+bounds",
                     message="quantspec+sparse+bounds: +sparse and +bounds exclude each other")
        self.refused("--plan", "quantspec+w4+w4", message="+w4 stands there twice")
        self.refused("--plan", "quantspec,kv-only,quantspec+w4", message="has quantspec already")
        self.refused("--plan", "all,auto", message="--plan auto: the list has auto already")
        for plans in ("quantspec,", ",quantspec", "quantspec,,auto", ""):
            self.refused("--plan", plans, message=f"--plan '{plans}': must be names with one comma")
        self.refused("--ctx-size", "256,", message="--ctx-size '256,': must be whole numbers")
        self.refused("--ctx-size", "256,128,256", message="--ctx-size '256,128,256': has 256 twice")
        for sweep, plan in (("draft-len", "streaming"), ("budget", "quantspec+sparse")):
            self.refused("--sweep", sweep, "--ctx-size", "32",
                         message=f"--sweep {sweep} measures --plan {plan}: of a prompt of 32 tokens there is nothing "
                         "to leave out; --plan takes others")
        self.refused("--draft-len", "auto,2,auto", message="has auto twice")
        self.refused("--plan", "layer-skip:1,9", message="layer-skip:1,9")
        self.refused("--draft-len", "17", message="--draft-len '17'")
        self.refused("--draft-len", "1,,2", message="--draft-len '1,,2'")
        self.refused("--plan", "quantspec+sparse", "--draft-budget", "256",
                     message="--draft-budget 256")
        self.refused("--draft-budget", "x", message="--draft-budget 'x'")
        self.refused("--plan", "quantspec,kv-only", "--draft-budget", "64",
                     message="--draft-budget 64: none of the plans quantspec, kv-only reads by a "
                     "budget; streaming, snapkv, retrieval, auto")
        self.refused("--sweep", "budget", "--plan", "quantspec", message="--sweep budget: none")
        self.refused("--ctx-size", "40000", message="from 1 to 32768 tokens")
        self.refused("--ctx-size", "30000", message="the longest", code=2)
        self.refused("--ctx-size", "128,32700", "-n", "69",
                     message="--predict 69: after a prompt of 32700 tokens, this model has room for 68")
        self.refused("-n", "0", message="--predict '0'")
        self.refused("--temp", "1,hot", message="--temp '1,hot'")
        self.refused("--sweep", "width", message="draft-len, budget")
        self.refused("--sweep", "budget", "--draft-budget", "64", message="exclude each other")
        self.refused("--sweep", "draft-len", "--draft-len", "2", message="exclude each other")
        self.refused("-o", "xml", message="md, csv, json, jsonl")
        self.refused(dataset="novel:x", message="known: text, pg19")
        self.refused(dataset="text:/nonexistent", message="/nonexistent")
        done = subprocess.run([BINARY, "bench"], capture_output=True, text=True, timeout=HANGS)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--dataset", done.stderr)

    def test_help_fits_80_columns(self):
        text = subprocess.run([BINARY, "bench", "--help"], capture_output=True, text=True,
                              timeout=HANGS).stdout
        self.assertLessEqual(max(map(len, text.splitlines())), 80)
        for word in ("--dataset --ctx-size --plan --draft-len --draft-budget --sweep --repeat --warm-up "
                     "--temp --spec-sampling --recall-distance --draft-store --machine --output retrieval "
                     "quantspec+w8|NAME+w8 Examples").split():
            self.assertRegex(text, word.replace("+", r"\+"))

    def ended_within_the_second_context(self, end):
        """Exit code and errors of a run that end(process) ends; checks that its JSON is whole."""
        # The second context takes much longer than it takes to see the rows of the first.
        process = subprocess.Popen(command("--ctx-size", "128,8192", "-n", "8", "--repeat", "1",
                                           "--plan", "quantspec", "--warm-up", "0", "--prompts",
                                           "1", "-o", "json"),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        written = b""
        while written.count(b'"context"') < 3:  # the first context's rows
            chunk = os.read(process.stdout.fileno(), 65536)
            self.assertTrue(chunk)
            written += chunk
        end(process)
        out, err = process.communicate(timeout=HANGS)
        report = json.loads(written + out)
        self.assertIs(report["complete"], False)
        rows = report["rows"]
        self.assertEqual({row["context"] for row in rows}, {128})
        return process.returncode, err.decode()

    def test_ctrl_c_leaves_what_was_measured(self):
        self.assertEqual(
            self.ended_within_the_second_context(lambda run: run.send_signal(signal.SIGINT)),
            (130, "quantspec: interrupted\n"))

    def test_sigterm_leaves_what_was_measured(self):
        self.assertEqual(
            self.ended_within_the_second_context(lambda run: run.send_signal(signal.SIGTERM)),
            (143, "quantspec: interrupted\n"))

    def test_an_error_leaves_what_was_measured(self):
        if b"__sanitizer" in Path(BINARY).read_bytes():
            self.skipTest("a sanitizer ends the process where memory ends")
        code, message = self.ended_within_the_second_context(
            lambda run: resource.prlimit(run.pid, resource.RLIMIT_AS, (1, 1)))
        self.assertEqual(code, 1)
        self.assertRegex(message, "quantspec: error: (the GPU: )?(out of memory|could not allocate)")


if __name__ == "__main__":
    BINARY = sys.argv.pop(1)
    unittest.main()
