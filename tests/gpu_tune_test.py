#!/usr/bin/env python3
"""Tests of tools/gpu_tune.py with a program in gpu_bench's place, which makes its times up."""

import re
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOL = ROOT / "tools/gpu_tune.py"
sys.path.insert(0, str(TOOL.parent))
import gpu_tune  # noqa: E402

# The kernel of few rows takes 1 us and 0.1 for each row, that of batches %(batch)s; a draft is fastest
# where the GPU is filled %(rounds)s times.
STAND_IN = """
import json, os, sys
changes = dict(pair.split("=") for pair in os.environ["QUANTSPEC_TUNING"].split(",") if pair)
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
def value(name, default):
    return int(changes.get(name, default))
cells = []
if options["--only"] == "linear":
    for matrix in options["--matrices"].split(","):
        size = {"o": "4096x4096", "8b gate-up": "28672x4096"}.get(matrix, "8192x4096")
        for weights in options["--weights"].split(","):
            kind = {"bf16": "half", "4-bit": "plane", "8-bit": "plane"}.get(weights, "code")
            for rows in map(int, options["--rows"].split(",")):
                few = rows < value(kind + "_rows", 17)
                seconds = 1 + 0.1 * rows if few else %(batch)s
                cells.append((f"{matrix} {size} {weights}", rows, seconds))
else:
    rounds = value("draft_rounds", 1)
    cells = [("gqa 4096 draft", 1, 9), ("gqa 32x4096 draft", 1, 1 + abs(rounds - %(rounds)s)),
             ("gqa 32x4096 verify", 4, 2), ("mha 8x4096 fp16", 1, 3)]
json.dump({"device": "cuda (GPU 0: NVIDIA X, kernels for %(capability)s)", "measurements": [
    {"name": name, "rows": rows, "seconds": 1e-6 * us} for name, rows, us in cells]},
    open(options["--json"], "w"))
"""


class GpuTuneTest(unittest.TestCase):
    def run_tool(self, folder, **made_up):
        program = Path(folder) / "gpu_bench"
        program.write_text(f"#!{sys.executable}\n" + textwrap.dedent(STAND_IN % made_up))
        program.chmod(0o755)
        return subprocess.run([sys.executable, TOOL, "--build", folder], check=False,
                              capture_output=True, text=True)

    def row(self, output):
        return gpu_tune.read_table(output[output.rindex("\n\n"):])

    def test_the_table_has_what_the_header_has(self):
        table = gpu_tune.read_table(gpu_tune.TABLE.read_text())
        header = (gpu_tune.TABLE.parent / "tuning.h").read_text()
        names = re.findall(r"\w+", " ".join(re.findall(r"^  int ([\w, ]+);", header, re.M)))
        self.assertEqual(list(next(iter(table.values()))), names)
        self.assertEqual(next(iter(table)), 90)
        for capability, values in table.items():
            self.assertEqual(gpu_tune.read_table(gpu_tune.row_text(capability, values)),
                             {capability: values})

    def test_what_is_best_stays(self):
        now = gpu_tune.read_table(gpu_tune.TABLE.read_text())[90]
        with tempfile.TemporaryDirectory() as folder:
            done = self.run_tool(folder, batch="0.995 * (1 + 0.1 * rows)", rounds=1, capability="9.0")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("begins with its row of tuning.cc", done.stdout)
        self.assertIn("half_rows: makes no difference here", done.stdout)
        self.assertEqual(self.row(done.stdout), {90: now})

    def test_a_new_gpu_gets_a_row(self):
        with tempfile.TemporaryDirectory() as folder:
            done = self.run_tool(folder, batch="2.25", rounds=3, capability="8.6")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("begins with the row of 9.0, as tuning.cc has none", done.stdout)
        row = self.row(done.stdout)[86]
        self.assertEqual((row["half_rows"], row["half_large_rows"], row["code_rows"]), (13, 13, 13))
        self.assertEqual(row["draft_rounds"], 3)

    def test_a_kernel_that_never_gains_is_never_taken(self):
        with tempfile.TemporaryDirectory() as folder:
            done = self.run_tool(folder, batch="9", rounds=4, capability="9.0")
        row = self.row(done.stdout)[90]
        self.assertEqual((row["plane_rows"], row["plane_large_rows"]), (gpu_tune.NEVER,) * 2)
        self.assertIn("draft_rounds: us; now 1, best 4, at the edge", done.stdout)

    def test_what_cannot_be_timed_is_said(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, TOOL, "--build", folder], check=False,
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 2)
            self.assertRegex(done.stderr, r"error: no program .*/gpu_bench: cmake --build")
            program = Path(folder) / "gpu_bench"
            for code, expected in ((3, 1), (1, 2)):
                program.write_text(f"#!/bin/sh\necho wrong >&2\nexit {code}\n")
                program.chmod(0o755)
                done = subprocess.run([sys.executable, TOOL, "--build", folder], check=False,
                                      capture_output=True, text=True)
                self.assertEqual(done.returncode, expected)
                self.assertRegex(done.stderr, r"wrong\n\ngpu_tune: .*/gpu_bench failed, with QUANTSPEC_")


if __name__ == "__main__":
    unittest.main()
