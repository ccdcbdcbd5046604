#!/usr/bin/env python3
"""Other projects use the library, as README.md says. Usage: package_test.py BUILD [unittest arguments]

BUILD is a build folder in which everything is built. It is installed, the installed folder is moved, and
the programs of README.md's section "As a library" are built against it and against the sources.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tests/package"
BUILD = None
CACHE = {}  # BUILD's CMakeCache.txt
SCRATCH = None
INSTALLED = None


def run(*command, cwd=ROOT, **environment):
    """The output of a command that must succeed."""
    done = attempt(*command, cwd=cwd, **environment)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def attempt(*command, cwd=ROOT, **environment):
    return subprocess.run([str(word) for word in command], cwd=cwd, text=True, capture_output=True,
                          timeout=1800, env=os.environ | environment)


def readme_blocks(language):
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## As a library\n")[1]
    return re.findall(rf"^```{language}\n(.*?)^```$", section.split("\n## ")[0],
                      re.MULTILINE | re.DOTALL)


def setUpModule():
    global SCRATCH, INSTALLED
    lines = (BUILD / "CMakeCache.txt").read_text(encoding="utf-8").splitlines()
    CACHE.update(re.fullmatch(r"(.+?):\w+=(.*)", line).groups() for line in lines
                 if re.match(r"\w.*:\w+=", line))
    SCRATCH = tempfile.TemporaryDirectory(prefix="quantspec-package-")
    stage = Path(SCRATCH.name, "stage")
    run(CACHE["CMAKE_COMMAND"], "--install", BUILD, "--prefix", "/opt/quantspec", DESTDIR=str(stage))
    INSTALLED = (stage / "opt/quantspec").rename(Path(SCRATCH.name, "moved"))


def tearDownModule():
    SCRATCH.cleanup()


def installed(kind):
    """LIBDIR and so on: a folder of what was installed and moved."""
    return INSTALLED / CACHE[f"CMAKE_INSTALL_{kind}"]


class Project:
    """A folder with another project's files, built as BUILD is."""

    def __init__(self, **files):
        self.folder = Path(tempfile.mkdtemp(dir=SCRATCH.name))
        self.build = self.folder / "build"
        for name, text in files.items():
            (self.folder / name.replace("_", ".", 1)).write_text(text, encoding="utf-8")

    def configure_command(self, *options):
        compiler = CACHE.get("CMAKE_CUDA_COMPILER")
        cuda = [f"-DCUDAToolkit_ROOT={Path(compiler).parent.parent}"] if compiler else []
        return [CACHE["CMAKE_COMMAND"], "-S", self.folder, "-B", self.build,
                "-G", CACHE["CMAKE_GENERATOR"], f"-DCMAKE_CXX_COMPILER={CACHE['CMAKE_CXX_COMPILER']}",
                f"-DCMAKE_BUILD_TYPE={CACHE.get('CMAKE_BUILD_TYPE') or 'Release'}",
                f"-DCMAKE_PREFIX_PATH={INSTALLED};{CACHE.get('CMAKE_PREFIX_PATH', '')}",
                f"-DQUANTSPEC_GEMM={CACHE['QUANTSPEC_GEMM']}", *cuda, *options]

    def make(self, *options):
        run(*self.configure_command(*options))
        run(CACHE["CMAKE_COMMAND"], "--build", self.build, "-j", 2)


class PackageTest(unittest.TestCase):
    def assert_generates(self, program):
        self.assertGreater(len(run(program)), 100)

    # Warnings are errors and C++17 is the default in these projects: for the library neither counts.
    STRICT = ["-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror", "-DCMAKE_CXX_STANDARD=17"]

    def test_found_where_it_was_moved_to(self):
        project = Project(CMakeLists_txt=readme_blocks("cmake")[0], main_cc=readme_blocks("cpp")[0])
        project.make(*self.STRICT)
        self.assert_generates(project.build / "app")

    def test_as_a_folder_of_another_project(self):
        project = Project(CMakeLists_txt=readme_blocks("cmake")[1], main_cc=readme_blocks("cpp")[0])
        (project.folder / "quantspec").symlink_to(ROOT)
        log = project.folder / "compiled.txt"
        launcher = [sys.executable, PACKAGE / "reuse_object.py", BUILD, log]
        flags = f"{CACHE['CMAKE_CXX_FLAGS']} -Wall -Wextra -Werror"
        project.make(*self.STRICT, f"-DCMAKE_CXX_FLAGS={flags}",
                     f"-DCMAKE_CXX_COMPILER_LAUNCHER={';'.join(map(str, launcher))}")
        self.assert_generates(project.build / "app")
        commands = {line.split()[-1]: line for line in log.read_text().splitlines()}
        compiled = {str(project.folder / "main.cc")}
        if (BUILD / "src/libqs_cuda.a").exists():  # it is off there unless asked for
            backend = project.folder / "quantspec/src/backend"  # this library is compiled with it
            compiled.update({str(backend / "registry.cc"), str(backend / "round_ops.cc")})
        self.assertEqual(set(commands), compiled)
        self.assertEqual(set(re.findall(r"-D\w+|-I\S+", commands[str(project.folder / "main.cc")])),
                         {"-DFMT_SHARED", "-DNDEBUG"})
        run(CACHE["CMAKE_COMMAND"], "--install", project.build, "--prefix",
            project.folder / "installed")
        self.assertFalse((project.folder / "installed").exists())

    def test_by_pkg_config(self):
        for how in ["pkg-config", "pkg-config --static"]:
            project = Project(main_cc=readme_blocks("cpp")[0])
            (command,) = readme_blocks("sh")
            command = re.sub(r"^g\+\+", CACHE["CMAKE_CXX_COMPILER"], command)
            run("bash", "-ec", command.replace("pkg-config", how), cwd=project.folder,
                PKG_CONFIG_PATH=str(installed("LIBDIR") / "pkgconfig"))
            self.assert_generates(project.folder / "app")

    def test_leaves_another_project_alone(self):
        project = Project(CMakeLists_txt=(PACKAGE / "left_alone/CMakeLists.txt").read_text())
        (project.folder / "quantspec").symlink_to(ROOT)
        run(*project.configure_command())

    def test_its_rules_hold_whatever_the_flags_are(self):
        project = Project(CMakeLists_txt=readme_blocks("cmake")[1], main_cc="")
        (project.folder / "quantspec").symlink_to(ROOT)
        flags = "-ffast-math -DNDEBUG -ffp-contract=fast -Wsign-conversion -Werror"
        run(*project.configure_command(f"-DCMAKE_CXX_FLAGS={flags}",
                                       "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"))
        commands = (project.build / "compile_commands.json").read_text()
        (command,) = re.findall(r'"command": "(.*/src/quant/quant.cc)"', commands)
        self.assertEqual(re.findall(r"-ffp-contract=\w+", command)[-1], "-ffp-contract=off")
        macros = run("bash", "-ec", re.sub(" -o [^ ]+", " -E -dM", command), cwd=project.build)
        self.assertNotRegex(macros, r"#define (__FAST_MATH__|NDEBUG)\b")
        self.assertRegex(macros, r"#define __STRICT_ANSI__\b")
        run("bash", "-ec", f"{command} -fsyntax-only", cwd=project.build)

    def test_headers_beside_others_of_their_names(self):
        decoys = Path(SCRATCH.name, "decoys")
        headers = installed("INCLUDEDIR") / "quantspec"
        for header in headers.rglob("*.h"):
            decoy = decoys / header.relative_to(headers)
            decoy.parent.mkdir(parents=True, exist_ok=True)
            decoy.write_text(f"#error not {header.name} of quantspec\n")
        self.assertTrue((decoys / "base/token.h").exists())
        program = Path(SCRATCH.name, "strict")
        run(CACHE["CMAKE_CXX_COMPILER"], "-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow",
            "-Wold-style-cast", "-Woverloaded-virtual", "-Werror", f"-I{decoys}",
            f"-I{installed('INCLUDEDIR')}", PACKAGE / "strict.cc", "-o", program)
        self.assertEqual(run(program), run(installed("BINDIR") / "quantspec", "--version"))

    def test_the_program_and_its_model_are_installed(self):
        model = installed("DATAROOTDIR") / "quantspec/models/pg-24m"
        self.assertIn("layers", run(installed("BINDIR") / "quantspec", "info", "-m", model))

    def test_a_file_that_says_where_it_lies(self):
        for path in INSTALLED.rglob("*"):
            if path.suffix in {".cmake", ".pc", ".h"}:
                text = path.read_text(encoding="utf-8")
                for folder in [str(ROOT), str(BUILD), "/opt/quantspec", SCRATCH.name]:
                    self.assertNotIn(folder, text, path)

    def test_another_version_is_refused(self):
        for version, fits in {"0.1": True, "0.1.0": True, "0.2": False, "1.0": False}.items():
            project = Project(CMakeLists_txt=readme_blocks("cmake")[0].replace("0.1", version),
                              main_cc="")
            done = attempt(*project.configure_command())
            self.assertEqual(done.returncode == 0, fits, done.stderr)

    def test_a_missing_package_is_named(self):
        text = readme_blocks("cmake")[0].replace("REQUIRED", "")
        project = Project(CMakeLists_txt=text, main_cc="")
        done = attempt(*project.configure_command(), PKG_CONFIG_LIBDIR="/nowhere")
        self.assertIn("quantspec needs sentencepiece", done.stderr)


if __name__ == "__main__":
    BUILD = Path(sys.argv.pop(1)).resolve()
    unittest.main()
