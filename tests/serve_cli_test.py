#!/usr/bin/env python3
"""End-to-end tests of the server. Usage: serve_cli_test.py BINARY [unittest arguments]

Runs the binary on the bundled model and asks it over HTTP. Standard library only.
"""

import http.client
import json
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path

import cli_support
from cli_support import HANGS, PROMPT, CliTest, Folder, environment, generate, generate_json, quantspec


class Server:
    """One that runs; `with` ends it by SIGTERM, and checks that this is a good end."""

    def __init__(self, *args):
        self.args = args

    def __enter__(self):
        command = [cli_support.binary, "serve", "--port", "0", "-c", "1024", "-t", "1", *self.args]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        env=environment())
        line = self.process.stdout.readline().decode()
        if " at http://" not in line:
            self.process.kill()
            raise AssertionError(line + self.process.stderr.read().decode())
        self.port = int(line.rsplit(":", 1)[1].split("/")[0])
        return self

    def __exit__(self, kind, *_):
        self.process.send_signal(signal.SIGTERM if kind is None else signal.SIGKILL)
        _, errors = self.process.communicate(timeout=HANGS)
        if kind is None and self.process.returncode != 0:
            raise AssertionError(errors.decode())

    def ask(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANGS)
        text = json.dumps(body) if body is not None else None
        given = {"Content-Type": "application/json", **(headers or {})}
        connection.request(method, path, text, given)
        answer = connection.getresponse()
        read = answer.read().decode()
        connection.close()
        return answer.status, read

    def post(self, path, **body):
        status, text = self.ask("POST", path, body)
        return status, json.loads(text)


@unittest.skipUnless(shutil.which("curl"), "no curl here")
class Documentation(CliTest):
    def test_its_commands_work(self):
        text = (cli_support.ROOT / "docs/server.md").read_text()
        lines = re.findall(r"(?:^    .*\n)+", text, re.MULTILINE)
        blocks = ["\n".join(line[4:] for line in block.splitlines()) for block in lines if "    curl " in block]
        self.assertGreater(len(blocks), 3)
        template = "{% for m in messages %}<{{ m.role }}> {{ m.content }}\n{% endfor %}<answer>"
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "template").write_text(template)
            with Server("--chat-template", folder + "/template") as server:
                for block in blocks:
                    script = "\n".join(line for line in block.splitlines() if not line.startswith("answer.json:"))
                    script = re.sub(r"\bcurl\b", "curl -sS --fail-with-body", script)
                    script = script.replace("localhost:8080", f"127.0.0.1:{server.port}")
                    script = re.sub(r"^quantspec verify", cli_support.binary + " verify --chat-template template", script,
                                    flags=re.MULTILINE)
                    done = subprocess.run(["bash", "-euc", script], cwd=folder, capture_output=True, text=True,
                                          timeout=HANGS, check=False, env=environment())
                    self.assertEqual(done.returncode, 0, block + done.stdout + done.stderr)
                    self.assertTrue(done.stdout, block)

    def test_metrics_are_as_prometheus_reads_them(self):
        """What promtool looks at (tools/check_clients.py), where there is none."""
        with Server() as server:
            server.post("/v1/completions", prompt=PROMPT, max_tokens=8)
            _, text = server.ask("GET", "/metrics")
        types, seen, last = {}, set(), None
        for line in text.splitlines():
            if line.startswith("# HELP "):
                last = line.split()[2]
                self.assertNotIn(last, types, line)
            elif line.startswith("# TYPE "):
                _, _, name, kind = line.split()
                self.assertEqual(name, last)
                types[name] = kind
            else:
                sample = re.fullmatch(r'([a-z_:0-9]+)(\{[a-z_]+="[^"\n]*"(?:,[a-z_]+="[^"\n]*")*\})? (\S+)', line)
                self.assertTrue(sample, line)
                name, labels, value = sample.groups()
                float(value)
                self.assertNotIn((name, labels), seen)
                seen.add((name, labels))
                of = re.sub("_(bucket|sum|count)$", "", name) if types.get(last) == "histogram" else name
                self.assertEqual(of, last, line)
                self.assertEqual(types[last] == "counter", name.endswith("_total") or name.endswith("_max"), line)
        self.assertGreater(len(types), 40)


@unittest.skipUnless(shutil.which("readelf"), "no readelf here")
class Hardening(CliTest):
    def test_of_the_program(self):
        def readelf(*args):
            return subprocess.run(["readelf", "-W", *args, cli_support.binary], capture_output=True, text=True,
                                  check=True).stdout

        self.assertRegex(readelf("-h"), r"Type: +DYN")  # it lies at another address each time
        self.assertIn("GNU_RELRO", readelf("-l"))
        self.assertRegex(readelf("-l"), r"GNU_STACK .* RW ")  # and no E
        self.assertRegex(readelf("-d"), r"BIND_NOW|Flags:.*NOW")
        self.assertIn("__stack_chk_fail", readelf("--dyn-syms"))


class Serve(CliTest):
    def test_a_template_of_ones_own(self):
        messages = [{"role": "user", "content": "Who goes there?"}]
        with tempfile.TemporaryDirectory() as folder:
            template = Path(folder) / "template.jinja"
            template.write_text("{% for m in messages %}<{{ m.role }}> {{ m.content }}\n{% endfor %}<answer>")
            with Server("--chat-template", str(template)) as server:
                _, reply = server.post("/apply-template", messages=messages)
                self.assertEqual(reply["prompt"], "<user> Who goes there?\n<answer>")
                status, reply = server.post("/v1/chat/completions", messages=messages, max_tokens=4, temperature=0)
                self.assertEqual(status, 200, reply)
            said = generate_json("--chat", "--chat-template", template, "-p", "Who goes there?", "-n", "4",
                                 "--temp", "0")
            self.assertEqual(said["text"], reply["choices"][0]["message"]["content"])
            template.write_text("{% for m in messages %}")
            self.check_error(quantspec("serve", "--port", "0", "--chat-template", template), 1, str(template))

    def test_what_the_next_turn_begins_with_is_read_before_it_comes(self):
        def ahead(server):
            _, text = server.ask("GET", "/metrics")
            return float(re.search(r"^quantspec_ahead_tokens_total (\S+)$", text, re.MULTILINE)[1])

        def turns(server, waits):
            messages, replies = [{"role": "user", "content": PROMPT}], []
            for question in ("And then?", None):
                status, reply = server.post("/v1/chat/completions", messages=messages, max_tokens=150, temperature=0,
                                            ignore_eos=True)
                self.assertEqual(status, 200, reply)
                replies.append(reply)
                messages += [reply["choices"][0]["message"], {"role": "user", "content": question}]
                end = time.monotonic() + HANGS
                while waits and question and ahead(server) == 0:
                    self.assertLess(time.monotonic(), end)
                    time.sleep(0.02)
            usage = [reply["usage"] for reply in replies]
            cached = usage[1]["prompt_tokens_details"]["cached_tokens"]
            return usage[0]["total_tokens"], cached, [reply["choices"][0]["message"]["content"] for reply in replies]

        with tempfile.TemporaryDirectory() as folder:
            template = Path(folder) / "template.jinja"
            template.write_text("{% for m in messages %}<{{ m.role }}> {{ m.content }}\n{% endfor %}<assistant> ")
            with Server("--chat-template", template) as server:
                read, cached, texts = turns(server, True)
                self.assertGreater(cached, read - 16)
            with Server("--chat-template", template, "--no-read-ahead") as server:
                _, cached, others = turns(server, False)
                self.assertEqual(texts, others)
                self.assertLess(cached, 150)
                time.sleep(0.5)
                self.assertEqual(ahead(server), 0)

    def test_the_next_server_finds_on_disk_what_this_one_has_read(self):
        prompt = " ".join(f"The {i} of {i * i % 31} nights was dark." for i in range(180))
        body = {"prompt": prompt, "max_tokens": 16, "temperature": 0}
        with tempfile.TemporaryDirectory() as folder:
            options = ["-c", "4096", "--cache-disk", folder + "/cache"]
            replies = []
            for _ in range(2):
                with Server(*options) as server:
                    replies.append(server.post("/v1/completions", **body)[1])
            texts = [reply["choices"][0]["text"] for reply in replies]
            self.assertEqual(texts[0], texts[1])
            cached = [reply["usage"]["prompt_tokens_details"]["cached_tokens"] for reply in replies]
            self.assertEqual(cached, [0, (replies[0]["usage"]["prompt_tokens"] - 1) // 16 * 16])
            self.assertGreater(cached[1], 2048)
            for file in Path(folder).rglob("*.chunk"):
                self.check_error(generate("-p", "Hello", "--session", file), 1, "is no session")
            not_a_folder = Path(folder) / "file"
            not_a_folder.write_text("")
            done = quantspec("serve", "--port", "0", "--cache-disk", not_a_folder)
            self.check_error(done, 1, str(not_a_folder), "is no folder")

    def test_a_base_model_continues_texts_as_generate_does(self):
        expected = generate_json("--temp", "0", "-n", "24", "-p", PROMPT)
        with Server() as server:
            self.assertEqual(server.ask("GET", "/health")[0], 200)
            models = json.loads(server.ask("GET", "/v1/models")[1])
            self.assertEqual(models["data"][0]["id"], "pg-24m")
            wanted = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0}
            status, answer = server.post("/v1/completions", **wanted)
            self.assertEqual(status, 200, answer)
            self.assertEqual(answer["choices"][0]["text"], expected["text"])
            self.assertEqual(answer["usage"]["completion_tokens"], 24)
            status, answer = server.post("/v1/chat/completions",
                                         messages=[{"role": "user", "content": "hello"}])
            self.assertEqual(status, 400)
            self.assertIn("chat template", answer["error"]["message"])
            status, text = server.ask("POST", "/v1/completions", {**wanted, "stream": True})
            events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
            self.assertEqual(events.pop(), "[DONE]")
            told = "".join(json.loads(e)["choices"][0]["text"] for e in events)
            self.assertEqual(told, expected["text"])
            self.assertIn("requests_running", server.ask("GET", "/metrics")[1])
            for _ in range(20):
                status, text = server.ask("GET", "/props")
                self.assertEqual(status, 200)
                self.assertEqual(json.loads(text)["model_alias"], "pg-24m")
                self.assertEqual(json.loads(text)["system_fingerprint"],
                                 json.loads(events[0])["system_fingerprint"])

    def test_what_is_refused_before_it_is_read_has_openais_form(self):
        with Server("--allow-host", "models.example") as server:
            def error_of(status, **headers):
                got, text = server.ask("GET", "/v1/models", headers=headers)
                self.assertEqual(got, status)
                return json.loads(text)["error"]

            self.assertEqual(error_of(403, Host="evil.example")["type"], "permission_error")
            self.assertEqual(error_of(431, X="x" * 40000)["type"], "invalid_request_error")
            for host in ["models.example", "localhost", f"127.0.0.1:{server.port}", "[::1]"]:
                self.assertEqual(server.ask("GET", "/v1/models", headers={"Host": host})[0], 200)

    def test_a_stream_has_each_header_once(self):
        with Server() as server:
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=HANGS)
            connection.request("POST", "/v1/completions",
                               json.dumps({"prompt": PROMPT, "max_tokens": 2, "stream": True}),
                               {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            names = [name.lower() for name, _ in answer.getheaders()]
            self.assertEqual(len(names), len(set(names)), names)
            self.assertIn("text/event-stream", answer.getheader("Content-Type"))
            connection.close()

    def test_signals_before_it_serves_are_kept(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [cli_support.binary, "serve", "--port", str(port), "-c", "1024", "-t", "1"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env=environment())
        for _ in range(HANGS * 100):  # until it listens; it loads then
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.01)
        process.send_signal(signal.SIGHUP)  # a wish for keys, not for an end
        self.assertIn(" at http://", process.stdout.readline().decode())
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=HANGS)
        self.assertEqual(process.returncode, 0, errors.decode())

    def test_a_seed_repeats_an_answer_beside_others(self):
        with Server() as server:
            wanted = {"prompt": PROMPT, "max_tokens": 32, "temperature": 0.9, "seed": 5}
            alone = server.post("/v1/completions", **wanted)[1]["choices"][0]["text"]
            texts = [None] * 6

            def ask(i):
                texts[i] = server.post("/v1/completions", **{**wanted, "draft_len": i})[1]

            threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(texts))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual([t["choices"][0]["text"] for t in texts], [alone] * len(texts))

    def test_a_model_with_a_template_answers(self):
        with Folder() as model:
            (model / "chat_template.jinja").write_text(
                "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:",
                encoding="utf-8")
            with Server("-m", model) as server:
                messages = [{"role": "user", "content": "hello"}]
                prompt = server.post("/apply-template", messages=messages)[1]["prompt"]
                self.assertEqual(prompt, "user: hello\nassistant:")
                status, answer = server.post("/v1/chat/completions", messages=messages, max_tokens=8)
                self.assertEqual(status, 200, answer)
                self.assertEqual(answer["choices"][0]["message"]["role"], "assistant")

    def test_a_key_is_asked_for_and_read_again_after_a_hang_up(self):
        with tempfile.TemporaryDirectory() as folder:
            keys = Path(folder) / "keys"
            keys.write_text("\ufeff# ours\nfirst\n", encoding="utf-8")
            with Server("--api-key-file", keys) as server:
                def status_of(key):
                    return server.ask("GET", "/v1/models", headers={"Authorization": "Bearer " + key})[0]

                self.assertEqual(server.ask("GET", "/v1/models")[0], 401)
                self.assertEqual(status_of("first"), 200)
                keys.write_text("\ufeffsecond\n", encoding="utf-8")
                server.process.send_signal(signal.SIGHUP)
                for _ in range(HANGS * 10):
                    if status_of("second") == 200:
                        break
                self.assertEqual(status_of("second"), 200)
                self.assertEqual(status_of("first"), 401)

    def test_drafts_are_looked_up_in_what_a_key_was_answered(self):
        def found(key, **more):
            # The rule that chooses a length goes by the clock, and may look nothing up.
            body = {"prompt": "It was a dark and stormy night, and", "max_tokens": 100, "seed": 11,
                    "temperature": 1, "draft_len": 8}
            _, text = server.ask("POST", "/v1/completions", body | more, {"Authorization": "Bearer " + key})
            reply = json.loads(text)
            texts.add(reply["choices"][0]["text"])
            return reply["metrics"]["speculative_decoding"]["looked_up_accepted"]

        texts = set()
        with tempfile.TemporaryDirectory() as folder:
            keys = Path(folder) / "keys"
            keys.write_text("first\nsecond\n")
            with Server("--api-key-file", keys, "--lookup-history", "1000", "--plan", "lookup") as server:
                self.assertLess(found("first", cache_prompt=False), 20)
                self.assertLess(found("first"), 20)
                self.assertGreater(found("first"), 40)
                self.assertLess(found("first", cache_prompt=False), 20)
                self.assertLess(found("first", cache_salt="another"), 20)
                self.assertLess(found("second"), 20)
                found("first", draft_len="auto")  # however many: the same text
        self.assertEqual(len(texts), 1)
        none = quantspec("serve", "--port", "0", "--lookup-history", "1000", "--plan", "quantspec")
        self.check_error(none, 2, "--lookup-history 1000", "--plan quantspec")

    def test_what_cannot_be_is_said(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            self.check_error(quantspec("serve", "--port", port), 1, port)
        self.check_error(quantspec("serve", "--port", "70000"), 2, "--port")
        self.check_error(quantspec("serve", "--api-key-file", "/nowhere"), 1, "/nowhere")


if __name__ == "__main__":
    cli_support.main(__doc__)
