#!/usr/bin/env python3
"""Tests of tools/make_copy_sets.py, and that the program takes what it makes of the bundled story.
Usage: make_copy_sets_cli_test.py BINARY [unittest arguments]

Standard library only.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
import cli_support
from cli_support import ROOT, quantspec

SCRIPT = ROOT / "tools" / "make_copy_sets.py"
sys.path.insert(0, str(SCRIPT.parent))
import make_copy_sets  # noqa: E402

WORDS, RECORDS = 512, 6
LINE = 100  # words: of code, whose marks are words


def make(*args):
    return subprocess.run([sys.executable, str(SCRIPT), *map(str, args)], capture_output=True, text=True,
                          env={**os.environ, "COLUMNS": "80"})


def made(folder, *args):
    done = make("-o", folder, "--words", WORDS, "--records", RECORDS, *args)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return done.stdout


def flat(text):
    return " ".join(text.split())


def records_of(folder, kind):
    lines = (Path(folder) / f"{kind}.jsonl").read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines if line]


class MakeCopySetsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = Path(temporary.name) / "new" / "sets"
        cls.said = made(cls.folder)
        cls.sets = {kind: records_of(cls.folder, kind) for kind in make_copy_sets.KINDS}

    def parts(self, kind):
        """Of each record: it, the order, and the whole answer."""
        for record in self.sets[kind]:
            _, order, begun = record["task"].split("\n\n", 2)
            yield record, order, begun + record["answer"]

    def check_back(self, record, copied):
        """It stands as far back as the record says, but for the line that is cut at the end."""
        text, copied = record["text"], copied.rstrip()
        self.assertIn(copied, text)
        words = make_copy_sets.count_words(text[text.index(copied):])
        self.assertLessEqual(abs(words - record["back"]), LINE)

    def test_records(self):
        for kind, records in self.sets.items():
            self.assertEqual(len(records), RECORDS)
            self.assertIn(f"{kind}.jsonl: {RECORDS} records, ", self.said)
            for record in records:
                self.assertEqual([type(record[field]) for field in ("text", "task", "answer", "from", "back")],
                                 [str, str, str, str, int])
                self.assertLessEqual(abs(make_copy_sets.count_words(record["text"]) - WORDS), LINE)
                self.assertRegex(record["task"], r"(?s)\A\n\n\S.*\S\Z")
                self.assertRegex(record["answer"], r"\A [A-Za-z]")
            backs = {record["back"] for record in records}
            self.assertGreater(len(backs), RECORDS // 2)

    def test_quotes_are_passages(self):
        for record, _, answer in self.parts("quotes"):
            self.check_back(record, answer)

    def test_tables_have_a_row_more(self):
        for record, order, answer in self.parts("tables"):
            self.assertIn("one row more", order)
            row, table = answer.split("\n\nThe table:\n\n")
            self.assertTrue(table.endswith(row + "\n"))
            self.check_back(record, table.removesuffix(row + "\n"))

    def test_functions_have_other_names(self):
        for record, order, answer in self.parts("code"):
            renamed = re.findall(r"(\w+) is now (\w+)", order)
            self.assertTrue(renamed)
            for old, new in renamed:
                self.assertNotIn(new, record["text"])
                answer = re.sub(rf"\b{new}\b", old, answer)
            self.check_back(record, answer)
            self.assertIn(answer, (ROOT / record["from"]).read_text(encoding="utf-8"))

    def test_edits_repeat_the_passage_with_a_change(self):
        for record, order, answer in self.parts("edits"):
            changes = re.findall(r'Change "(\w+)" to "(\w+)":', record["text"] + order)
            passage = re.search(r"The passage:\n\n(.*)", record["text"]).group(1)
            self.check_back(record, passage)
            self.assertEqual(flat(record["text"]).count(passage), 1)
            for old, new in changes[:-1]:
                passage = re.sub(rf"\b{old}\b", new, passage)
                self.assertIn(f'"{new}":\n\n{passage}', record["text"])
            old, new = changes[-1]
            self.assertEqual(re.sub(rf"\b{old}\b", new, passage), answer)

    def test_a_seed_repeats_them(self):
        with tempfile.TemporaryDirectory() as folder:
            for seed, same in ((1, True), (2, False)):
                made(folder, "--seed", seed)
                for kind in self.sets:
                    equal = (Path(folder) / f"{kind}.jsonl").read_bytes() == \
                            (self.folder / f"{kind}.jsonl").read_bytes()
                    self.assertEqual(equal, same, kind)

    def test_back_and_books_are_what_was_asked_for(self):
        with tempfile.TemporaryDirectory() as folder:
            books = Path(folder) / "books"
            books.mkdir()
            story = (ROOT / "prompts" / "the-lighthouse-clock.txt").read_text(encoding="utf-8")
            (books / "b.txt").write_text(
                f"Legal.\n*** START OF THE PROJECT GUTENBERG EBOOK X ***\n{story}\n"
                "*** END OF THE PROJECT GUTENBERG EBOOK X ***\nLegal.", encoding="utf-8")
            made(folder, "--books", books, "--back", "90")
            for kind in self.sets:
                for record in records_of(folder, kind):
                    self.assertEqual(record["back"], WORDS * 90 // 100)
                    self.assertNotIn("Legal.", record["text"])

    def test_errors_are_one_line(self):
        with tempfile.TemporaryDirectory() as folder:
            for args, message in ((("--words", 9000), "no place found for a record of --words 9000"),
                                  (("--books", folder), "no .txt file in this folder")):
                done = make("-o", folder, *args)
                self.assertEqual((done.returncode, done.stdout), (1, ""))
                self.assertIn(message, done.stderr)
                self.assertEqual(done.stderr.count("\n"), 1)
            self.assertEqual(list(Path(folder).iterdir()), [])
        for args in (("--words", 10), ("--records", 0), ("--back", 5)):
            self.assertEqual(make("-o", "x", *args).returncode, 2)

    def test_help_fits_a_terminal(self):
        lines = make("--help").stdout.splitlines()
        self.assertGreater(len(lines), 20)
        self.assertEqual([line for line in lines if len(line) > 80], [])

    def test_bench_takes_every_set(self):
        for kind in self.sets:
            done = quantspec("bench", "-d", f"tasks:{self.folder / kind}.jsonl", "-t", "1", "--ctx-size", "512",
                             "--prompts", "2", "-n", "12", "--repeat", "1", "--warm-up", "4", "--temp", "0",
                             "--plan", "auto", "-o", "json")
            self.assertEqual((done.returncode, done.stderr), (0, b""))
            self.assertIn("auto", [row["plan"] for row in json.loads(done.stdout)["rows"]])

    def test_eval_takes_answers_for_the_truth(self):
        done = quantspec("eval", "fidelity", "-d", f"tasks:{self.folder}/quotes.jsonl", "-t", "1", "-c", "512",
                         "--tokens", "16", "--prompts", "2", "--plan", "quantspec", "-o", "json")
        self.assertEqual((done.returncode, done.stderr), (0, b""))


if __name__ == "__main__":
    cli_support.main(__doc__)
