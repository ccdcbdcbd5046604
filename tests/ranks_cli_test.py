#!/usr/bin/env python3
"""End-to-end tests of ranks that share a model. Usage: ranks_cli_test.py BINARY [unittest arguments]

Small models of every family, made here: ranks write what one rank writes, with drafts, in threads and
in processes as a launcher makes them; and one that ends, or hangs, ends every request. Standard
library only.
"""

import json
import os
import random
import resource
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
import unittest
from array import array
from pathlib import Path

import cli_support
from cli_support import HANGS, MODEL, PROMPT, CliTest, environment, generate, quantspec
from serve_cli_test import Server

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, LAYERS, VOCABULARY = 64, 16, 4, 128, 2048, 2, 8192
FAMILIES = {"llama": {"architectures": ["LlamaForCausalLM"]},
            "mistral": {"architectures": ["MistralForCausalLM"]},
            "qwen2": {"architectures": ["Qwen2ForCausalLM"]},
            "qwen3": {"architectures": ["Qwen3ForCausalLM"]}}


def make_model(folder, family):
    """A model of a family that 4 ranks can share, of random weights, with the bundled tokenizer."""
    folder.mkdir()
    for name in ("tokenizer.model", "tokenizer_config.json", "generation_config.json"):
        if (MODEL / name).exists():
            (folder / name).symlink_to(MODEL / name)
    config = {"model_type": family, **FAMILIES[family], "hidden_size": HIDDEN, "num_attention_heads": HEADS,
              "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "intermediate_size": INTERMEDIATE,
              "num_hidden_layers": LAYERS, "vocab_size": VOCABULARY, "max_position_embeddings": 2048,
              "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "torch_dtype": "bfloat16",
              "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2}
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "lm_head.weight": (VOCABULARY, HIDDEN),
              "model.norm.weight": (HIDDEN,)}
    outputs = {"q": HEADS * HEAD_DIM, "k": KV_HEADS * HEAD_DIM, "v": KV_HEADS * HEAD_DIM}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        shapes[prefix + "input_layernorm.weight"] = (HIDDEN,)
        shapes[prefix + "post_attention_layernorm.weight"] = (HIDDEN,)
        for name, rows in outputs.items():
            shapes[prefix + f"self_attn.{name}_proj.weight"] = (rows, HIDDEN)
            if family == "qwen2":
                shapes[prefix + f"self_attn.{name}_proj.bias"] = (rows,)
            if family == "qwen3" and name != "v":
                shapes[prefix + f"self_attn.{name}_norm.weight"] = (HEAD_DIM,)
        shapes[prefix + "self_attn.o_proj.weight"] = (HIDDEN, HEADS * HEAD_DIM)
        shapes[prefix + "mlp.gate_proj.weight"] = shapes[prefix + "mlp.up_proj.weight"] = (INTERMEDIATE, HIDDEN)
        shapes[prefix + "mlp.down_proj.weight"] = (HIDDEN, INTERMEDIATE)
    chance = random.Random(family)
    # Halves of floats, which bf16 is.
    values = [struct.unpack("<HH", struct.pack("<f", chance.gauss(0, 0.1)))[1] for _ in range(4096)]
    header, data = {}, array("H")
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [2 * len(data), 2 * (len(data) + count)]}
        data.extend(chance.choices(values, k=count))
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data.tobytes())
    return folder


class RanksTest(CliTest):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.models = {family: make_model(Path(cls.folder.name) / family, family) for family in FAMILIES}

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()


def text_of(done):
    if done.returncode != 0:
        raise AssertionError(done.stderr.decode())
    return done.stdout


def text_in(file):
    """All that children have written to it."""
    return os.pread(file.fileno(), 1 << 20, 0)


# As torchrun makes them.
def launched(rank, size, job):
    return environment(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size), MASTER_PORT=job)


# As if each were on a machine of its own.
def on_machines(rank, size, port):
    return environment(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1",
                       MASTER_PORT=str(port))


def free_port():
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return door.getsockname()[1]


class Same(RanksTest):
    OPTIONS = ["-p", PROMPT, "-n", "60", "--seed", "3", "--ignore-eos"]

    def test_every_family_in_threads(self):
        for family, model in self.models.items():
            for more in ([], ["--target-weights", "8"]):
                texts = {ranks: text_of(generate("-m", str(model), *self.OPTIONS, *more, "--ranks", ranks))
                         for ranks in ("1", "2", "4")}
                self.assertGreater(len(texts["1"]), 60)
                self.assertEqual(texts["1"], texts["2"], (family, more))
                self.assertEqual(texts["1"], texts["4"], (family, more))

    def test_every_family_with_shared_contexts(self):
        for family, model in self.models.items():
            texts = [text_of(generate("-m", str(model), *self.OPTIONS, *more))
                     for more in ([], ["--ranks", "2", "--context-ranks", "2"],
                                  ["--ranks", "4", "--context-ranks", "2"],
                                  ["--ranks", "8", "--context-ranks", "2"])]  # of 4 KV heads
            self.assertEqual(set(texts), {texts[0]}, family)

    def test_a_model_that_is_too_small_for_shares(self):
        # Some 5000 tokens: several runs of pages.
        text = (cli_support.ROOT / "prompts/the-lighthouse-clock.txt").read_text()[:20000]
        texts = [text_of(quantspec("generate", "-m", str(MODEL), "-c", "8192", "-t", "2", "-p", text, "-n", "60",
                                   "--seed", "3", "--ignore-eos", *more))
                 for more in ([], ["--ranks", "2", "--context-ranks", "2"],
                              ["--ranks", "4", "--context-ranks", "4", "--draft-len", "3"])]
        self.assertEqual(set(texts), {texts[0]})

    def test_processes_of_a_launcher(self):
        model = str(self.models["llama"])
        alone = text_of(generate("-m", model, *self.OPTIONS, "--draft-len", "0"))
        for size, sharing, environment_of in ((2, 1, launched), (4, 1, launched), (2, 2, launched), (4, 2, launched),
                                              (2, 1, on_machines), (4, 2, on_machines)):
            options = ["-m", model, *self.OPTIONS, "--context-ranks", str(sharing)]
            self.assertEqual(self.launch(size, *options, environment_of=environment_of), alone)

    def launch(self, size, *options, command="generate", environment_of=launched):
        """What it writes as processes of a launcher, of which the first one has all to say."""
        # Ranks of machines meet at the port after the one that is named.
        job = f"test-{os.getpid()}-{size}" if environment_of == launched else free_port() - 1
        context = ["-c", "1024"] if command == "generate" else []
        command = [cli_support.binary, command, *context, "-t", "1", *options, "--ranks", "launched"]
        all_ranks = [subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, env=environment_of(rank, size, job))
                     for rank in range(size)]
        ends = [(*one.communicate(timeout=HANGS), one.returncode) for one in all_ranks]
        for out, errors, code in ends:
            self.assertEqual(code, 0, errors)
        for out, errors, _ in ends[1:]:
            self.assertEqual((out, errors), (b"", b""))
        return ends[0][0]

    def test_a_session_is_that_of_one_rank(self):
        """To the byte: whoever goes on with it, in threads or in processes."""
        model = str(self.models["qwen2"])
        long_text = " ".join(f"The {i} of {i * i % 31} nights was dark." for i in range(60))
        common = ["-m", model, "-n", "10", "--seed", "3", "--ignore-eos", "--page-size", "32"]
        file = Path(self.folder.name) / "session"

        def play(*ranks):
            """Turns by these numbers of ranks: what each wrote, and the file then."""
            file.unlink(missing_ok=True)
            turns = []
            for number, prompt in zip(ranks, (long_text, " But nobody", " The captain")):
                options = [*common, "-p", prompt, "--session", str(file), "-c", "2048"]
                if number.startswith("launched "):
                    text = self.launch(int(number.split()[1]), *options)
                else:
                    text = text_of(generate(*options, "--ranks", number))
                turns.append((text, file.read_bytes()))
            return turns

        alone = play("1", "1", "1")
        self.assertEqual(len({text for text, _ in alone}), 3)
        for ranks in (("2", "1", "4"), ("4", "launched 2", "1"), ("launched 4", "2", "2")):
            for (text, kept), (expected, of_one) in zip(play(*ranks), alone):
                self.assertEqual(text, expected, ranks)
                self.assertTrue(kept == of_one, ranks)

    def test_servers_of_any_ranks_find_what_others_have_read(self):
        body = {"prompt": [5 + i * i % 251 for i in range(1210)], "max_tokens": 12, "temperature": 0, "ignore_eos": True}
        with tempfile.TemporaryDirectory() as folder:
            answers = []
            for ranks in ("2", "1", "4"):
                with Server("-m", str(self.models["mistral"]), "-c", "2048", "--ranks", ranks, "--cache-disk",
                            folder + "/cache") as server:
                    status, answer = server.post("/v1/completions", **body)
                    self.assertEqual(status, 200, answer)
                    answers.append(answer)
        self.assertEqual([answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers],
                         [0, 1200, 1200])
        self.assertEqual(len({answer["choices"][0]["text"] for answer in answers}), 1)

    def test_drafts_of_a_store(self):
        """Ranks read their rows and columns of it, and write what they do without."""
        model, store = str(self.models["llama"]), str(Path(self.folder.name) / "store.qsd")
        done = quantspec("prepare", "-m", model, "--method", "rtn", "-o", store, "-t", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        options = ["-m", model, *self.OPTIONS, "--draft-len", "3", "--plan", "quantspec", "--draft-store", store]
        without = json.loads(text_of(generate("--json", "-m", model, *self.OPTIONS, "--draft-len", "0")))
        accepted = []
        for ranks in ("1", "2", "4"):
            report = json.loads(text_of(generate("--json", *options, "--ranks", ranks)))
            self.assertEqual(report["text"], without["text"])
            accepted.append(report["speculation"]["draft_n_accepted"])
        self.assertGreater(min(accepted), 0)
        self.assertEqual(len(set(accepted)), 1, accepted)
        self.check_error(generate("-m", str(self.models["qwen2"]), "-p", "x", "--draft-store", store, "--ranks", "2"), 2,
                         "made for another checkpoint")
        plans = [json.loads(quantspec("info", "-m", model, "-c", "1024", "--json", "--ranks", ranks, "--draft-store",
                                      store).stdout)["plans"][0] for ranks in ("1", "2")]
        self.assertLess(plans[1]["draft_weights_bytes"], 0.6 * plans[0]["draft_weights_bytes"])

    def test_receipts_are_checked_by_any_ranks(self):
        model = str(self.models["qwen3"])
        with Server("-m", model, "--ranks", "2") as server:
            status, reply = server.post("/v1/completions", prompt=[5, 6, 7] * 30, max_tokens=40, seed=4, receipt=True,
                                        ignore_eos=True)
        self.assertEqual(status, 200, reply)
        file = Path(self.folder.name) / "reply.json"
        file.write_text(json.dumps(reply))
        for ranks in ("1", "2", "4"):
            done = quantspec("verify", "-m", model, "-t", "1", "--ranks", ranks, file)
            self.assertEqual((done.returncode, done.stdout), (0, f"{file}: ok\n".encode()), done.stderr)
        self.assertEqual(self.launch(2, "-q", "-m", model, str(file), command="verify"), f"{file}: ok\n".encode())
        reply["receipts"][0]["tokens"][30] ^= 1
        file.write_text(json.dumps(reply))
        done = quantspec("verify", "-m", model, "-t", "1", "--ranks", "2", file)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"token 30 is", done.stdout)

    def test_a_server_has_one_fingerprint_and_one_answer(self):
        answers = []
        for ranks, sharing in (("1", "1"), ("2", "1"), ("2", "2"), ("4", "2")):
            with Server("-m", str(self.models["qwen3"]), "--ranks", ranks, "--context-ranks", sharing, "--name",
                        "m") as server:
                body = {"prompt": [5, 6, 7] * 30, "max_tokens": 40, "seed": 4, "logprobs": 2, "n": 2,
                        "ignore_eos": True}
                status, answer = server.post("/v1/completions", **body)
                self.assertEqual(status, 200, answer)
                answers.append((answer["system_fingerprint"], answer["choices"]))
        for answer in answers[1:]:
            self.assertEqual(answers[0], answer)

    def test_bench_measures_plans_at_several_ranks(self):
        model = str(self.models["llama"])
        done = quantspec("bench", "-m", model, "-d", f"text:{cli_support.ROOT}/prompts/the-lighthouse-clock.txt", "-c",
                         "512", "-t", "1", "--ranks", "2", "--plan", "auto", "-n", "16", "--prompts", "1", "--repeat",
                         "1", "-q", "-o", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual(report["meta"]["ranks"], 2)
        self.assertRegex(report["meta"]["backend"], "^2 ranks of ")
        self.assertTrue(all(row["ms_per_token"] > 0 for row in report["rows"]), report["rows"])

    def load_rows(self, ranks, *options):
        """Of `bench` with many requests: all reports of these numbers of ranks."""
        reports = {}
        for number in ranks:
            done = quantspec("bench", "-m", str(self.models["llama"]), "-d", f"text:{cli_support.ROOT}/prompts", "-t", "1",
                             "--ranks", number, "--page-size", "32", "--plan", "quantspec,auto", "--repeat", "2",
                             "--warm-up", "4", "-o", "json", *options)
            self.assertEqual((done.returncode, done.stderr), (0, b""))
            report = json.loads(done.stdout)
            self.assertEqual((report["complete"], report["meta"]["ranks"]), (True, int(number)))
            for row in report["rows"]:
                self.assertIs(row["identical"], True, row["plan"])
                self.assertEqual(row["peak_bytes"],
                                 sum(row[part + "_bytes"] for part in ("weights", "draft_weights", "kv", "ring", "prefill")))
            reports[number] = report["rows"]
        return reports

    def test_bench_measures_streams_at_several_ranks(self):
        one, two = self.load_rows(("1", "2"), "--streams", "1,3", "-c", "96", "-n", "8", "--late-prompt", "150").values()
        self.assertEqual([(row["plan"], row["streams"]) for row in one], [(row["plan"], row["streams"]) for row in two])
        for a, b in zip(one, two):
            self.assertEqual((a["kv_fp16_bytes"], a["ring_bytes"]), (b["kv_fp16_bytes"], b["ring_bytes"]))
            self.assertGreater(b["late_itl_p50_ms"], 0)

    def test_bench_serves_a_trace_at_several_ranks(self):
        """With so few pages that requests are preempted, and with what is shared found."""
        trace = Path(self.folder.name) / "trace.jsonl"
        trace.write_text("".join(json.dumps(
            {"arrival_ms": i, "prompt_tokens": 100, "output_tokens": 4 if i < 4 else 200,
             "shared_prefix": {"id": "x", "tokens": 64}}) + "\n" for i in range(8)))
        page = 32 * LAYERS * KV_HEADS * (2 * HEAD_DIM + 16)  # bytes of all ranks, about
        rows = self.load_rows(("4",), "--trace", str(trace), "--streams", "4", "--page-memory", str(16 * page // 4),
                              "--host-cache", str(40 * page // 4))["4"]
        self.assertTrue(all(row["preemptions"] > 0 for row in rows if row["plan"] != "plain-fp16"), rows)

    def test_eval_comes_to_the_same_results(self):
        common = ["-m", str(self.models["llama"]), "-d", f"text:{cli_support.ROOT}/prompts/the-lighthouse-clock.txt", "-t",
                  "1", "--page-size", "32", "-c", "200", "-o", "json", "-q"]
        plans = ["--plan", "quantspec,quantspec+sparse"]
        short = ["--tokens", "40", "--prompts", "1"]
        for options in (["perplexity", *short], ["axes", *short], ["fidelity", *short, *plans],
                        ["prefill", *short, *plans], ["lossless", *short, "--draft-len", "2,auto"]):
            reports = []
            for ranks in ("1", "2", "4"):
                done = quantspec("eval", *options, *common, "--ranks", ranks)
                self.assertEqual(done.returncode, 0, done.stderr)
                report = json.loads(done.stdout)
                self.assertEqual((report["meta"]["ranks"], report["meta"]["complete"]), (int(ranks), True))
                timed = ["seconds", "ratio"]  # and what follows from times
                if options[0] == "lossless":
                    timed += ["acceptance", "tokens_per_round"]
                reports.append([{key: value for key, value in row.items() if not any(word in key for word in timed)}
                                for row in report["rows"]])
            self.assertGreater(len(reports[0]), 0)
            self.assertEqual(reports[0], reports[1], options)
            self.assertEqual(reports[0], reports[2], options)
        done = quantspec("eval", "lossless", *common, "--streams", "2", "--ranks", "2")
        self.check_error(done, 2, "--streams: works at one rank only")
        for measurement in ("sensitivity", "targets"):
            self.check_error(quantspec("eval", measurement, *common, "--ranks", "2"), 2, "unknown option '--ranks'")

    def test_info_plans_for_one_of_them(self):
        model = str(self.models["llama"])
        one, two = (json.loads(quantspec("info", "-m", model, "-c", "1024", "--json", "--ranks", ranks).stdout)
                    for ranks in ("1", "2"))
        self.assertEqual((one["ranks"], two["ranks"], two["rank_counts"]), (1, 2, [1, 2, 4]))
        plans = one["plans"][0], two["plans"][0]
        self.assertEqual(plans[0]["kv_bytes"], 2 * plans[1]["kv_bytes"])
        self.assertGreater(plans[0]["weights_bytes"], plans[1]["weights_bytes"])
        text = quantspec("info", "-m", model, "--ranks", "2").stdout
        self.assertIn(b"memory plan of each of 2 ranks", text)
        self.assertIn(b"\nranks        1 or 2 or 4 can share this model\n", text)

    def test_info_plans_for_one_that_shares_contexts(self):
        model = str(self.models["llama"])
        one, two, four = (json.loads(quantspec("info", "-m", model, "-c", "1024", "--json", "--ranks", str(ranks),
                                               "--context-ranks", str(sharing)).stdout)
                          for ranks, sharing in ((1, 1), (2, 2), (4, 2)))
        self.assertEqual((one["context_ranks"], two["context_ranks"]), (1, 2))
        self.assertEqual(two["rank_counts"], [2, 4, 8])
        bytes_of = [{name: report["plans"][0][name] for name in ("kv_bytes", "ring_bytes")}
                    for report in (one, two, four)]
        # Half the pages, and the whole ring; of half the KV heads.
        self.assertEqual(bytes_of[0]["kv_bytes"], 2 * bytes_of[1]["kv_bytes"])
        self.assertEqual(bytes_of[0]["ring_bytes"], bytes_of[1]["ring_bytes"])
        self.assertEqual(bytes_of[1], {name: 2 * count for name, count in bytes_of[2].items()})
        text = quantspec("info", "-m", model, "--ranks", "2", "--context-ranks", "2").stdout
        self.assertIn(b"memory plan of each of 2 ranks, 2 to a context", text)
        self.assertIn(b"\nranks        2 or 4 or 8 can share this model if 2 of them share each context\n", text)
        self.assertIn(b"\nranks        several can share this model only with --context-ranks\n",
                      quantspec("info").stdout)


class Wrong(RanksTest):
    def test_what_cannot_be(self):
        model = str(self.models["llama"])
        self.check_error(generate("-p", "x", "--ranks", "3"), 2, "--ranks '3': must be 1, 2, 4, 8 or launched")
        self.check_error(generate("-p", "x", "--ranks", "many"), 2, "must be 1, 2, 4, 8 or launched")
        self.check_error(generate("-p", "x", "-m", model, "--ranks", "8"), 1, "8 ranks", "1 or 2 or 4 can")
        self.check_error(generate("-p", "x", "--ranks", "2"), 1, "2 ranks", "1 can")
        self.check_error(generate("-p", "x", "--ranks", "launched"), 1, "no launcher", "torchrun")
        self.check_error(quantspec("info", "-m", model, "--ranks", "launched"), 2, "must be 1, 2, 4 or 8")
        self.check_error(generate("-p", "x", "--ranks", "2", "--gpus", "2"), 2, "--ranks and --gpus exclude each other")
        self.check_error(generate("-p", "x", "--gpus", "2", "--backend", "cpu"), 2, "exclude each other")
        self.check_error(generate("-p", "x", "--gpus", "none"), 2, "--gpus 'none': must be 1, 2, 4 or 8")

    def test_launched_ranks_refuse_alike_before_they_meet(self):
        """One fails, the others warn. None waits for the others, which would take a minute."""
        def refused(rank, ranks, *options):
            command = [cli_support.binary, "generate", "-p", "x", "--ranks", "launched", *options]
            return subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=30,
                                  env=launched(rank, ranks, f"refused-{os.getpid()}"))

        for ranks, options, code, expected in (
                (8, ["-m", str(self.models["llama"])], 1, "1 or 2 or 4 can"), (3, [], 2, "--ranks 3: supported are"),
                (4, ["--context-ranks", "2"], 1, "where 4 share each context that works")):
            self.check_error(refused(0, ranks, *options), code, expected)
            other = refused(ranks - 1, ranks, *options)
            self.assertEqual((other.returncode, other.stdout), (0, b""))
            self.assertIn(expected, other.stderr.decode())
            self.assertEqual(other.stderr.count(b"\n"), 1)

    def test_gpus_of_several_machines_are_refused(self):
        for rank in (0, 1):
            done = generate("-p", "x", "-m", str(self.models["llama"]), "--backend", "cuda", "--ranks", "launched",
                            env=on_machines(rank, 2, free_port()))
            self.check_error(done, 2, "--backend cuda: GPUs of one machine share a model", "cpu and reference work")

    def test_what_cannot_share_contexts(self):
        def check(options, code, *expected):
            self.check_error(generate("-p", "x", "-m", str(self.models["llama"]), *options.split()), code, *expected)

        check("--context-ranks 3", 2, "--context-ranks '3': must be 1, 2, 4 or 8")
        check("--context-ranks 2", 2, "--context-ranks 2: may be 1, 2, 4 or 8, and no more than --ranks 1")
        check("--ranks 2 --context-ranks 4", 2, "--context-ranks 4: may be 1, 2, 4 or 8, and no more than --ranks 2")
        check("--ranks 2 --context-ranks 2 --kv-cache full", 2, "no pages to share", "hierarchical works")
        check("--ranks 2 --context-ranks 2 --plan quantspec+sparse", 2, "--plan quantspec+sparse", "such as quantspec")
        self.check_error(generate("-p", "x", "--ranks", "4", "--context-ranks", "2"), 1, "of 4 ranks 2 share each",
                         "only 1 can", "where 4 share each context that works")

    def end_one(self, sent, expected, environment_of=launched):
        """A server of two processes, of which the second gets a signal while answers come."""
        job = f"end-{os.getpid()}-{sent}" if environment_of == launched else free_port() - 1
        model = str(self.models["llama"])
        command = [cli_support.binary, "serve", "--port", "0", "-c", "2048", "-t", "1", "-m", model, "--ranks",
                   "launched"]
        other = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.PIPE, env=environment_of(1, 2, job))
        first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 env=environment_of(0, 2, job))
        try:
            server = Server()
            server.port = int(first.stdout.readline().decode().rsplit(":", 1)[1].split("/")[0])
            ends = []

            def ask():
                body = {"prompt": [5, 6, 7], "max_tokens": 1900, "ignore_eos": True}
                ends.append((server.post("/v1/completions", **body), time.monotonic()))

            callers = [threading.Thread(target=ask) for _ in range(3)]
            for caller in callers:
                caller.start()
            deadline = time.monotonic() + HANGS
            while json.loads(server.ask("GET", "/debug/steps")[1]).get("steps", []) == []:
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.05)
            begin = time.monotonic()
            other.send_signal(sent)
            for caller in callers:
                caller.join()
            for (status, body), end in ends:
                self.assertGreaterEqual(status, 500, body)
                self.assertLess(end - begin, 10)
            status, body = server.post("/v1/completions", prompt="x", max_tokens=2)
            self.assertEqual(status, 503, body)
            self.assertIn(expected, body["error"]["message"])
            status, text = server.ask("GET", "/health")
            self.assertEqual(status, 503, text)
            self.assertIn(expected, text)
        finally:
            other.kill()
            first.send_signal(signal.SIGTERM)
            log = first.communicate(timeout=HANGS)[1].decode()
            other.communicate(timeout=HANGS)
        self.assertRegex(log, rf"(?m)^quantspec: error: request \S+ /v1/completions status 500 .* error .*{expected}")

    def test_a_killed_rank_ends_every_request(self):
        self.end_one(signal.SIGKILL, "rank 1 has ended")

    def test_a_rank_that_hangs_does_too(self):
        self.end_one(signal.SIGSTOP, "rank 1 did not come")

    def test_on_several_machines_too(self):
        self.end_one(signal.SIGKILL, "rank 1 has ended", on_machines)
        self.end_one(signal.SIGSTOP, "rank 1 did not come", on_machines)


    def test_a_rank_without_memory_ends_both(self):
        """At whatever step it runs out of it: all end, rank 0 with the text or with an error."""
        options = [*Same.OPTIONS, "-m", str(self.models["llama"]), "-c", "2048"]
        whole = text_of(generate(*options))
        ends = {}
        for megabytes in range(40, 400, 3):
            def limit(bytes_of_memory=megabytes << 20):
                resource.setrlimit(resource.RLIMIT_AS, (bytes_of_memory, bytes_of_memory))

            job = f"memory-{os.getpid()}-{megabytes}"
            command = [cli_support.binary, "generate", "-t", "1", *options, "--ranks", "launched"]
            with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as other_said:
                first = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said,
                                         env=launched(0, 2, job))
                other = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                         stderr=other_said, env=launched(1, 2, job), preexec_fn=limit)
                has_failed = other.wait(HANGS) != 0
                # Who could not even come to the meeting is waited for, for a minute, unless the launcher
                # ends all; what rank 0 says then, tests of src/comm see.
                if has_failed and b"memory" not in text_in(other_said):
                    first.kill()
                while has_failed and first.poll() is None:
                    if b"of 2 ranks 1 are here" in text_in(said):
                        first.kill()
                    time.sleep(0.02)
                out = first.communicate(timeout=HANGS)[0]
                errors = text_in(said)
            if first.returncode == 0:
                self.assertEqual(out, whole)
                ends["text"] = megabytes
                break
            if first.returncode == 1:
                self.assertRegex(errors.decode(),
                                 r"(?m)^quantspec: error: .*(memory|could not|ranks of this model|rank 1)")
                ends["error"] = megabytes
        self.assertEqual(set(ends), {"text", "error"}, ends)


if __name__ == "__main__":
    cli_support.main(__doc__)
