#!/usr/bin/env python3
"""End-to-end tests of many requests at once: `quantspec bench --streams` and `--trace`, and `quantspec
eval lossless --streams`. Usage: streams_cli_test.py BINARY [unittest arguments]

Runs the binary on the bundled model with short prompts. Standard library only.
"""

import csv
import io
import json
import re
import signal
import subprocess
import tempfile
from pathlib import Path

import cli_support
from cli_support import CliTest, HANGS, MODEL, ROOT, quantspec

TEXTS = f"text:{ROOT / 'prompts'}"
TRACE = ROOT / "tests/testdata/traces/small.jsonl"
COMMON = ["-m", str(MODEL), "-d", TEXTS, "-t", "1"]
UNIFORM = [*COMMON, "--page-size", "32", "-c", "64", "-n", "6", "--repeat", "2", "--warm-up", "4"]


def bench(*args):
    return quantspec("bench", *args)


class StreamsTest(CliTest):
    def report(self, *args):
        done = bench(*args, "-o", "json")
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        return json.loads(done.stdout)

    def check_documented(self, report):
        documented = (ROOT / "docs" / "bench.md").read_text()
        for record in (report["meta"], report["rows"][-1]):
            for key in record:
                self.assertIn(f"`{re.sub('_(min|max|values)$', '', key)}`", documented)

    def test_uniform_load(self):
        report = self.report(*UNIFORM, "--streams", "1,3", "--plan", "quantspec", "--draft-len", "2",
                             "--temp", "0.8,0")
        self.check_documented(report)
        self.assertIs(report["complete"], True)
        self.assertEqual((report["meta"]["measurement"], report["meta"]["streams"]),
                         ("streams", [1, 3]))
        self.assertEqual([(row["streams"], row["temperature"], row["plan"], row["draft_len"])
                          for row in report["rows"]],
                         [(streams, temperature, plan, length) for streams in (1, 3)
                          for temperature in (0.8, 0)
                          for plan, length in (("plain-fp16", 0), ("plain-int8", 0), ("quantspec", 2))])
        for row in report["rows"]:
            self.assertEqual((row["context"], row["tokens"], row["requests"]),
                             (64, 6, row["streams"]))
            self.assertIs(row["identical"], True)
            self.assertEqual(len(row["output_tokens_per_second_values"]), 2)
            self.assertGreater(row["ttft_p50_ms"], 0)
            self.assertGreaterEqual(row["itl_p99_ms"], row["itl_p50_ms"])
            parts = ("weights", "draft_weights", "kv", "ring", "prefill")
            self.assertEqual(row["peak_bytes"], sum(row[part + "_bytes"] for part in parts))
        ratio = [drafts / plain for drafts, plain in
                 zip(report["rows"][5]["output_tokens_per_second_values"],
                     report["rows"][4]["output_tokens_per_second_values"])]
        for one, other in zip(ratio, report["rows"][5]["speedup_int8_values"]):
            self.assertAlmostEqual(one, other)

    def test_trace(self):
        report = self.report(*COMMON, "--trace", str(TRACE), "--streams", "3", "--repeat", "1",
                             "--warm-up", "4", "--plan", "quantspec", "--temp", "0.8")
        self.check_documented(report)
        self.assertEqual((report["meta"]["measurement"], report["meta"]["trace"],
                          report["meta"]["requests"]), ("trace", str(TRACE), 5))
        for row in report["rows"]:
            self.assertIs(row["identical"], True)
            self.assertIsNone(row["context"])
            self.assertEqual(len(row["over_time_draft_len"]), 10)

    def test_formats(self):
        args = [*UNIFORM, "--streams", "2", "--plan", "quantspec", "--draft-len", "2"]
        lines = bench(*args, "-o", "jsonl").stdout.decode().splitlines()
        self.assertEqual(list(json.loads(lines[0])), ["meta"])
        table = list(csv.DictReader(io.StringIO(bench(*args, "-o", "csv").stdout.decode())))
        self.assertEqual(list(table[0]), list(json.loads(lines[1])))
        text = bench(*args).stdout.decode()
        self.assertIn("## 2 streams, 64 tokens of context, temperature 1", text)
        self.assertLessEqual(max(map(len, text.splitlines())), 100)

    def test_what_cannot_be_is_refused(self):
        for args, *words in [
                (["--streams", "0"], "--streams '0'", "whole numbers from 1"),
                (["--streams", "2,2"], "has 2 twice"),
                (["--streams", "1025"], "from 1 to 1024"),
                (["--streams", "2", "--prompts", "2"], "--streams and --prompts exclude"),
                (["--streams", "2", "--machine", "h100"], "--streams and --machine exclude"),
                (["--streams", "2", "--sweep", "budget"], "--streams and --sweep exclude"),
                (["--streams", "2", "--plan", "snapkv"], "--plan snapkv", "one text at a time"),
                (["--streams", "2", "-c", "32000", "-n", "512"], "--ctx-size 32000", "3 repeats"),
                (["--trace", str(TRACE), "--streams", "1,2"], "--streams", "one number"),
                (["--trace", str(TRACE), "-c", "100"], "--trace and --ctx-size exclude"),
                (["--streams", "2", "--page-memory", "9"], "--page-memory: needs --trace"),
                (["--host-cache", "9"], "--host-cache: needs --trace"),
                (["--trace", str(TRACE), "--host-cache", "x"], "must be a whole number"),
                (["--trace", str(TRACE), "-n", "100"], "--trace and --predict exclude"),
                (["--trace", ""], "--trace ''"),
                (["--trace", "/nonexistent"], "/nonexistent")]:
            with self.subTest(args=args):
                code = 1 if words == ["/nonexistent"] else 2
                self.check_error(bench(*COMMON, *args), code, *words)

    def test_hostile_traces_are_refused_in_one_line(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "trace.jsonl"
            for text, *words in [
                    (b"", "has no request"),
                    (b"\x00\xff", "line 1"),
                    (b'{"arrival_ms": 0, "prompt_tokens": 1e9, "output_tokens": 1}', "prompt_tokens"),
                    (b"[" * 100000, "line 1"),
                    (b'{"arrival_ms": 0, "prompt_tokens": 9, "output_tokens": 32768}', "32777", "32768"),
                    (b'{"a\\u001b[31m": 0}', "line 1", "no key")]:
                with self.subTest(text=text[:40]):
                    trace.write_bytes(text)
                    done = bench(*COMMON, "--trace", str(trace))
                    self.check_error(done, 2 if words[0] == "32777" else 1, *words)
                    self.assertNotIn(b"\x1b", done.stderr)

    def test_ctrl_c_leaves_what_was_measured(self):
        process = subprocess.Popen(
            [cli_support.binary, "bench", *COMMON, "--page-size", "32", "-c", "128,8000", "-n", "4",
             "--streams", "1", "--repeat", "1", "--warm-up", "0", "--plan", "quantspec", "-o", "json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        written = b""
        while written.count(b'"context"') < 3:
            chunk = process.stdout.read1()
            self.assertTrue(chunk)
            written += chunk
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=HANGS)
        report = json.loads(written + out)
        self.assertEqual((process.returncode, err), (130, b"quantspec: interrupted\n"))
        self.assertIs(report["complete"], False)
        self.assertEqual({row["context"] for row in report["rows"]}, {128})

    def test_lossless_streams(self):
        args = ["eval", "lossless", *COMMON, "-c", "150", "--tokens", "16", "--streams", "3",
                "--plan", "quantspec", "--draft-len", "1,5,auto"]
        done = quantspec(*args, "-o", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertIs(report["meta"]["identical"], True)
        self.assertEqual(report["meta"]["streams"], 3)
        rows = report["rows"]
        self.assertEqual(len(rows), 2 * 2 * 3)  # sampling, cold and warm
        self.assertEqual({row["first_difference"] for row in rows}, {None})
        self.assertGreater(len({row["draft_len"] for row in rows}), 1)
        documented = (ROOT / "docs" / "eval.md").read_text()
        for key in {*report["meta"], *rows[0]}:
            self.assertIn(f"`{key}`", documented)
        self.assertIn("12 generations beside others", report["meta"]["conclusion"])
        self.check_error(quantspec("eval", "lossless", *COMMON, "--streams", "2", "--plan", "snapkv"),
                         2, "--plan snapkv", "one text at a time")


if __name__ == "__main__":
    cli_support.main(__doc__)
