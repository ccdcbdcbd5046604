"""What tests of the command line share: running it on the bundled model, broken copies of that, and
what an error looks like. Standard library only."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HANGS = 300  # seconds: what takes longer does not end, however busy the machine is
binary = None  # its path
ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "models" / "pg-24m"
PROMPT = "It was a dark and stormy night, and the old lighthouse"


def environment(**changes):
    unset = ("NO_COLOR", "QUANTSPEC_MODEL", "RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
    base = {k: v for k, v in os.environ.items() if k not in unset}
    return {**base, **changes}


def quantspec(*args, stdin="", env=None):
    """Runs the binary; standard input is a pipe, never a terminal."""
    return subprocess.run([binary, *args], input=stdin.encode(), capture_output=True, timeout=HANGS,
                          env=env or environment())


def generate(*args, **kwargs):
    # One thread: other tests run beside this one, and threads that wait for each other suffer most.
    context = [] if "-c" in args else ["-c", "1024"]
    return quantspec("generate", *context, "-t", "1", *args, **kwargs)


def generate_json(*args):
    done = generate("--json", *args)
    if done.returncode != 0:
        raise AssertionError(done.stderr.decode())
    return json.loads(done.stdout)


class Folder:
    """A copy of the model folder, to be broken. The weights are a link until they are touched."""

    def __enter__(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.path = Path(self.temporary.name) / "model"
        self.path.mkdir()
        for file in MODEL.iterdir():
            (self.path / file.name).symlink_to(file)
        return self.path

    def __exit__(self, *_):
        self.temporary.cleanup()


def replace(path, content):
    path.unlink(missing_ok=True)
    path.write_bytes(content)


class CliTest(unittest.TestCase):
    def check_error(self, done, code, *words):
        """One clear line (and for usage errors a hint), nothing on standard output."""
        lines = done.stderr.decode().splitlines()
        self.assertEqual(done.returncode, code, lines)
        self.assertEqual(done.stdout, b"")
        self.assertRegex(lines[0], r"^quantspec: error: \S")
        self.assertEqual(len(lines), 2 if code == 2 else 1, lines)
        if code == 2:
            self.assertRegex(lines[1], r"^try quantspec (\w+ )*--help$")
        for word in words:
            self.assertIn(word, lines[0])


def main(doc):
    """Runs the tests of the script that calls it: SCRIPT BINARY [unittest arguments]."""
    global binary
    if len(sys.argv) < 2:
        sys.exit(doc)
    binary = str(Path(sys.argv.pop(1)).resolve())
    unittest.main()
