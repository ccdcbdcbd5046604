#!/usr/bin/env python3
"""Tests of tools/paper_table3.py. Usage: paper_table3_cli_test.py BINARY [unittest arguments]

Runs the binary on the bundled model and on small files of the datasets' schemas, made of the
bundled story. Standard library only.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HANGS = 300  # seconds: what takes longer does not end, however busy the machine is
BINARY = None
ROOT = Path(__file__).resolve().parent.parent
TOOL = ROOT / "tools" / "paper_table3.py"
MODEL = ROOT / "models" / "pg-24m"
STORY = (ROOT / "prompts" / "the-lighthouse-clock.txt").read_text()[:12000]
RECORDS = {
    "pg19": {"short_book_title": "The Clock", "publication_date": 1901, "text": STORY},
    "infinitebench": {"id": 0, "context": STORY, "answer": ["A clock."]},
    "multilexsum": {"id": "A-1", "sources": [STORY[:4000], STORY[4000:]], "summary/short": "No."},
}
sys.path.insert(0, str(ROOT / "tools"))

import paper_table3  # noqa: E402


class Folder(unittest.TestCase):
    def setUp(self):
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.folder = Path(made.name)

    def texts(self):
        """The options that name all datasets."""
        options = []
        for name, record in RECORDS.items():
            file = self.folder / f"{name}.jsonl"
            file.write_text(json.dumps(record) + "\n")
            options += [f"--{name}", str(file)]
        return options

    def tool(self, *args, quantspec=None):
        return subprocess.run([
            sys.executable, TOOL, "--quantspec", quantspec or BINARY, "-o", self.folder / "out",
            *args
        ], capture_output=True, text=True, timeout=HANGS, env=os.environ | {"PYTHONUTF8": "1"})

    def quick(self, *args, **kwargs):
        return self.tool("--model", MODEL, "--quick", "-n", "12", "--warm-up", "2",
                         "--bench=-t 1 --page-size 32", *args, **kwargs)

    def program(self, text):
        """A quantspec that knows the bundled model, and whose bench does as `text` says."""
        file = self.folder / "quantspec"
        info = """case $1 in info) echo '{"max_positions": 32768}'; exit;; esac"""
        file.write_text(f"#!/bin/sh\n{info}\n{text}\n")
        file.chmod(0o755)
        return file


class MeasuredTest(Folder):
    def test_rows_are_those_that_bench_measures(self):
        done = self.quick(*self.texts(), "-c", "512,40000")
        self.assertEqual(done.returncode, 0, done.stderr)
        table = (self.folder / "out" / "table3.md").read_text(encoding="utf-8")
        self.assertEqual(done.stdout, table)
        lines = [line.strip("|").split("|") for line in table.splitlines() if line[:1] == "|"]
        cells = [[cell.strip() for cell in line] for line in lines]
        self.assertEqual([line[:4] for line in cells[2:]], [
            ["PG19", "512", "StreamingLLM", "1"], ["", "", "SnapKV", "1"],
            ["", "", "QuantSpec", "2"], ["∞BENCH Sum", "512", "StreamingLLM", "1"],
            ["", "", "SnapKV", "1"], ["", "", "QuantSpec", "4"],
            ["Multi-LexSum", "512", "StreamingLLM", "1"], ["", "", "SnapKV", "1"],
            ["", "", "QuantSpec", "6"]
        ])
        rows = json.loads((self.folder / "out" / "table3.json").read_text())["rows"]
        self.assertEqual(len(rows), 9)
        for row, line in zip(rows, cells[2:]):
            report = json.loads(
                (self.folder / "out" / f"pg-24m.{row['dataset']}.512.json").read_text())
            plan = {"StreamingLLM": "streaming", "SnapKV": "snapkv", "QuantSpec": "quantspec"}
            source = next(one for one in report["rows"]
                          if one["plan"] == plan[row["method"]] and
                          one["draft_len"] == row["draft_len"])
            self.assertEqual(
                line[4:], [f"{100 * source['acceptance_rate']:.2f}",
                           f"{source['peak_bytes'] / 1e9:.2f}", f"{source['speedup_fp16']:.2f}",
                           "-", "-", "-"])
            self.assertEqual((source["temperature"], source["tokens"]), (0, 12))
            self.assertIn(f"    {report['run']['command']}\n", table)
        self.assertEqual(table.count("the model takes 32768 tokens, and 40000"), 3)

        # The commands that are shown are those that were run.
        command = report["run"]["command"]
        again = subprocess.run([BINARY, *shlex.split(command)[1:]], capture_output=True, text=True,
                               timeout=HANGS)
        hashes = [[row["tokens_hash"] for row in one["rows"]]
                  for one in (json.loads(again.stdout), report)]
        self.assertEqual(*hashes)

    def test_a_text_that_is_too_short_is_left_out(self):
        done = self.quick(*self.texts(), "-c", "16000")
        self.assertEqual(done.returncode, 1)
        self.assertIn("Not measured:\n\n- pg-24m, pg19, 16000 tokens: --dataset 'pg19:",
                      done.stdout)
        self.assertTrue(done.stderr.endswith("no row was measured; the reasons are above\n"))


class PlanTest(Folder):
    def test_table_3_is_as_printed(self):
        rows = [numbers for settings in paper_table3.PAPER.values() for one in settings
                for numbers in one.paper]
        self.assertEqual(len(rows), 24)
        self.assertEqual(rows.count(paper_table3.OOM), 2)
        known = [numbers for numbers in rows if numbers != paper_table3.OOM]
        sums = [round(sum(column), 2) for column in zip(*known)]
        self.assertEqual(sums, [1918.76, 613.09, 35.79])
        self.assertEqual(max(numbers[2] for numbers in known), 2.49)

    def test_models_are_found_by_their_names(self):
        llama, lwm = paper_table3.PAPER
        cache = self.folder / "hub/models--LargeWorldModel--LWM-Text-Chat-128K/snapshots/0123abc"
        cache.mkdir(parents=True)
        (cache / "config.json").write_text("{}")
        (self.folder / "llama-2-7b-32k-instruct.Q8_0.gguf").touch()
        (self.folder / "llama-2-7b-32k.Q8_0.gguf").touch()
        self.assertEqual(paper_table3.candidates(self.folder, lwm), [cache])
        self.assertEqual(paper_table3.candidates(self.folder, llama),
                         [self.folder / "llama-2-7b-32k-instruct.Q8_0.gguf"])
        (self.folder / "Llama-2-7B-32K-Instruct-Q4_0.gguf").touch()
        self.assertRegex(paper_table3.in_folder(self.folder, llama).problem, "^several: .*--model")
        folder = self.folder / "Llama-2-7B-32K-Instruct"
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        self.assertEqual(paper_table3.in_folder(self.folder, llama).path, folder)
        self.assertEqual(paper_table3.name_of(cache), "LWM-Text-Chat-128K")
        self.assertEqual(paper_table3.paper_name("LWM-Text-Chat-128Kx"), "")

    def test_a_paper_model_has_the_papers_settings(self):
        folder = self.folder / "Llama-2-7B-32K-Instruct"
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        done = self.tool("--models", self.folder, *self.texts()[:2], "--dry-run",
                         quantspec=self.program("exit 3"))
        self.assertEqual(done.returncode, 0, done.stderr)
        command = (f"quantspec bench -m {folder} -d pg19:{self.folder}/pg19.jsonl -c {{}} --plan "
                   "streaming,snapkv,quantspec --draft-len 1,2 --temp 0 -n 90 --prompts 7 "
                   "--repeat 3 --warm-up 32 -o json -q")
        name, missing = "Llama-2-7B-32K-Instruct", "no --multilexsum FILE was given"
        other = f"{self.folder} has no LargeWorldModel/LWM-Text-Chat-128K"
        self.assertEqual(done.stdout.splitlines(), [
            command.format(4096), command.format(8192),
            f"{name}, multilexsum, 8192 tokens: {missing}",
            f"{name}, multilexsum, 32000 tokens: {missing}",
            f"LWM-Text-Chat-128K, infinitebench, 16000 tokens: {other}",
            f"LWM-Text-Chat-128K, infinitebench, 32000 tokens: {other}",
            f"LWM-Text-Chat-128K, multilexsum, 64000 tokens: {other}",
            f"LWM-Text-Chat-128K, multilexsum, 128000 tokens: {other}"
        ])

    def test_memory_that_is_not_there_is_told_from_failures(self):
        error = "quantspec: error: --ctx-size 512: the caches need 9 MB and 8 MB are available"
        for text, problem, end in (
            (f"echo '{error}' >&2; exit 1", error[18:], "no row was measured"),
            ("echo 'quantspec: error: a GPU failed' >&2; exit 1", "a GPU failed", "failed: pg-24m"),
            ("kill -9 $$", "ended with -9", "failed: pg-24m"),
            ("""echo '{"rows": []}'""", "the report has no row of StreamingLLM", "failed: pg-24m"),
        ):
            done = self.quick(*self.texts()[:2], "-c", "512", quantspec=self.program(text))
            self.assertEqual(done.returncode, 1, text)
            self.assertIn(f"- pg-24m, pg19, 512 tokens: {problem}\n", done.stdout)
            self.assertIn(f"paper_table3: {end}", done.stderr.splitlines()[-1])

    def test_what_was_measured_is_kept(self):
        row = {"acceptance_rate": 0.5, "peak_bytes": 2e9, "speedup_fp16": 1.25}
        rows = [row | {"plan": plan, "draft_len": 2 if plan == "quantspec" else 1}
                for plan in ("streaming", "snapkv", "quantspec")]
        meta = dict.fromkeys(("version", "commit", "backend", "cpu", "target_weights", "prompts",
                              "tokens", "repeats"), "x")
        report = json.dumps({"meta": meta, "rows": rows})
        counted = self.program(f"echo >> {self.folder}/runs; echo '{report}'")
        for options, runs in (((), 1), (("--keep",), 1), (("--keep", "--prompts", "2"), 2),
                              ((), 3)):
            done = self.quick(*self.texts()[:2], "-c", "512", *options, quantspec=counted)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("| SnapKV | 1 | 50.00 | 2.00 | 1.25 | - | - | - |\n", done.stdout)
            self.assertEqual(len((self.folder / "runs").read_text()), runs, options)

    def test_errors_are_one_line(self):
        texts = self.texts()[:2]
        for args, error in (
            (texts, "no model: name --models DIR or --model PATH"),
            (("--model", MODEL), "no dataset: name --pg19, --infinitebench or --multilexsum FILE"),
            (("--model", "/nope", *texts), "argument --model: there is no /nope"),
            (("--model", ROOT / "docs", *texts), f"--model {ROOT / 'docs'}: "),
            (("--model", MODEL, *texts, "-c", "1,x"), "'1,x' is no list of numbers"),
            (("--model", MODEL, *texts, "--draft-len", "17"), "'17' is neither 1 to 16 nor auto"),
        ):
            done = self.tool(*args)
            self.assertIn(done.returncode, (1, 2))
            self.assertIn(error, done.stderr.splitlines()[-1])
            self.assertNotIn("Traceback", done.stderr)
            self.assertEqual(done.stdout, "")

    def test_help_fits_a_terminal(self):
        done = self.tool("--help")
        self.assertEqual(done.returncode, 0)
        self.assertLessEqual(max(len(line) for line in done.stdout.splitlines()), 80)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: paper_table3_cli_test.py BINARY [unittest arguments]")
    BINARY = str(Path(sys.argv.pop(1)).resolve())
    unittest.main()
