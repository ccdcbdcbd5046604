#!/usr/bin/env python3
"""What the command line does with input that attacks it, and in places where little works.
Usage: hostile_cli_test.py BINARY [unittest arguments]. Standard library only.
"""

import json
import os
import signal
import struct
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

import cli_support
from cli_support import (HANGS, MODEL, PROMPT, CliTest, Folder, environment, generate, quantspec,
                         replace)


def shell(script, *args):
    """Runs a line of shell in which $QS is the binary."""
    return subprocess.run(["sh", "-c", script, "sh", *args], capture_output=True, timeout=HANGS,
                          env=environment(QS=cli_support.binary))


def read_safetensors(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + size]), data[8 + size:]


def write_safetensors(path, header, data):
    text = json.dumps(header).encode()
    replace(path, struct.pack("<Q", len(text)) + text + data)


class StandardError(CliTest):
    def test_one_that_cannot_be_written_changes_nothing(self):
        good = shell("$QS generate -c 512 -t 1 -n 8 --temp 0 -p word")
        for where in ("2>/dev/full", "2>&-"):
            for options in ("", "-v", "--json --compare"):
                done = shell(f"$QS generate -c 512 -t 1 -n 8 --temp 0 -p word {options} {where}")
                self.assertEqual(done.returncode, 0, (where, options))
                if "--json" not in options:
                    self.assertEqual(done.stdout, good.stdout)
            self.assertEqual(shell(f"$QS tokenize -p word {where}").returncode, 0)
            self.assertEqual(shell(f"$QS generate --nonsense {where}").returncode, 2)
            self.assertEqual(shell(f"$QS generate -f /nowhere {where}").returncode, 1)

    def test_a_closed_standard_output_is_an_error(self):
        done = shell("$QS tokenize -p word >&-")
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"cannot write to standard output: Bad file descriptor", done.stderr)


class Paths(CliTest):
    def test_one_that_is_not_utf8_does_not_cost_the_output(self):
        with tempfile.TemporaryDirectory() as folder:
            model = os.fsencode(folder) + b"/m\xff"
            os.symlink(MODEL, model)
            prompt = os.fsencode(folder) + b"/p\xff.txt"
            Path(os.fsdecode(prompt)).write_text(PROMPT)
            for args in (["info"], ["generate", "-c", "512", "-t", "1", "-n", "4", "-f", prompt]):
                done = quantspec(*args, "--json", "-m", model)
                self.assertEqual(done.returncode, 0, done.stderr)
                json.loads(done.stdout)

    def test_messages_are_one_line_whatever_is_in_them(self):
        done = generate("-f", "/nowhere/a\nb\x1b[31m")
        self.check_error(done, 1, "/nowhere/a\\nb\\u001b[31m")
        done = generate("-p", PROMPT, "--temp", "x" * 100_000)
        self.check_error(done, 2, "--temp", "must be a number")
        self.assertLess(len(done.stderr), 3000)
        with Folder() as model:
            config = json.loads((MODEL / "config.json").read_text())
            config["architectures"] = ["Evil\n\x1b[2J" + "x" * 1_000_000]
            replace(model / "config.json", json.dumps(config).encode())
            done = quantspec("info", "-m", str(model))
            self.check_error(done, 1, "architectures", "Evil\\n\\u001b[2J", "LlamaForCausalLM")
            self.assertLess(len(done.stderr), 3000)

    def test_links_in_circles_are_no_bug(self):
        with tempfile.TemporaryDirectory() as folder:
            loop = Path(folder) / "loop"
            loop.symlink_to(loop)
            for args in (["info", "-m", str(loop)], ["generate", "-f", str(loop)],
                         ["tokenize", "-m", str(loop), "-p", "x"],
                         ["eval", "lossless", "-d", f"text:{loop}"],
                         ["bench", "-d", f"text:{loop}"]):
                self.check_error(quantspec(*args), 1, "symbolic links")
        for name in ("tokenizer.model", "tokenizer_config.json", "generation_config.json",
                     "model.safetensors"):
            with Folder() as model:
                (model / name).unlink(missing_ok=True)
                (model / name).symlink_to(model / name)
                done = generate("-m", str(model), "-p", PROMPT, "-n", "2")
                self.check_error(done, 1, name, "symbolic links")


class Models(CliTest):
    def check_config(self, changes, *words):
        with Folder() as model:
            config = json.loads((MODEL / "config.json").read_text())
            config.update(changes)
            replace(model / "config.json", json.dumps(config).encode())
            self.check_error(quantspec("info", "-m", str(model)), 1, *words)
            self.check_error(generate("-m", str(model), "-p", PROMPT, "-n", "2"), 1, *words)

    def test_layers_that_nobody_reads(self):
        self.check_config({"num_hidden_layers": 4}, "num_hidden_layers = 4", "model.layers.4.")

    def test_what_git_lfs_did_not_fetch_is_named(self):
        pointer = (b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d7a2146" * 8 +
                   b"\nsize 48000000\n")
        for name in ["model.safetensors", "tokenizer.model", "config.json"]:
            with self.subTest(name), Folder() as model:
                replace(model / name, pointer)
                done = generate("-m", str(model), "-p", PROMPT, "-n", "2")
                self.check_error(done, 1, name, "Git LFS pointer", "git lfs pull")

    def test_an_architecture_that_contradicts_the_type(self):
        self.check_config({"model_type": "mistral"}, "model_type", "LlamaForCausalLM")

    def test_tensors_that_nobody_reads_are_named(self):
        with Folder() as model:
            header, data = read_safetensors(MODEL / "model.safetensors")
            header["vision.bias"] = {"dtype": "F32", "shape": [2],
                                     "data_offsets": [len(data), len(data) + 8]}
            write_safetensors(model / "model.safetensors", header, data + bytes(8))
            done = generate("-m", str(model), "-p", PROMPT, "-n", "2")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(b'quantspec: warning: ', done.stderr)
            self.assertIn(b'1 tensor that this model does not use, such as "vision.bias"',
                          done.stderr)
            report = json.loads(quantspec("info", "--json", "-m", str(model)).stdout)
            self.assertEqual(report["unread_tensors"], ["vision.bias"])

            done = quantspec("prepare", "--method", "rtn", "-m", str(model), "-o",
                             str(model / "draft.qsd"))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(b'such as "vision.bias"', done.stderr)

    def check_tensors(self, change, *words):
        with Folder() as model:
            header, data = read_safetensors(MODEL / "model.safetensors")
            data = change(header, data)
            write_safetensors(model / "model.safetensors", header, data)
            for command in [["info"], ["generate", "-p", PROMPT, "-n", "2"],
                            ["prepare", "--method", "rtn", "-o", str(model / "draft.qsd")]]:
                with self.subTest(command[0]):
                    self.check_error(quantspec(*command, "-m", str(model)), 1, *words)

    def test_every_command_refuses_a_checkpoint_of_another_config(self):
        def rename(header, data):
            header["model.layers.2.mlp.other.weight"] = header.pop("model.layers.2.mlp.up_proj.weight")
            return data

        def reshape(header, data):
            header["model.norm.weight"]["shape"] = [2, header["model.norm.weight"]["shape"][0] // 2]
            return data

        def other_head(header, data):
            size = header["model.embed_tokens.weight"]["data_offsets"]
            bytes_of_head = size[1] - size[0]
            header["lm_head.weight"] = {**header["model.embed_tokens.weight"],
                                        "data_offsets": [len(data), len(data) + bytes_of_head]}
            return data + bytes(bytes_of_head)

        self.check_tensors(rename, "model.layers.2.mlp.up_proj.weight", "is missing")
        self.check_tensors(reshape, "model.norm.weight", "has shape [2, ")
        if json.loads((MODEL / "config.json").read_text()).get("tie_word_embeddings"):
            self.check_tensors(other_head, "lm_head.weight", "tie_word_embeddings")

    def test_files_beside_the_checkpoint_take_no_memory(self):
        with Folder() as model:
            (model / "consolidated.safetensors").symlink_to(MODEL / "model.safetensors")
            plans = [json.loads(quantspec("info", "--json", "-m", str(folder)).stdout)["plans"][0]
                     for folder in (model, MODEL)]
            self.assertEqual(plans[0]["weights_bytes"], plans[1]["weights_bytes"])

    def test_a_checkpoint_that_shrinks_is_named(self):
        with Folder() as model:
            weights = model / "model.safetensors"
            replace(weights, (MODEL / "model.safetensors").read_bytes())
            process = subprocess.Popen(
                [cli_support.binary, "generate", "-m", str(model), "-p", PROMPT, "-c", "2048", "-t",
                 "1", "-n", "-1", "--ignore-eos"],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
            process.stdout.read(1)
            os.truncate(weights, 100_000)
            _, err = process.communicate(timeout=HANGS)
            self.assertEqual(process.returncode, 1, err)
            self.assertIn(b"model.safetensors: became shorter", err)

    def test_a_folder_with_a_gguf_file_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "model.Q4_K_M.gguf").write_bytes(b"GGUF")
            self.check_error(quantspec("info", "-m", folder), 1, "model.Q4_K_M.gguf", "give that file itself")

    def test_paths_that_are_no_gguf_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            for command in (["info"], ["tokenize", "-p", "word"], ["roofline", "--machine", "a6000"],
                            ["prepare", "--method", "rtn", "-o", str(Path(folder) / "x.qsd")]):
                for data, words in ((None, ("no such file or folder", "a GGUF file")),
                                    (b"", ("truncated",)), (b"some text\n", ("is no GGUF file",)),
                                    (b"GGUF" + struct.pack("<IQQ", 3, 9, 0), ("not whole",))):
                    path.unlink(missing_ok=True)
                    if data is not None:
                        path.write_bytes(data)
                    self.check_error(quantspec(*command, "-m", str(path)), 1, str(path), *words)

    def test_a_model_without_its_option(self):
        self.check_error(quantspec("info", "model.gguf"), 2,
                         "unknown argument 'model.gguf'; a model comes after -m")


class Stores(CliTest):
    def prepare(self, *args, **kwargs):
        return subprocess.Popen([cli_support.binary, "prepare", "--method", "rtn", "-t", "1", *args],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kwargs)

    def test_two_that_write_one_store_leave_a_whole_one(self):
        with tempfile.TemporaryDirectory() as folder:
            store = Path(folder) / "store.qsd"
            for _ in range(2):
                runs = [self.prepare("-o", str(store), "--head-bits", bits) for bits in "48"]
                for run in runs:
                    _, err = run.communicate(timeout=HANGS)
                    self.assertEqual(run.returncode, 0, err)
                done = generate("-p", PROMPT, "-n", "4", "--draft-store", str(store))
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(os.listdir(folder), ["store.qsd"])

    def test_what_is_in_the_way_is_named_before_the_work(self):
        with tempfile.TemporaryDirectory() as folder:
            pipe = Path(folder) / "pipe"
            os.mkfifo(pipe)
            link = Path(folder) / "link"
            link.symlink_to("/etc/hostname")
            for path, what in ((pipe, "a named pipe"), (link, "a link"), ("/dev/null", "a device"),
                               (folder, "a folder")):
                began = time.monotonic()
                self.check_error(quantspec("prepare", "--method", "rtn", "-o", str(path)), 1,
                                 str(path), what)
                self.assertLess(time.monotonic() - began, 5)
            plan = ["eval", "sensitivity", "-d", f"text:{MODEL}/README.md", "--plan-file"]
            self.check_error(quantspec(*plan, str(pipe)), 1, str(pipe), "a named pipe")


class Prompts(CliTest):
    ARGS = ["-c", "512", "-t", "1", "-n", "8", "--temp", "0", "-q"]

    def test_every_way_to_give_one(self):
        text = quantspec("generate", *self.ARGS, "-p", PROMPT).stdout
        generate_ = "$QS generate " + " ".join(self.ARGS)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "p").write_text(PROMPT + "\n")
            for script in (f'cat "$1" | {generate_} -f -', f'{generate_} -f - <"$1"',
                           f'cat "$1" | {generate_} -f /dev/stdin', f'{generate_} -f "$1"',
                           f'mkfifo "$1.f"; cat "$1" >"$1.f" & {generate_} -f "$1.f"'):
                done = shell(script, str(Path(folder) / "p"))
                self.assertEqual((done.returncode, done.stdout), (0, text), (script, done.stderr))

    def test_a_mark_and_carriage_returns_are_no_text(self):
        def ids(content):
            return quantspec("tokenize", "--ids", stdin=content).stdout
        self.assertEqual(ids("\ufeffone\r\ntwo\r\n"), ids("one\ntwo"))
        self.assertNotEqual(ids("one\rtwo"), ids("onetwo"))

    def test_what_is_no_text_is_refused(self):
        self.check_error(quantspec("generate", "-p", b"word \xff"), 1, "--prompt", "byte 5 is 0xff")
        done = shell("$QS generate -p x -q </dev/null; $QS generate </")
        self.assertIn(b"cannot read standard input: Is a directory", done.stderr)
        self.check_error(quantspec("generate", "-f", "/"), 1, "cannot read /: Is a directory")
        self.check_error(quantspec("generate", "-f", "/dev/zero"), 1, "/dev/zero", "bytes")

    def test_a_much_too_long_one_is_refused_soon(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write((PROMPT + ". ").encode() * 1_000_000)
            file.flush()
            began = time.monotonic()
            done = quantspec("generate", "-c", "1024", "-f", file.name)
            self.check_error(done, 1, "more than 1024 tokens")
            self.assertLess(time.monotonic() - began, 20)

    def test_ctrl_c_ends_the_wait_for_a_pipe(self):
        with tempfile.TemporaryDirectory() as folder:
            pipe = Path(folder) / "pipe"
            os.mkfifo(pipe)
            process = subprocess.Popen([cli_support.binary, "generate", "-f", str(pipe)],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            time.sleep(0.5)  # it waits in open(), where nothing tells
            self.assertIsNone(process.poll())
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.communicate(timeout=HANGS), (b"", b"quantspec: interrupted\n"))
            self.assertEqual(process.returncode, 130)

    def test_ctrl_c_ends_the_making_of_tokens(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write((PROMPT + ". ").encode() * 700_000)
            file.flush()
            process = subprocess.Popen([cli_support.binary, "tokenize", "-f", file.name],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            time.sleep(2)  # of some 10 that it takes
            process.send_signal(signal.SIGINT)
            began = time.monotonic()
            self.assertEqual(process.communicate(timeout=HANGS), (b"", b"quantspec: interrupted\n"))
            self.assertLess(time.monotonic() - began, 2)
            self.assertEqual(process.returncode, 130)

    def test_ctrl_c_ends_the_making_of_prompts(self):
        with tempfile.TemporaryDirectory() as folder:
            text = Path(folder) / "text.txt"
            text.write_text((PROMPT + ". ") * 700_000)
            store, plan = Path(folder) / "store.qsd", Path(folder) / "plan.json"
            for args in (["bench", "-d", f"text:{text}", "-c", "20000", "--prompts", "400"],
                         ["prepare", "--calibration", f"text:{text}", "--tokens", "9000000", "-o",
                          str(store)],
                         ["eval", "sensitivity", "-d", f"text:{text}", "-c", "20000", "--prompts",
                          "400", "--plan-file", str(plan)]):
                with self.subTest(args=args):
                    process = subprocess.Popen([cli_support.binary, *args], stdout=subprocess.PIPE,
                                               stderr=subprocess.PIPE)
                    time.sleep(2)  # of some 20 that it takes
                    process.send_signal(signal.SIGINT)
                    began = time.monotonic()
                    self.assertEqual(process.communicate(timeout=HANGS),
                                     (b"", b"quantspec: interrupted\n"))
                    self.assertLess(time.monotonic() - began, 2)
                    self.assertEqual(process.returncode, 130)
            self.assertEqual(os.listdir(folder), ["text.txt"])

    def test_a_signal_that_is_ignored_stays_so(self):
        done = shell("trap '' INT; $QS generate -c 512 -t 1 -n 200 --ignore-eos -q -p word & "
                     "sleep 0.3; kill -INT $!; wait $!")
        self.assertEqual(done.returncode, 0, done.stderr)


class Numbers(CliTest):
    def test_the_largest_are_computed_or_refused(self):
        most = str(2**31 - 1)
        text = ["-d", f"text:{MODEL}/README.md"]
        for args in (["generate", "-p", "x", "-n", most], ["generate", "-p", "x", "-c", most],
                     ["generate", "-p", "x", "--draft-budget", most],
                     ["bench", *text, "-c", most], ["bench", *text, "--prompts", most],
                     ["bench", *text, "-n", most], ["bench", *text, "--warm-up", most],
                     ["bench", *text, "--draft-budget", most],
                     ["eval", "perplexity", *text, "--tokens", most],
                     ["eval", "perplexity", *text, "--prompts", most],
                     ["eval", "perplexity", *text, "--stride", most],
                     ["eval", "fidelity", *text, "-c", most],
                     ["eval", "fidelity", *text, "--tokens", most],
                     ["eval", "prefill", *text, "--chunks", most],
                     ["eval", "sensitivity", *text, "--prompts", most],
                     ["eval", "lossless", *text, "--tokens", most],
                     ["prepare", "--method", "rtn", "-o", "x", "--tokens", most],
                     ["roofline", "-n", most], ["roofline", "--ctx-size", most]):
            done = quantspec(*args)
            with self.subTest(args=args):
                self.check_error(done, 2, "from ")
        # Within the bounds, what cannot be done is refused by what it needs.
        for args in (["eval", "perplexity", *text, "--tokens", str(2**28)],
                     ["eval", "fidelity", *text, "--tokens", str(2**28), "-c", str(2**28)],
                     ["eval", "sensitivity", *text, "--prompts", "1000000"],
                     ["bench", *text, "--prompts", "1000000", "-c", "32768", "-n", "1"]):
            done = quantspec(*args)
            self.assertIn(done.returncode, (1, 2), (args, done.stderr))
            self.assertNotIn(b"bug", done.stderr)


if __name__ == "__main__":
    cli_support.main(__doc__)
