#!/usr/bin/env python3
"""End-to-end tests of conversations. Usage: chat_cli_test.py BINARY [unittest arguments]

Runs the binary on the bundled model, with a chat template and without. Standard library only.
"""

import json
import os
import pty
import select
import signal
import subprocess
import time

import cli_support
from cli_support import HANGS, CliTest, Folder, environment, generate, quantspec

TEMPLATE = ("{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
            "{% if add_generation_prompt %}[assistant]{% endif %}")
GREEDY = ["-c", "1024", "-t", "1", "--temp", "0", "-n", "12"]


def chat(*args, stdin):
    return quantspec("chat", *GREEDY, *args, stdin=stdin)


class WithTemplate(Folder):
    def __enter__(self):
        folder = super().__enter__()
        (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
        return folder


class Chat(CliTest):
    def test_a_base_model_says_so_and_continues(self):
        done = chat(stdin="It was a dark\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("no chat template", done.stderr.decode())
        expected = generate("--temp", "0", "-n", "12", "-p", "It was a dark").stdout
        self.assertEqual(done.stdout.strip(), expected.strip())

    def test_answers_are_those_of_the_template_over_all_that_was_said(self):
        with WithTemplate() as model:
            saved = model.parent / "talk.json"
            done = chat("-m", model, "--system", "Be brief.",
                        stdin=f'hello\nand\\\nnow\n/stats\n/save {saved}\n/exit\nnever\n')
            self.assertEqual(done.returncode, 0, done.stderr)
            messages = json.loads(saved.read_text())["messages"]
            self.assertEqual([m["role"] for m in messages],
                             ["system", "user", "assistant", "user", "assistant"])
            self.assertEqual([m["content"] for m in messages[:2]], ["Be brief.", "hello"])
            self.assertEqual(messages[3]["content"], "and\nnow")
            self.assertIn("tokens of answer", done.stderr.decode())
            rest = generate("-m", model, "--chat", "--temp", "0", "-n", "12", "--system", "Be brief.",
                            "-p", "hello")
            self.assertEqual(rest.stdout.decode().strip(), messages[2]["content"].strip())
            # It goes on where it was.
            again = chat("-m", model, "--load", saved, stdin="/reset\nhello\n")
            self.assertEqual(again.stdout.decode().strip(), messages[2]["content"].strip())
            # The second answer was to all that was said before it.
            saved.write_text(json.dumps({"messages": messages[:3]}), encoding="utf-8")
            again = chat("-m", model, "--load", saved, stdin="and\\\nnow\n")
            self.assertEqual(again.stdout.decode().strip(), messages[4]["content"].strip())

    def test_lines_between_quotes_are_one_text(self):
        with WithTemplate() as model:
            saved = model.parent / "talk.json"
            done = chat("-m", model, stdin=f'"""\none\n\ntwo\n"""\n/save {saved}\n')
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(saved.read_text())["messages"][0]["content"], "one\n\ntwo")
            done = chat("-m", model, stdin=f'"""\n/etc\n"""\n/save {saved}\n')
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(saved.read_text())["messages"][0]["content"], "/etc")

    def test_what_cannot_be_is_said(self):
        self.check_error(generate("--chat", "-p", "hello"), 1, "no chat template")
        self.check_error(generate("--system", "hello", "-p", "hello"), 2, "--system", "--chat")
        self.check_error(chat("--system", "a", "--load", "b", stdin=""), 2, "--system", "--load")
        self.check_error(chat("-q", "--plan", "quantspec", "--draft-budget", "512", stdin="a\n"), 2,
                         "--draft-budget")
        with WithTemplate() as model:
            done = subprocess.run([cli_support.binary, "chat", "-q", "-m", model, *GREEDY], input=b"a\xff\n",
                                  capture_output=True, timeout=HANGS, env=environment())
            self.check_error(done, 1, "standard input", "UTF-8")
            done = chat("-m", model, stdin="/nothing\n/load /nowhere\n/save\n")
            self.assertEqual(done.returncode, 0, done.stderr)
            for words in ("no command /nothing", "/nowhere", "/save needs a file"):
                self.assertIn(words, done.stderr.decode())
            (model / "chat_template.jinja").write_text("{% if %}", encoding="utf-8")
            self.check_error(generate("-m", model, "-q", "--chat", "-p", "hello"), 1, "chat template")
            (model / "chat_template.jinja").write_text("{{ raise_exception('never') }}",
                                                       encoding="utf-8")
            self.check_error(generate("-m", model, "-q", "--chat", "-p", "hello"), 1, "never")

    def test_lines_of_a_terminal_are_edited(self):
        with WithTemplate() as model:
            saved = model.parent / "talk.json"
            terminal, inside = pty.openpty()
            program = subprocess.Popen([cli_support.binary, "chat", "-m", model, *GREEDY], stdin=inside, stdout=inside,
                                       stderr=inside, env=environment() | {"TERM": "xterm"}, start_new_session=True)
            os.close(inside)
            up, left, delete = b"\x1b[A", b"\x1b[D", b"\x7f"
            typed = [b"helo" + left + b"l", b"sch\xc3\xb6n" + delete + delete + b"au", up + up, up + left + b"-",
                     f"/save {saved}".encode(), b"/exit"]
            seen, end = b"", time.monotonic() + HANGS
            while program.poll() is None:
                self.assertLess(time.monotonic(), end, seen)
                if seen.endswith(b"> ") and typed:
                    os.write(terminal, typed.pop(0) + b"\n")
                    seen = b""
                if select.select([terminal], [], [], 0.1)[0]:
                    try:
                        seen += os.read(terminal, 4096)
                    except OSError:  # the other end is closed
                        break
            self.assertEqual(program.wait(HANGS), 0, seen)
            os.close(terminal)
            said = [m["content"] for m in json.loads(saved.read_text())["messages"] if m["role"] == "user"]
            self.assertEqual(said, ["hello", "schau", "hello", "hell-o"])

    def test_ctrl_c_stops_an_answer_and_not_the_program(self):
        with WithTemplate() as model:
            terminal, inside = pty.openpty()
            program = subprocess.Popen(
                [cli_support.binary, "chat", "-m", model, "-c", "8192", "-t", "1", "--ignore-eos"],
                stdin=inside, stdout=inside, stderr=inside, env=environment(), start_new_session=True)
            os.close(inside)
            seen = b""

            def wait_for(words, beyond=0):
                nonlocal seen
                end = time.monotonic() + HANGS
                while words not in seen or len(seen) < beyond:
                    self.assertLess(time.monotonic(), end, seen)
                    if select.select([terminal], [], [], 1)[0]:
                        seen += os.read(terminal, 4096)

            try:
                wait_for(b"> ")
                os.write(terminal, b"hello\n")
                wait_for(b"> ", len(seen) + 100)
                program.send_signal(signal.SIGINT)
                wait_for(b"(stopped)")
                program.send_signal(signal.SIGINT)
                wait_for(b"(Ctrl-D ends)")
                os.write(terminal, b"/exit\n")
                self.assertEqual(program.wait(HANGS), 0)
            finally:
                program.kill()
                program.wait()
                os.close(terminal)


if __name__ == "__main__":
    cli_support.main(__doc__)
