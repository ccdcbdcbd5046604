#!/usr/bin/env python3
"""When a build has the CUDA backend (cmake/cuda.cmake). Usage: configure_test.py CMAKE

The GPU is one that a fake nvidia-smi shows, or shows not. The toolkit is a fake too, and refused: that it is
named tells that the build asked for one.
"""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CMAKE = None
NO_GPU = "The CUDA backend is left out: nvidia-smi shows no GPU here; -DQUANTSPEC_CUDA=ON "
NO_TOOLKIT = "no CUDA toolkit of version 12.8 or later (CUDACXX="


class ConfigureTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="quantspec-configure-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def program(self, name, body):
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        path.chmod(0o755)
        return path

    def configure(self, *options, gpu=None):
        """The exit code, and what is said, in one line."""
        self.program("nvidia-smi", f"echo {gpu}" if gpu else "exit 9")
        environment = os.environ | {"PATH": f"{self.folder}:{os.environ['PATH']}",
                                    "CUDACXX": str(self.program("nvcc", "exit 1"))}
        done = subprocess.run(
            [CMAKE, "-S", ROOT, "-B", self.folder / "build", "-G", "Ninja", "--log-level=NOTICE",
             "-DQUANTSPEC_TESTS=OFF", *options],
            env=environment, text=True, capture_output=True, timeout=300)
        return done.returncode, " ".join(done.stderr.split())

    def test_without_a_gpu_it_is_left_out_in_one_line_that_says_how_to_get_it(self):
        code, said = self.configure()
        self.assertEqual(code, 0)
        self.assertTrue(said.startswith(NO_GPU), said)
        self.assertIn("-DQUANTSPEC_CUDA_ARCHITECTURES=", said)

    def test_with_a_gpu_it_wants_a_toolkit(self):
        code, said = self.configure(gpu="8.6")
        self.assertEqual(code, 0)
        self.assertIn(NO_TOOLKIT, said)

    def test_who_names_architectures_asks_for_it(self):
        code, said = self.configure("-DQUANTSPEC_CUDA_ARCHITECTURES=90a")
        self.assertEqual(code, 0)
        self.assertIn(NO_TOOLKIT, said)

    def test_on_insists(self):
        for more in ([], ["-DQUANTSPEC_CUDA_ARCHITECTURES=86"]):
            code, said = self.configure("-DQUANTSPEC_CUDA=ON", *more)
            self.assertNotEqual(code, 0)
            self.assertIn(NO_TOOLKIT, said)

    def test_off_says_nothing(self):
        self.assertEqual(self.configure("-DQUANTSPEC_CUDA=OFF", gpu="8.6"), (0, ""))


if __name__ == "__main__":
    CMAKE = sys.argv.pop(1)
    unittest.main()
