#!/usr/bin/env python3
"""Tests of fuzz/run.sh: that it runs what it has just built. `cmake` is a script here, which notes how
it was called and makes targets that say which sources they are of. And of the targets, that they look at
every Error: one may be a bug. Standard library only.
"""

import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

HANGS = 300  # seconds: what takes longer does not end, however busy the machine is
RUN = Path(__file__).resolve().parent.parent / "fuzz" / "run.sh"
CMAKE = """#!/bin/bash
echo "$*" >> calls
if [[ -e cannot-build ]]; then echo "error: no such thing" >&2; exit 3; fi
while (($#)); do
  case "$1" in
    -B) mkdir -p "$2"; touch "$2/build.ninja"; shift ;;
    --build)
      mkdir -p "$2/fuzz"
      for source in fuzz/fuzz_*.cc; do
        target=$2/fuzz/$(basename "$source" .cc)
        printf '#!/bin/bash\\necho "$0" >> ran; echo "Done of %s"\\n' "$(cat "$source")" > "$target"
        chmod +x "$target"
      done
      shift ;;
  esac
  shift
done
"""
MAKE_SEEDS = """#!/bin/bash
mkdir -p "$1/large/fuzz_b" && touch "$1/large/fuzz_b/long"
"""


class FuzzRunTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        for name in ("fuzz", "bin", "tests/testdata", "models"):
            (self.root / name).mkdir(parents=True)
        shutil.copy(RUN, self.root / "fuzz/run.sh")
        for name in ("fuzz_a", "fuzz_b", "fuzz_config"):
            (self.root / f"fuzz/{name}.cc").write_text("one")
        cmake = self.root / "bin/cmake"
        cmake.write_text(CMAKE)
        cmake.chmod(0o755)
        make_seeds = self.root / "fuzz/make_seeds.py"
        make_seeds.write_text(MAKE_SEEDS)
        make_seeds.chmod(0o755)

    def run_it(self, *args):
        path = f"{self.root / 'bin'}:{os.environ['PATH']}"
        return subprocess.run([self.root / "fuzz/run.sh", *args], capture_output=True, text=True,
                              timeout=HANGS, env=os.environ | {"PATH": path})

    def lines(self, name):
        file = self.root / name
        return file.read_text().splitlines() if file.exists() else []

    def test_a_folder_that_is_not_there_is_configured_and_built(self):
        done = self.run_it("1")
        self.assertEqual(done.returncode, 0, done.stderr)
        configure, build = self.lines("calls")
        self.assertTrue(configure.startswith("--preset fuzz -B build-fuzz"), configure)
        self.assertRegex(build, r"^--build build-fuzz .*--target fuzzers$")
        self.assertEqual(sorted(self.lines("ran")),  # fuzz_b: of its large input first
                         [f"build-fuzz/fuzz/{name}"
                          for name in ("fuzz_a", "fuzz_b", "fuzz_b", "fuzz_config")])

    def test_a_target_that_is_older_than_its_source_is_never_run(self):
        self.run_it("1", "elsewhere")
        (self.root / "calls").unlink()
        (self.root / "fuzz/fuzz_a.cc").write_text("two")
        done = self.run_it("1", "elsewhere")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(self.lines("calls")), 1)  # what is configured stays as it is
        self.assertIn("fuzz_a: Done of two", done.stdout)
        self.assertIn("fuzz_b: Done of one", done.stdout)

    def test_where_the_build_fails_nothing_is_run(self):
        self.run_it("1")
        (self.root / "ran").unlink()
        (self.root / "cannot-build").touch()
        done = self.run_it("1")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("no such thing", done.stderr)
        self.assertEqual(self.lines("ran"), [])


class TargetsTest(unittest.TestCase):
    def test_no_target_takes_a_bug_for_a_refusal(self):
        sources = [path for path in RUN.parent.iterdir() if path.suffix in (".cc", ".h")]
        self.assertGreater(len(sources), 10)
        for path in sources:  # `refused` of fuzz_input.h, or a `require` of the kind
            for caught, handler in re.findall(r"catch \((.*?)\) \{(.*?)\}", path.read_text(), re.S):
                self.assertEqual(caught, "const Error& error", path)
                self.assertRegex(handler, r"refused\(error\)|require\(error\.kind\(\) ==", path)


if __name__ == "__main__":
    unittest.main()
