#!/usr/bin/env python3
"""End-to-end tests of `quantspec roofline`. Usage: roofline_cli_test.py BINARY [unittest arguments]

Standard library only.
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HANGS = 300  # seconds: what takes longer does not end, however busy the machine is
BINARY = None
MODEL = Path(__file__).resolve().parent.parent / "models" / "pg-24m"


def roofline(*args):
    return subprocess.run([BINARY, "roofline", "-m", str(MODEL), *args], capture_output=True,
                          text=True, timeout=HANGS)


class RooflineTest(unittest.TestCase):
    def refused(self, *args, message):
        done = roofline(*args)
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(done.stdout, "")
        self.assertIn(message, done.stderr)

    def test_json_has_the_documented_keys(self):
        done = roofline("--machine", "a6000", "--ctx-size", "4096,32768", "--batch", "1,4",
                        "--acceptance", "0.8,0.9,1", "-n", "16", "-o", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual([(key, len(report[key])) for key in ("table1", "planes", "steps", "kv")],
                         [("table1", 24), ("planes", 8), ("steps", 12), ("kv", 4)])
        documented = (Path(__file__).resolve().parent.parent / "docs" / "roofline.md").read_text()
        for rows in ([report["meta"]], report["table1"], report["planes"], report["steps"],
                     report["kv"]):
            for key in rows[0]:
                self.assertIn(f"`{key}`", documented)
        self.assertEqual(report["meta"]["model"], "pg-24m")
        self.assertEqual({step["acceptance"] for step in report["steps"]}, {0.8, 0.9, 1})

    def test_markdown_fits_a_terminal(self):
        done = roofline("--machine", "rtx4090")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(done.stdout.startswith("# Roofline of pg-24m on rtx4090\n"))
        self.assertLessEqual(max(map(len, done.stdout.splitlines())), 80)

    def test_a_folder_whose_name_is_not_utf8(self):
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / os.fsdecode(b"m\xff")
            model.mkdir()
            (model / "config.json").symlink_to(MODEL / "config.json")
            done = subprocess.run([BINARY, "roofline", "-m", str(model), "--machine", "a6000", "-o",
                                   "json"], capture_output=True, text=True, timeout=HANGS)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(done.stdout)["meta"]["model"],
                             "m\N{REPLACEMENT CHARACTER}")

    def test_this_machine_is_measured(self):
        done = roofline("--machine", "this", "-t", "1", "--ctx-size", "4096", "-o", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        meta = json.loads(done.stdout)["meta"]
        self.assertGreater(meta["bandwidth_bytes_per_second"], 1e7)
        self.assertGreater(meta["flops_per_second"], 1e7)
        # Drafts in groups of 32 and of 128, as loading keeps them on a CPU and on a GPU.
        done = roofline("--machine", "h100", "--ctx-size", "4096", "-o", "json")
        of_gpu = json.loads(done.stdout)["meta"]["draft_weights_bytes"]
        self.assertAlmostEqual(meta["draft_weights_bytes"] / of_gpu, 4.625 / 4.25)

    def test_bad_values_are_refused_with_what_would_work(self):
        self.refused("--machine", "b200", message="--machine 'b200': must be one of a6000, a100, "
                     "h100, h200, rtx4090, this")
        self.refused("--ctx-size", "4096,,1", message="--ctx-size '4096,,1': must be whole numbers from 1")
        self.refused("--ctx-size", "0", message="--ctx-size '0'")
        self.refused("--batch", "", message="--batch ''")
        self.refused("--acceptance", "0.9,1.5", message="numbers from 0 to 1, with commas between")
        self.refused("-n", "0", message="--predict '0'")
        self.refused("-o", "csv", message="--output 'csv': must be one of md, json")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    BINARY = str(Path(sys.argv.pop(1)).resolve())
    unittest.main()
