#!/usr/bin/env python3
"""Tests of cmake/commit.cmake: which commit a program says that it was built from, and that a build
does nothing for it while that is the same. Standard library, git and CMake only.
"""

import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

HANGS = 300  # seconds: what takes longer does not end, however busy the machine is
SCRIPT = Path(__file__).resolve().parent.parent / "cmake" / "commit.cmake"
PROJECT = """cmake_minimum_required(VERSION 3.25)
project(one CXX)
include(cmake/commit.cmake)
add_executable(program src/main.cc)
quantspec_commit(program ${CMAKE_CURRENT_BINARY_DIR}/commit.cc)
"""
MAIN = """#include <cstdio>
namespace quantspec::cli { extern const char* const kCommit; }
int main() { std::puts(quantspec::cli::kCommit); }
"""


def run(*command, **options):
    # Of nobody's configuration, and of no repository that a hook is run for.
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    env |= {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS, env=env,
                          **options)
    if done.returncode != 0:
        raise AssertionError(f"{command}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def git(folder, *arguments):
    return run("git", "-C", folder, "-c", "user.name=n", "-c", "user.email=e", *arguments)


@unittest.skipUnless(shutil.which("git"), "there is no git")
class CommitTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.tree = self.folder / "tree"
        for name, text in (("CMakeLists.txt", PROJECT), ("src/main.cc", MAIN), ("docs/a.md", "a"),
                           ("cmake/commit.cmake", SCRIPT.read_text())):
            (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
            (self.tree / name).write_text(text)

    def make_repository(self, root=None):
        root = root or self.tree
        git(root, "init", "-q")
        git(root, "add", "-A")
        git(root, "commit", "-qm", "first")
        return git(root, "rev-parse", "HEAD")[:12]

    def commit_of(self, tree=None):
        file = self.folder / "commit.cc"
        run("cmake", f"-DSOURCE={tree or self.tree}", f"-DFILE={file}", "-P", SCRIPT)
        return re.search('kCommit = "(.*)";', file.read_text())[1]

    def test_without_a_repository_it_is_unknown(self):
        self.assertEqual(self.commit_of(), "unknown")
        git(self.tree, "init", "-q")  # of no commit yet
        self.assertEqual(self.commit_of(), "unknown")

    def test_a_copy_in_anothers_repository_has_not_its_commit(self):
        self.make_repository(self.folder)
        self.assertEqual(self.commit_of(), "unknown")

    def test_changes_in_what_is_built_make_it_dirty(self):
        head = self.make_repository()
        self.assertEqual(self.commit_of(), head)
        (self.tree / "docs/a.md").write_text("b")
        self.assertEqual(self.commit_of(), head)
        (self.tree / "src/new.cc").write_text("")  # sources are found by name
        self.assertEqual(self.commit_of(), f"{head}-dirty")
        (self.tree / "src/new.cc").unlink()
        (self.tree / "src/main.cc").write_text(MAIN + "\n")
        self.assertEqual(self.commit_of(), f"{head}-dirty")

    def test_a_worktree_has_its_own(self):
        first = self.make_repository()
        other = self.folder / "other"
        git(self.tree, "worktree", "add", "-q", "-b", "side", other)
        git(other, "commit", "-qm", "second", "--allow-empty")
        self.assertEqual(self.commit_of(), first)
        self.assertEqual(self.commit_of(other), git(other, "rev-parse", "HEAD")[:12])

    def test_a_build_makes_it_anew_only_when_it_changed(self):
        head = self.make_repository()
        build = self.folder / "build"
        program = build / "program"
        run("cmake", "-S", self.tree, "-B", build, "-G", "Ninja")
        run("cmake", "--build", build)
        self.assertEqual(run(program), head)
        built = program.stat().st_mtime_ns
        run("cmake", "--build", build)
        self.assertEqual(program.stat().st_mtime_ns, built)
        git(self.tree, "commit", "-qm", "second", "--allow-empty")
        run("cmake", "--build", build)  # which configures nothing
        self.assertEqual(run(program), git(self.tree, "rev-parse", "HEAD")[:12])
        self.assertNotEqual(run(program), head)

    def test_as_a_part_of_another_project_it_is_still_its_own(self):
        head = self.make_repository()
        outer = self.folder / "outer"
        outer.mkdir()
        (outer / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\nproject(outer CXX)\n"
            f"add_subdirectory({self.tree} one)\n")
        self.make_repository(outer)
        run("cmake", "-S", outer, "-B", self.folder / "build", "-G", "Ninja")
        run("cmake", "--build", self.folder / "build")
        self.assertEqual(run(self.folder / "build/one/program"), head)


if __name__ == "__main__":
    unittest.main()
