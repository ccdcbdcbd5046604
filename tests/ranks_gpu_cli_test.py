#!/usr/bin/env python3
"""End-to-end tests of processes that share a model on a machine's GPUs. Usage: ranks_gpu_cli_test.py
BINARY [unittest arguments]

They write what one writes, and one that is killed ends every request. A model is made here. With one
GPU all are on it. Exit code 77 where there is no GPU. Standard library only.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import cli_support
import ranks_cli_test
from cli_support import HANGS, MODEL, PROMPT, CliTest, generate
from ranks_cli_test import launched, make_model, text_of

CUDA = ["--backend", "cuda"]
# Some 1300 tokens: more than a chunk, so that pages are read by a prompt.
LONG = (cli_support.ROOT / "prompts/the-lighthouse-clock.txt").read_text()[:5200]


def why_no_gpu():
    error = generate(*CUDA, "-m", str(MODEL), "-p", "x", "-n", "1").stderr.decode().strip()
    return error if "--backend cuda: " in error else None


def has_several_gpus():
    return b": there are 0 (" in generate(*CUDA, "-m", str(MODEL), "--device", "15", "-p", "x", "-n", "1").stderr


class RanksGpuTest(CliTest):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.models = {"llama": make_model(Path(cls.folder.name) / "llama", "llama")}
        cls.options = ["generate", *CUDA, "-m", str(cls.models["llama"]), "-c", "2048", "-t", "2", "--seed", "3",
                       "--ignore-eos"]

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def start(self, ranks, options, **variables):
        """A process for each rank, of which each may have its own variables."""
        self.job = f"gpus-{os.getpid()}-{time.monotonic_ns()}"
        processes = []
        for rank in range(ranks):
            own = {name: value(rank) for name, value in variables.items()}
            processes.append(subprocess.Popen(
                [cli_support.binary, *self.options, *options, "--ranks", "launched"], stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**launched(rank, ranks, self.job), **own}))
        return processes

    def check_same(self, ranks, options, more=(), **variables):
        one = text_of(cli_support.quantspec(*self.options, *options))
        self.assertGreater(len(one), 20)
        processes = self.start(ranks, [*options, *more], **variables)
        ends = []
        try:
            for process in processes:
                ends.append((*process.communicate(timeout=HANGS), process.returncode))
        finally:
            for process in processes:
                process.kill()
        self.assertEqual([code for _, _, code in ends], [0] * ranks, ends)
        self.assertEqual([text for text, _, _ in ends], [one] + [b""] * (ranks - 1))

    def test_two_write_what_one_writes(self):
        self.check_same(2, ["-p", PROMPT, "-n", "60"])
        self.check_same(2, ["-p", LONG, "-n", "20"])

    def test_two_share_contexts(self):
        self.check_same(2, ["-p", LONG, "-n", "20"], ["--context-ranks", "2"])

    def test_without_a_backend_they_take_gpus(self):
        self.options = ["generate", *self.options[1 + len(CUDA):]]
        self.check_same(2, ["-p", PROMPT, "-n", "60"])

    def test_four(self):
        self.check_same(4, ["-p", LONG, "-n", "8"])

    def test_each_sees_its_own_gpu_alone(self):
        if not has_several_gpus():
            self.skipTest("one GPU")
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
        self.check_same(2, ["-p", LONG, "-n", "20"], CUDA_VISIBLE_DEVICES=lambda rank: seen[rank])

    def test_a_killed_one_ends_the_other(self):
        processes = self.start(2, ["-p", PROMPT, "-n", "1900"])
        first, other = processes
        try:
            first.stdout.read(1)  # of its answer
            other.kill()
            begin = time.monotonic()
            error = first.communicate(timeout=HANGS)[1].decode()
            self.assertLess(time.monotonic() - begin, 10)
        finally:
            for process in processes:
                process.kill()
            other.communicate()
        self.assertEqual(first.returncode, 1, error)
        self.assertRegex(error.splitlines()[-1], "^quantspec: error: .*rank 1 (has ended|did not come)")
        self.assertEqual(error.count("quantspec: error: "), 1, error)

    def test_a_killed_one_ends_every_request_of_a_server(self):
        if not re.search(rb"^ +serve ", cli_support.quantspec("--help").stdout, re.MULTILINE):
            self.skipTest("a build without the server")
        ranks_cli_test.Wrong.end_one(self, signal.SIGKILL, "rank 1")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    cli_support.binary = str(Path(sys.argv[1]).resolve())
    if why := why_no_gpu():
        print(f"skipped: {why}")
        sys.exit(77)
    cli_support.main(__doc__)
