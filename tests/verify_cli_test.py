#!/usr/bin/env python3
"""End-to-end tests of receipts. Usage: verify_cli_test.py BINARY [unittest arguments]

Has a server write answers, and checks them and forgeries of them. Standard library only.
"""

import copy
import json
import subprocess
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import cli_support
from cli_support import CliTest, environment, quantspec

OPTIONS = ["-c", "1024", "-t", "1"]


class Verify(CliTest):
    @classmethod
    def setUpClass(cls):
        cls.server = subprocess.Popen([cli_support.binary, "serve", *OPTIONS, "--port", "0"], stderr=subprocess.PIPE,
                                      stdout=subprocess.PIPE, env=environment())
        line = cls.server.stdout.readline().decode()
        cls.url = "http://" + line.split(" at http://")[1].split("/")[0].strip()
        cls.replies = [
            cls.ask("completions", {"prompt": "It was a dark", "max_tokens": 24, "temperature": 0}),
            cls.ask("completions", {"prompt": "The captain", "max_tokens": 24, "temperature": 0.9, "seed": 3,
                                    "n": 2, "frequency_penalty": 0.4, "logit_bias": {"300": -100}}),
            cls.ask("completions", {"prompt": "It was a dark night, and", "max_tokens": 100, "temperature": 0,
                                    "stop": [" the"]}),
        ]

    @classmethod
    def tearDownClass(cls):
        cls.server.terminate()
        cls.server.communicate()

    @classmethod
    def ask(cls, path, body):
        request = urllib.request.Request(f"{cls.url}/v1/{path}", json.dumps({"receipt": True, **body}).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=cli_support.HANGS) as reply:
            text = reply.read().decode()
        if not body.get("stream"):
            return json.loads(text)
        return json.loads([line[6:] for line in text.splitlines() if line.startswith("data: {")][-1])

    def verify(self, *replies, json_too=False):
        with tempfile.TemporaryDirectory() as folder:
            files = []
            for i, reply in enumerate(replies):
                files.append(Path(folder) / f"{i}.json")
                files[-1].write_text(json.dumps(reply))
            done = quantspec("verify", "-t", "1", *(["--json"] if json_too else []), *files)
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    def test_answers_of_the_server_pass(self):
        code, out, err = self.verify(*self.replies)
        self.assertEqual(code, 0, err)
        self.assertEqual([line.split(": ")[1] for line in out.splitlines()], ["ok"] * 4)
        self.assertIn("4 of 4 answers are the model's own", err)

    def test_a_stream_has_them_in_its_last_event(self):
        last = self.ask("completions", {"prompt": "It was a dark", "max_tokens": 24, "temperature": 0, "stream": True})
        self.assertEqual(last["receipts"][0]["tokens"], self.replies[0]["receipts"][0]["tokens"])
        done = quantspec("verify", "-t", "1", "-", stdin=json.dumps(last["receipts"]))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("standard input: ok", done.stdout.decode())

    def test_a_forged_token_is_named(self):
        forged = copy.deepcopy(self.replies[1])
        tokens = forged["receipts"][1]["tokens"]
        tokens[7] = (tokens[7] + 1) % 8000
        code, out, err = self.verify(self.replies[0], forged)
        self.assertEqual(code, 1)
        self.assertIn(f"1.json, answer 1: token 7 is {tokens[7]} ", out)
        self.assertIn("and the model writes", out)
        self.assertIn("2 of 3", err)
        code, out, _ = self.verify(self.replies[0], forged, json_too=True)
        self.assertEqual(code, 1)
        report = json.loads(out)
        self.assertEqual([answer["differs"] for answer in report["answers"]], [None, None, 7])
        self.assertEqual(report["wrong"], 1)

    def test_a_forged_text_or_end_is_named(self):
        text = copy.deepcopy(self.replies[0])
        text["choices"][0]["text"] += "!"
        end = copy.deepcopy(self.replies[0])
        end["receipts"][0]["tokens"].pop()
        code, out, _ = self.verify(text, end)
        self.assertEqual(code, 1)
        self.assertIn("0.json: its text is not that of its tokens", out)
        self.assertIn("1.json: the model goes on after its 23 tokens with", out)

    def test_what_is_none_is_said(self):
        for content, says in (({"choices": []}, "has no receipts"), ([{}], "a receipt has version"),
                              ({"receipts": []}, "has no receipts")):
            code, _, err = self.verify(content)
            self.assertEqual(code, 1)
            self.assertIn(says, err)
        other = copy.deepcopy(self.replies[0])
        other["receipts"][0]["system_fingerprint"] = "b1"
        code, _, err = self.verify(other)
        self.assertEqual(code, 1)
        self.assertIn("another engine", err)
        self.assertEqual(quantspec("verify").returncode, 2)
        self.assertIn("nowhere.json", quantspec("verify", "nowhere.json").stderr.decode())

    def test_a_random_answer_has_none(self):
        for body, says in (({"prompt": "x", "temperature": 0.5}, "give a seed"),
                           ({"prompt": "x", "temperature": 0, "echo": True}, "without echo")):
            with self.assertRaises(urllib.error.HTTPError) as refused:
                self.ask("completions", body)
            self.assertEqual(refused.exception.code, 400)
            self.assertIn(says, refused.exception.read().decode())


if __name__ == "__main__":
    cli_support.main(__doc__)
