#!/usr/bin/env python3
"""Tests of fuzz/make_seeds.py: that its tokenizers reach what they are made for. Each is loaded and
encodes its text, or is refused for its own reason. Standard library only. The argument is the binary.
"""

import subprocess
import tempfile
from pathlib import Path

import cli_support
from cli_support import HANGS, ROOT, CliTest, quantspec

CUT = b"\n=====\n"  # fuzz/fuzz_input.h
TOO_MUCH = "make more than 100 bytes of each byte of a text"
TOO_LONG = "takes too long or too much memory for this text"
NESTED = "more than 64 user-defined pieces, each the beginning of the next"
REFUSED_JSON = {
    "bytes": TOO_MUCH, "bytes-spaces": TOO_MUCH, "replace": TOO_MUCH, "metaspace-spaces": TOO_MUCH,
    "nested": TOO_LONG, "possessive": TOO_LONG, "many-stars": TOO_LONG, "many-splits": TOO_LONG,
    "template": "one more token around a text"}
REFUSED_MODELS = {"loop": "normalization rules"} | {
    f"{model}-{kind}": NESTED for model in ("unigram", "bpe", "word", "char")
    for kind in ("nested", "nested-no-type")}


def files_of(target, seed):
    """The files that the parts of an input stand for."""
    parts = seed.split(CUT, 3)
    names = ["tokenizer_config.json", "added_tokens.json", "text"]
    if target == "fuzz_tokenizer_json":
        return dict(zip(["tokenizer.json"] + names, parts))
    return dict(zip(names, parts[:-1])) | {"tokenizer.model": parts[-1]}


class FuzzSeedsTest(CliTest):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.seeds = Path(folder.name)
        subprocess.run([ROOT / "fuzz/make_seeds.py", cls.seeds], check=True, timeout=HANGS)

    def tokenize(self, target, seed):
        with tempfile.TemporaryDirectory() as folder:
            for name, part in ({"text": b"It's 12"} | files_of(target, seed)).items():
                if part:
                    (Path(folder) / name).write_bytes(part)
            return quantspec("tokenize", "--ids", "-m", folder, "-f", Path(folder) / "text")

    def check_seeds(self, target, refused):
        missed = set(refused)
        for path in sorted(self.seeds.glob(f"*/{target}/*")):
            done = self.tokenize(target, path.read_bytes())
            missed.discard(path.name)
            with self.subTest(path.name):
                if path.name in refused:
                    self.check_error(done, 1, refused[path.name])
                else:
                    self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(missed, set())

    def test_tokenizer_json(self):
        self.check_seeds("fuzz_tokenizer_json", REFUSED_JSON)

    def test_tokenizer_model(self):
        self.check_seeds("fuzz_tokenizer_model", REFUSED_MODELS)


if __name__ == "__main__":
    cli_support.main(__doc__)
