#!/usr/bin/env python3
"""End-to-end tests of --session. Usage: session_cli_test.py BINARY [unittest arguments]

Runs the binary on the bundled model, several times over one file. Standard library only.
"""

import json
import random
import subprocess
import tempfile
import time
from pathlib import Path

import cli_support
from cli_support import CliTest, Folder, environment, generate, generate_json, quantspec, replace

TEMPLATE = ("{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
            "{% if add_generation_prompt %}[assistant]{% endif %}")
GREEDY = ["--temp", "0", "-n", "12", "--ignore-eos"]
TURNS = ["It was a dark and stormy night, and the old lighthouse", " The captain said that", " But nobody"]


class SessionTest(CliTest):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name)
        self.file = self.folder / "session"

    def tearDown(self):
        self.temporary.cleanup()

    def play(self, turns=TURNS, *args):
        return [generate_json(*GREEDY, "-p", turn, "--session", self.file, *args) for turn in turns]

    def refused(self, *args, says):
        done = generate(*GREEDY, "-p", "Hello", *args)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn(says, done.stderr.decode())
        self.assertEqual(done.stdout, b"")


class Text(SessionTest):
    def test_runs_go_on_where_the_last_one_ended(self):
        runs = self.play()
        ids = []
        for turn, run in zip(TURNS, runs):
            bos = ["--no-bos"] if ids else []
            new = json.loads(quantspec("tokenize", "--json", *bos, "-p", turn).stdout)["tokens"]
            self.assertEqual(run["prompt_tokens"], len(ids) + len(new))
            self.assertEqual(run["cached_tokens"], max(0, len(ids) - 12) // 16 * 16 if ids else 0)
            ids += new + run["tokens"]

    def test_a_seed_repeats_it(self):
        sampled = ["-n", "12", "--seed", "7", "--ignore-eos"]
        first = [generate_json(*sampled, "-p", turn, "--session", self.file)["tokens"] for turn in TURNS]
        self.file.unlink()
        again = [generate_json(*sampled, "-p", turn, "--session", self.file)["tokens"] for turn in TURNS]
        self.assertEqual(first, again)

    def test_what_goes_wrong_is_said_and_the_file_stays(self):
        self.play(TURNS[:1])
        good = self.file.read_bytes()
        self.file.write_bytes(good[:200] + bytes([good[200] ^ 1]) + good[201:])
        self.refused("--session", self.file, says="is damaged")
        self.file.write_bytes(good)
        self.refused("--session", self.file, "--chat", says="no chat template")
        self.refused("--session", self.file, "--target-weights", "8", says="another engine")
        self.assertEqual(self.file.read_bytes(), good)
        self.refused("--session", self.folder / "no" / "file", says="no/file")
        self.refused("--session", self.folder, says="a folder")
        (self.folder / "text").write_text("Once upon a time there was a text, which is no session at all. " * 4)
        self.refused("--session", self.folder / "text", says="is no session")

    def test_it_is_no_option_beside_some(self):
        for command, others in (("generate", ["--compare", "-p", "x"]), ("chat", ["--load", "x"])):
            done = quantspec(command, "--session", self.file, *others)
            self.assertEqual(done.returncode, 2)
            self.assertIn("exclude each other", done.stderr.decode())

    def test_the_context_is_full_once(self):
        with self.assertRaisesRegex(AssertionError, "--ctx-size"):
            for _ in range(30):
                self.play(["It was a dark and stormy night. " * 8], "-c", "256")
        self.play([" More"], "-c", "1024")  # nothing is lost by it

    def test_killed_runs_leave_the_old_text_or_the_new(self):
        self.play(TURNS[:1])
        before = self.file.read_bytes()
        expected = self.play(TURNS[1:2])[0]["text"]
        after = self.file.read_bytes()
        rng = random.Random(3)
        seen = set()
        command = [cli_support.binary, "generate", "-c", "1024", "-t", "1", *GREEDY, "-p", TURNS[1], "--session",
                   str(self.file)]
        for _ in range(12):
            self.file.write_bytes(before)
            program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                       env=environment())
            program.stdout.read(1)  # it writes
            time.sleep(rng.uniform(0, 0.15))
            program.kill()
            program.communicate()
            now = self.file.read_bytes()
            seen.add("old" if now == before else "new")
            self.assertIn(now, (before, after))
        self.file.write_bytes(before)
        self.assertEqual(self.play(TURNS[1:2])[0]["text"], expected)
        self.assertEqual([path.name for path in self.folder.iterdir()], ["session"], seen)


class Conversations(SessionTest):
    def with_template(self):
        model = Folder()
        path = model.__enter__()
        self.addCleanup(model.__exit__)
        replace(path / "chat_template.jinja", TEMPLATE.encode())
        return path

    def chat(self, model, stdin, *args):
        return quantspec("chat", "-m", model, "-c", "1024", "-t", "1", *GREEDY, "--session", self.file, *args,
                         stdin=stdin)

    def test_chat_and_generate_go_on_with_each_other(self):
        model = self.with_template()
        first = self.chat(model, "hello\n", "--system", "Be brief.")
        self.assertEqual(first.returncode, 0, first.stderr)
        second = generate_json(*GREEDY, "-m", model, "--chat", "-p", "and now", "--session", self.file)
        third = self.chat(model, "what else\n/save {}\n".format(self.folder / "talk"))
        self.assertIn("goes on after 4 messages", third.stderr.decode())
        messages = json.loads((self.folder / "talk").read_text())["messages"]
        self.assertEqual([m["role"] for m in messages], ["system"] + ["user", "assistant"] * 3)
        self.assertEqual(messages[4]["content"], second["text"])
        self.assertGreater(second["cached_tokens"], 0)
        # As in one conversation.
        one = quantspec("chat", "-m", model, "-c", "1024", "-t", "1", *GREEDY, "--system", "Be brief.",
                        stdin="hello\nand now\nwhat else\n/save {}\n".format(self.folder / "one"))
        self.assertEqual(one.returncode, 0, one.stderr)
        self.assertEqual(json.loads((self.folder / "one").read_text())["messages"], messages)

    def test_a_text_is_no_conversation(self):
        self.play(TURNS[:1])
        model = self.with_template()
        done = self.chat(model, "hello\n")
        self.assertEqual(done.returncode, 1)
        self.assertIn("another engine", done.stderr.decode())  # the template is the engine's
        base = quantspec("chat", "-c", "1024", "-t", "1", *GREEDY, "--session", self.file, stdin="x\n")
        self.assertEqual(base.returncode, 1)
        self.assertIn("has a text", base.stderr.decode())

    def test_two_programs_do_not_write_one_session(self):
        model = self.with_template()
        self.chat(model, "hello\n")
        command = [cli_support.binary, "chat", "-m", str(model), "-c", "1024", "-t", "1", *GREEDY, "--session",
                   str(self.file)]
        other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 env=environment())
        while b"goes on after" not in other.stderr.readline():
            self.assertIsNone(other.poll())
        self.chat(model, "and now\n")
        kept = self.file.read_bytes()
        _, complaint = other.communicate(b"what else\n")
        self.assertEqual(other.returncode, 1)
        self.assertIn("another program wrote it", complaint.decode())
        self.assertEqual(self.file.read_bytes(), kept)


if __name__ == "__main__":
    cli_support.main(__doc__)
