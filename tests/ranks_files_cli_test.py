#!/usr/bin/env python3
"""What ranks that share contexts keep in files. Usage: ranks_files_cli_test.py BINARY [unittest
arguments]. Standard library only."""

import json
import tempfile
import unittest
from pathlib import Path

import cli_support
from cli_support import MODEL, PROMPT, CliTest, quantspec
from ranks_cli_test import make_model, text_of
from serve_cli_test import Server

ONE, TWO, SHARED, GROUPS, ALL = (("--ranks", str(ranks), "--context-ranks", str(sharing))
                                 for ranks, sharing in ((1, 1), (2, 1), (2, 2), (4, 2), (4, 4)))
SHORT = " ".join(f"The {i} of {i * i % 31} nights was dark." for i in range(60))
# Some 5000 tokens: several runs of pages, after each of which it is another rank's turn.
LONG = (cli_support.ROOT / "prompts/the-lighthouse-clock.txt").read_text()[:20000]


class Files(CliTest):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.model = str(make_model(Path(cls.folder.name) / "model", "qwen3"))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def play(self, model, text, ranks):
        """Turns by these ranks: what each wrote, and the file then."""
        file = Path(self.folder.name) / "session"
        file.unlink(missing_ok=True)
        turns = []
        for options, prompt in zip(ranks, (text, " But nobody", " The captain")):
            written = text_of(quantspec("generate", "-m", model, "-n", "10", "--seed", "3", "--ignore-eos", "-c",
                                        "2048" if text == SHORT else "8192", "--page-size", "32", "-t", "1", "-p", prompt,
                                        "--session", str(file), *options))
            turns.append((written, file.read_bytes()))
        return turns

    def test_a_session_is_that_of_one_rank(self):
        """To the byte: whoever goes on with it."""
        for model, text, turns in ((self.model, SHORT, ((SHARED, ONE, GROUPS), (GROUPS, SHARED, TWO))),
                                   (str(MODEL), LONG, ((SHARED, ONE, ALL), (ALL, SHARED, ONE)))):
            alone = self.play(model, text, (ONE, ONE, ONE))
            self.assertEqual(len({text for text, _ in alone}), 3)
            for ranks in turns:
                for (text_of_turn, kept), (expected, of_one) in zip(self.play(model, text, ranks), alone):
                    self.assertEqual(text_of_turn, expected, ranks)
                    self.assertTrue(kept == of_one, ranks)

    def test_servers_find_what_others_have_read(self):
        body = {"prompt": [5 + i * i % 251 for i in range(1210)], "max_tokens": 12, "temperature": 0, "ignore_eos": True}
        for first, second in ((GROUPS, ONE), (ONE, SHARED)):
            answers = []
            with tempfile.TemporaryDirectory() as folder:
                for ranks in (first, second):
                    with Server("-m", self.model, "-c", "2048", "--page-size", "32", *ranks, "--cache-disk",
                                folder + "/cache") as server:
                        status, answer = server.post("/v1/completions", **body)
                        self.assertEqual(status, 200, answer)
                        answers.append(answer)
            self.assertEqual([answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers], [0, 1200])
            self.assertEqual(len({answer["choices"][0]["text"] for answer in answers}), 1)

    def test_drafts_of_a_store(self):
        """Ranks read their rows and columns of it, and accept what one does."""
        for model in (self.model, str(MODEL)):
            store = str(Path(self.folder.name) / "store.qsd")
            text_of(quantspec("prepare", "-m", model, "--method", "rtn", "-o", store, "-t", "1"))
            reports = [json.loads(text_of(quantspec(
                "generate", "--json", "-m", model, "-c", "1024", "-t", "1", "-p", PROMPT, "-n", "40", "--seed", "3",
                "--ignore-eos", "--draft-len", "3", "--plan", "quantspec", "--draft-store", store, *ranks)))
                for ranks in (ONE, SHARED, *((GROUPS,) if model == self.model else (ALL,)))]
            seen = {(report["text"], report["speculation"]["draft_n_accepted"]) for report in reports}
            self.assertEqual(len(seen), 1, seen)
            self.assertGreater(reports[0]["speculation"]["draft_n_accepted"], 0)


if __name__ == "__main__":
    cli_support.main(__doc__)
