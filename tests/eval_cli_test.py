#!/usr/bin/env python3
"""End-to-end tests of `quantspec eval`. Usage: eval_cli_test.py BINARY [unittest arguments]

Runs the binary on the bundled model with a short text. Standard library only.
"""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BINARY = None
ROOT = Path(__file__).resolve().parent.parent
TEXT = f"text:{ROOT / 'tests/testdata/datasets/books/keeper.txt'}"
SMALL = ["-m", str(ROOT / "models/pg-24m"), "-d", TEXT, "--ctx", "256", "--tokens", "16",
         "--prompts", "1", "--page-size", "32", "-t", "1", "-o", "json"]


def evaluate(*args):
    return subprocess.run([BINARY, "eval", *args], capture_output=True, text=True, timeout=120)


class EvalTest(unittest.TestCase):
    def measure(self, *args):
        done = evaluate(*args, *SMALL)
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual(list(report), ["meta", "rows"])
        self.assertEqual(report["meta"]["measurement"], args[0])
        return report["rows"]

    def test_help_fits_80_columns(self):
        for command in [[], ["perplexity"], ["axes"], ["fidelity"], ["sensitivity"], ["lossless"]]:
            text = evaluate(*command, "--help").stdout
            self.assertIn("Example", text)
            for line in text.splitlines():
                self.assertLessEqual(len(line), 80, line)

    def test_fidelity_has_the_documented_keys(self):
        rows = self.measure("fidelity", "--plan", "kv-only")
        self.assertEqual(list(rows[0]), [
            "kind", "reading", "reference", "context", "prompts", "tokens", "acceptance",
            "acceptance_error", "top1_agreement", "kl_mean", "kl_error", "kl_p99", "nll"])
        self.assertEqual([row["reading"] for row in rows if row["kind"] == "fidelity"],
                         ["8-bit KV", "8-bit KV, paper's", "kv-only"])
        self.assertIsNone(rows[0]["acceptance_error"])  # one prompt says nothing of others
        self.assertEqual(rows, self.measure("fidelity", "--plan", "kv-only"))

    def test_lossless(self):
        rows = self.measure("lossless", "--plan", "quantspec", "--draft-len", "3,auto")
        self.assertEqual(len(rows), 4)
        self.assertTrue(all(row["first_difference"] is None for row in rows))

    def test_what_cannot_be_is_refused(self):
        for args, *words in [
                ([], "perplexity", "lossless"),
                (["axes"], "--dataset"),
                (["axes", "-d", "tome:x"], "tome:x", "recall"),
                (["axes", "-d", TEXT, "--ctx", "9000"], "9000", "keeper.txt"),
                (["axes", "-d", TEXT, "--ctx", "64", "--stride", "64"], "--stride"),
                (["fidelity", "--ctx", "256,1"], "--ctx '256,1'", "whole numbers from 2"),
                (["lossless", "--draft-len", "4,0"], "--draft-len '4,0'", "auto or from 1 to"),
                (["fidelity", *SMALL, "--plan", "warp"], "warp", "streaming"),
                (["fidelity", *SMALL, "--plan", "streaming", "--draft-budget", "999"], "999"),
                (["sensitivity", *SMALL, "--plan-file", "/no/such/folder/x"], "/no/such")]:
            with self.subTest(args=args):
                done = evaluate(*args)
                lines = done.stderr.splitlines()
                self.assertEqual((done.returncode, done.stdout), (2, ""), lines)
                self.assertEqual(lines[1:], ["try quantspec eval --help"])
                for word in words:
                    self.assertIn(word, lines[0])

    def test_sensitivity_writes_a_plan_that_fidelity_reads(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "plan.json"
            done = evaluate("sensitivity", *SMALL[:4], "--ctx", "160", "--tokens", "8",
                            "--prompts", "1", "--page-size", "32", "--plan-file", str(file),
                            "-o", "json")
            self.assertEqual(done.returncode, 0, done.stderr)
            kinds = {row["kind"] for row in json.loads(done.stdout)["rows"]}
            self.assertEqual(kinds, {"entropy", "sensitivity", "plan", "chosen"})
            rows = self.measure("fidelity", "--plan", f"plan:{file}")
            self.assertEqual(rows[2]["reading"], "plan")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    BINARY = str(Path(sys.argv.pop(1)).resolve())
    unittest.main()
