#!/usr/bin/env python3
"""End-to-end tests of the command line. Usage: cli_test.py BINARY [unittest arguments]

Runs the binary on the bundled model with short texts. Standard library only.
"""

import json
import os
import pty
import re
import select
import signal
import subprocess
import tempfile

import cli_support
from cli_support import (HANGS, MODEL, PROMPT, ROOT, CliTest, Folder, environment, generate,
                         generate_json, quantspec, replace)

RUN_KEYS = ["text", "tokens", "prompt_tokens", "cached_tokens", "predicted_tokens", "stop_reason", "seed", "sampling",
            "backend", "timings", "speculation", "memory"]
TIMINGS_KEYS = ["load_ms", "prefill_ms", "decode_ms", "prefill_tokens_per_second",
                "decode_tokens_per_second"]
SPECULATION_KEYS = ["rounds", "draft_n", "draft_n_accepted", "lookup_n", "lookup_n_accepted",
                    "acceptance_rate",
                    "acceptance_per_token", "tokens_per_round", "draft_len_mean",
                    "accepted_per_position", "draft_choice"]
MEMORY_KEYS = ["weights_bytes", "draft_weights_bytes", "kv_bytes", "ring_bytes",
               "kv_fp16_bytes", "peak_rss_bytes"]


COMMANDS = [["generate"], ["chat"], ["serve"], ["info"], ["tokenize"], ["bench"], ["prepare"], ["roofline"],
            ["eval", "perplexity"], ["eval", "axes"], ["eval", "fidelity"], ["eval", "prefill"],
            ["eval", "targets"], ["eval", "sensitivity"], ["eval", "lossless"]]


class Usage(CliTest):
    def test_version(self):
        done = quantspec("--version")
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stdout.decode(), r"^quantspec \d+\.\d+\.\d+\n$")

    def test_help_fits_80_columns(self):
        for args in [[]] + COMMANDS:
            done = quantspec(*args, "--help")
            self.assertEqual((done.returncode, done.stderr), (0, b""))
            self.assertIn("Example", done.stdout.decode())
            for line in done.stdout.decode().splitlines():
                self.assertLessEqual(len(line), 80, line)

    def test_help_names_every_option(self):
        text = quantspec("generate", "--help").stdout.decode()
        for option in ("--model --prompt --file --predict --ctx-size --threads --temp --top-k "
                       "--top-p --min-p --repeat-penalty --presence-penalty --frequency-penalty "
                       "--logit-bias --min-tokens --seed --stop --ignore-eos --session --draft-len "
                       "--draft-weights --spec-sampling --page-size --backend --device --compare --json "
                       "--color --quiet --verbose --help").split():
            self.assertIn(option, text)

    def test_every_flag_that_messages_name_is_an_option(self):
        table = (ROOT / "apps" / "cli" / "flags.cc").read_text(encoding="utf-8")
        flags = re.findall(r'\{field::\w+, "[a-z ]*(--[a-z0-9-]+)', table)
        self.assertGreater(len(flags), 30)
        self.assertEqual(len(flags), table.count("{field::"))
        helps = "".join(quantspec(*args, "--help").stdout.decode() for args in COMMANDS)
        for flag in flags:
            self.assertRegex(helps, re.compile(rf"^  (-.,)?{flag} ", re.MULTILINE))

    def test_what_cannot_be_is_refused_with_code_2(self):
        wrong = [
            (["--drft-len", "3"], "--drft-len"),
            (["stray"], "stray"),
            (["--json=no"], "json"),
            (["--temp", "-1"], "--temp"),
            (["--temp", "nan"], "--temp"),
            (["--temp", "inf"], "--temp"),
            (["--temp", "0.5x"], "--temp"),
            (["--top-p", "0"], "--top-p"),
            (["--top-p", "1.5"], "--top-p"),
            (["--min-p", "-0.1"], "--min-p"),
            (["--top-k", "-1"], "--top-k"),
            (["--repeat-penalty", "0"], "--repeat-penalty"),
            (["--presence-penalty", "2.1"], "--presence-penalty"),
            (["--frequency-penalty", "-3"], "--frequency-penalty"),
            (["--logit-bias", "7"], "as 15043+5 or 15043-100"),
            (["--logit-bias", "7+x"], "--logit-bias '7+x'"),
            (["--logit-bias", "-7+1"], "--logit-bias '-7+1'"),
            (["--min-tokens", "-1"], "--min-tokens"),
            (["--seed", "-1"], "--seed"),
            (["--seed", "18446744073709551616"], "--seed"),
            (["--draft-len", "99"], "--draft-len"),
            (["--draft-len", "17"], "from 0 to 16"),
            (["--draft-len", "-1"], "--draft-len"),
            (["--draft-weights", "5"], "auto, 4, 8, full"),
            (["--spec-sampling", "x"], "rejection, coupled"),
            (["--page-size", "7"], "--page-size"),
            (["--backend", "x"], "auto, cuda, cpu, reference"),
            (["--backend", "cpu", "--device", "0"], "--device 0: is of --backend cuda"),
            (["--device", "-1"], "--device '-1': must be a whole number from 0"),
            (["--color", "x"], "auto, always, never"),
            (["-n", "0"], "--predict"),
            (["-n", "-2"], "--predict"),
            (["-n", "1e3"], "--predict"),
            (["-n", "99999999999"], "--predict"),
            (["-n"], "--predict"),
            (["-c", "0"], "--ctx-size"),
            (["-c", "2000000000"], "--ctx-size"),
            (["-t", "0"], "--threads"),
            (["-t", "two"], "--threads"),
            (["-q", "-v"], "--quiet"),
            (["--compare", "--draft-len", "0"], "plain decoding"),
            (["--compare", "-q"], "--json"),
            (["--stop", ""], "--stop"),
            (["--kv-cache", "fp8"], "hierarchical, full"),
            (["-f", "x.txt"], "--file"),
            (["--stop"], "--stop"),
        ]
        for args, word in wrong:
            with self.subTest(args=args):
                self.check_error(quantspec("generate", "-p", PROMPT, *args), 2, word)

    def test_a_subcommand_is_needed(self):
        self.check_error(quantspec(), 2, "generate, chat, info, tokenize")

    def test_what_is_near_a_name_is_asked_after(self):
        for typed, name in ((["genrate"], "generate"), (["generate", "--drft-len", "3"], "--draft-len"),
                            (["generate", "--tempt=1"], "--temp"), (["generate", "--ctx", "9"],
                            "--ctx-size"), (["eval", "perplexty"], "perplexity"),
                            (["eval", "perplexity", "--token", "9"], "--tokens"),
                            (["generate", "--temperature", "1"], "--temp")):
            self.check_error(quantspec(*typed), 2, f"; did you mean {name}?")
        self.assertNotIn(b"did you mean", quantspec("generate", "--xyzzyxyzzy").stderr)

    def test_the_last_of_an_option_counts(self):
        twice = generate_json("-p", PROMPT, "-n", "9", "-n", "5", "--temp", "2", "--temp", "0")
        self.assertEqual(twice["tokens"], generate_json("-p", PROMPT, "-n", "5", "--temp", "0")["tokens"])

    def test_more_threads_than_processors_are_warned_of(self):
        done = quantspec("generate", "-c", "512", "-n", "2", "-p", PROMPT, "-t", "1000")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(b"quantspec: warning: --threads 1000: this process may use ", done.stderr)

    def test_a_prompt_is_needed(self):
        self.check_error(quantspec("generate", "-p", ""), 2, "empty")
        self.check_error(quantspec("generate", stdin=""), 2, "empty")
        master, slave = pty.openpty()
        done = subprocess.run([cli_support.binary, "generate"], stdin=slave, capture_output=True,
                              timeout=HANGS, env=environment())
        self.check_error(done, 2, "no prompt", "-p")
        os.write(master, b"word\n\x04")  # what -f - asks for, a terminal has, too
        done = subprocess.run([cli_support.binary, "tokenize", "-f", "-"], stdin=slave,
                              capture_output=True, timeout=HANGS, env=environment())
        os.close(master)
        os.close(slave)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(b"word", done.stdout)

    def test_an_empty_path_is_refused(self):
        for option in ("--model", "--draft-store"):
            self.check_error(generate("-p", PROMPT, option, ""), 2, f"{option} '': must be a path")


class BadInput(CliTest):
    def test_missing_prompt_file(self):
        self.check_error(quantspec("generate", "-f", "/nonexistent/x.txt"), 1, "/nonexistent/x.txt")

    def test_missing_model_folder(self):
        done = quantspec("generate", "-m", "/nonexistent", "-p", PROMPT)
        self.check_error(done, 1, "/nonexistent")

    def test_a_backend_that_is_not_there(self):
        done = generate("--backend", "cuda", "-p", PROMPT, "-n", "2")
        if done.returncode == 0:
            self.skipTest("there is a GPU")
        self.check_error(done, 1, "--backend cuda: ", "--backend auto or cpu works")

    def test_a_device_that_is_not_there(self):
        done = quantspec("info", "--device", "999")
        if b"there is" in done.stderr or b"there are" in done.stderr:
            self.check_error(done, 2, "--device 999: there ", "0 (")
        else:
            self.check_error(done, 1, "--device 999: ", "without it, --backend auto or cpu works")

    def test_model_folder_without_tokenizer(self):
        with Folder() as model:
            (model / "tokenizer.model").unlink()
            done = quantspec("generate", "-m", str(model), "-p", PROMPT)
            self.check_error(done, 1, str(model), "tokenizer")

    def test_truncated_weights(self):
        with Folder() as model:
            weights = model / "model.safetensors"
            replace(weights, (MODEL / "model.safetensors").read_bytes()[:1_000_000])
            done = quantspec("generate", "-m", str(model), "-p", PROMPT)
            self.check_error(done, 1, "model.safetensors")

    def test_broken_config(self):
        with Folder() as model:
            replace(model / "config.json", b'{"model_type": "llama", ')
            done = quantspec("generate", "-m", str(model), "-p", PROMPT)
            self.check_error(done, 1, "config.json", "JSON")

    def test_prompt_longer_than_the_context(self):
        done = quantspec("generate", "-p", PROMPT, "-c", "8")
        self.check_error(done, 1, "context", "8")

    def test_context_that_cannot_fit_in_memory(self):
        done = quantspec("generate", "-p", PROMPT, "-c", "200000000", "-q")
        self.check_error(done, 1, "200000000", "the largest that fits is --ctx-size")

    def test_standard_output_that_cannot_be_written(self):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([cli_support.binary, "generate", "-q", "-t", "1", "-p", PROMPT], stdout=full,
                                  stderr=subprocess.PIPE, timeout=HANGS)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"No space left", done.stderr)

    def test_reader_that_goes_away_ends_it_quietly(self):
        for reset_sigpipe in (True, False):  # False: SIGPIPE stays ignored, as Python has it
            # A text that has no end, so that there is always more to be written.
            process = subprocess.Popen([cli_support.binary, "generate", "-q", "-t", "1", "-p", PROMPT, "-n",
                                        "-1", "--ignore-eos"],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                       restore_signals=reset_sigpipe)
            process.stdout.read(1)
            process.stdout.close()
            self.assertIn(process.wait(timeout=HANGS), (-signal.SIGPIPE, 128 + signal.SIGPIPE))
            self.assertEqual(process.stderr.read(), b"")
            process.stderr.close()


class Generate(CliTest):
    def test_standard_output_carries_only_the_text(self):
        args = ["-p", PROMPT, "-n", "16", "--temp", "0"]
        done = generate(*args)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.decode(), generate_json(*args)["text"])
        self.assertIn(b"tokens/s", done.stderr)
        self.assertNotIn(b"\x1b", done.stdout + done.stderr)
        self.assertNotIn(b"\r", done.stderr)
        for line in done.stderr.decode().splitlines():
            self.assertLessEqual(len(line), 80)

    def test_json_has_the_documented_keys(self):
        run = generate_json("-p", PROMPT, "-n", "12", "-s", "5", "--draft-len", "3")
        self.check_run(run)
        self.assertEqual(list(run), RUN_KEYS)
        self.assertEqual(run["seed"], 5)
        self.assertEqual(run["predicted_tokens"], 12)
        self.assertEqual(run["stop_reason"], "length")

    def check_run(self, run):
        self.assertEqual(list(run["timings"]), TIMINGS_KEYS)
        self.assertEqual(list(run["speculation"]), SPECULATION_KEYS)
        self.assertEqual(list(run["memory"]), MEMORY_KEYS)
        self.assertIsInstance(run["text"], str)
        self.assertEqual(len(run["tokens"]), run["predicted_tokens"])
        self.assertGreater(run["prompt_tokens"], 0)
        for group in (run["timings"], run["memory"]):
            for key, value in group.items():
                self.assertGreaterEqual(value, 0, key)
        speculation = run["speculation"]
        self.assertLessEqual(speculation["draft_n_accepted"], speculation["draft_n"])
        self.assertLessEqual(len(speculation["accepted_per_position"]), 16)
        for rate in speculation["accepted_per_position"]:
            self.assertTrue(0 <= rate <= 1)

    def test_compare(self):
        done = generate("--compare", "--json", "-p", PROMPT, "-n", "24", "-s", "3", "--draft-len",
                        "4")
        self.assertEqual(done.returncode, 0, done.stderr)
        run = json.loads(done.stdout)
        self.assertEqual(list(run), RUN_KEYS + ["baseline", "speedup", "identical"])
        self.check_run(run)
        self.check_run(run["baseline"])
        self.assertIs(run["identical"], True)  # --compare implies coupled sampling
        self.assertEqual(run["tokens"], run["baseline"]["tokens"])
        self.assertEqual(run["baseline"]["speculation"]["draft_n"], 0)
        self.assertGreater(run["speculation"]["draft_n"], 0)
        self.assertGreater(run["speedup"], 0)
        table = done.stderr.decode()
        self.assertIn("identical output: yes", table)
        for row in ("prefill tokens/s", "decode tokens/s", "speed-up", "acceptance",
                    "tokens per round", "mean draft length", "KV cache", "KV cache in fp16"):
            self.assertRegex(table, rf"(?m)^{row}  ")

    def test_a_prediction_is_looked_up_in_and_changes_nothing(self):
        plain = generate("-p", PROMPT, "-n", "40", "--temp", "0", "--draft-len", "0", "-q")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "prediction.txt")
            with open(path, "wb") as file:
                file.write(plain.stdout)
            # The rule that chooses a length goes by the clock, and may look nothing up.
            done = generate("-p", PROMPT, "-n", "40", "--temp", "0", "--plan", "lookup", "--json",
                            "--draft-len", "8", "--prediction", path)
            run = json.loads(done.stdout)
            self.assertEqual(run["text"].encode(), plain.stdout.removesuffix(b"\n"))
            self.assertGreater(run["speculation"]["lookup_n_accepted"], 4)
            refused = generate("-p", PROMPT, "--plan", "quantspec", "--prediction", path)
            self.check_error(refused, 2, "looks nothing up")
        missing = generate("-p", PROMPT, "--prediction", "/nothing/there")
        self.check_error(missing, 1, "cannot read /nothing/there")

    def test_every_plan_gives_the_same_text(self):
        prompt = " ".join([PROMPT] * 60)
        for plan in ["auto", "quantspec+sparse+w8", "layer-skip:1,4"]:
            budget = [] if plan.startswith("layer-skip") else ["--draft-budget", "256"]
            done = generate("--compare", "--json", "-p", prompt, "-n", "24", "--temp", "0",
                            "--plan", plan, "--draft-len", "3", *budget)
            self.assertEqual(done.returncode, 0, done.stderr)
            run = json.loads(done.stdout)
            self.assertIs(run["identical"], True, plan)
            self.assertGreater(run["speculation"]["draft_n"], 0)
        self.check_error(generate("-p", prompt, "--plan", "quantspek"), 2, "quantspec, weights-only")
        for other in ("--draft-len 0", "--draft-weights 4", "--kv-cache full"):
            self.check_error(generate("-p", prompt, "--draft-budget", "256", *other.split()), 2,
                             "--draft-budget 256: is for sparse plans")
        self.check_error(generate("-p", prompt, "--plan", "quantspec+w4+w8"), 2,
                         "exclude each other")
        self.check_error(generate("-p", prompt, "--plan", "kv-only", "--draft-budget", "256"), 2,
                         "reads all pages")
        for other in ("--draft-weights 8", "--kv-cache full"):
            self.check_error(generate("-p", prompt, "--plan", "kv-only", *other.split()), 2,
                             "exclude each other")
        self.check_error(generate("-p", prompt, "--plan", "snapkv+w4", "--draft-budget", "256"), 2,
                         "--plan snapkv+w4: drafts that gather tokens are for quantspec bench and")
        self.check_error(generate("-p", prompt, "--draft-budget", "1/1"), 2,
                         "--draft-budget '1/1': must be tokens, from 1 to 268435456, or a share "
                         "such as 1/4")
        self.check_error(generate("-p", prompt, "--draft-store", "/nowhere"), 1, "/nowhere")

    def test_a_share_is_of_a_text_of_any_length(self):
        texts = {generate_json("-p", PROMPT, "-n", "40", "--temp", "0", *plan)["text"]
                 for plan in (("--draft-len", "0"), ("--plan", "quantspec+sparse"),
                              ("--plan", "quantspec+bounds", "--draft-budget", "1/8"))}
        self.assertEqual(len(texts), 1)

    def test_a_name_is_one_plan_and_auto_is_the_default(self):
        def choice(*args):
            done = generate("--json", "-p", PROMPT, "-n", "16", "--temp", "0", *args)
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)["speculation"]["draft_choice"]
        for args in ((), ("--plan", "auto"), ("--draft-weights", "auto")):
            for plan in ("quantspec", "quantspec+w8", "weights-only+w8"):
                self.assertRegex(choice(*args), rf"{re.escape(plan)}\b")
        for args in (("--plan", "quantspec"), ("--draft-weights", "4")):
            self.assertNotIn("w8", choice(*args))
        long = ("-p", " ".join([PROMPT] * 60))
        done = generate("--json", *long, "-n", "16", "--temp", "0", "--draft-budget", "256")
        self.assertIn("quantspec+sparse@256",
                      json.loads(done.stdout)["speculation"]["draft_choice"])

    def test_rejection_sampling_is_not_comparable(self):
        done = generate("--compare", "--json", "-p", PROMPT, "-n", "8", "--spec-sampling",
                        "rejection", "--temp", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIsNone(json.loads(done.stdout)["identical"])
        self.assertIn("not comparable", done.stderr.decode())

    def test_greedy_text_does_not_depend_on_the_draft_length(self):
        texts = {generate_json("-p", PROMPT, "-n", "40", "--temp", "0", "--draft-len", length)["text"]
                 for length in ("0", "4", "auto")}
        self.assertEqual(len(texts), 1)

    def test_a_seed_repeats_the_text(self):
        def run(*args):
            return generate_json("-p", PROMPT, "-n", "32", *args)
        self.assertEqual(run("-s", "7")["text"], run("-s", "7", "--draft-len", "0")["text"])
        self.assertNotEqual(run("-s", "7")["text"], run("-s", "8")["text"])
        mode = run("-s", "7")["sampling"]["spec_sampling"]
        self.assertEqual(mode, {"value": "coupled", "from": "--seed"})
        mode = run()["sampling"]["spec_sampling"]
        self.assertEqual(mode, {"value": "rejection", "from": "default"})

    def test_a_seed_that_may_not_repeat_is_said_so(self):
        def warned(*args):
            done = generate("-p", PROMPT, "-n", "4", *args)
            self.assertEqual(done.returncode, 0, done.stderr)
            return b"warning: --spec-sampling rejection: the seed may give another" in done.stderr
        rejection = ("-s", "7", "--spec-sampling", "rejection")
        self.assertTrue(warned(*rejection))
        self.assertTrue(warned(*rejection, "--draft-len", "3"))
        self.assertFalse(warned(*rejection, "--draft-len", "3", "--plan", "quantspec"))
        self.assertFalse(warned(*rejection, "--draft-len", "0"))
        self.assertFalse(warned(*rejection, "--temp", "0"))
        self.assertFalse(warned("-s", "7"))
        self.assertFalse(warned("--spec-sampling", "rejection"))

    def test_biases_force_and_forbid(self):
        text = generate_json("-p", PROMPT, "-n", "6", "--temp", "0", "--ignore-eos")["text"]
        forced = generate_json("-p", PROMPT, "-n", "6", "--temp", "0", "--ignore-eos", "--logit-bias", "300+100",
                               "--logit-bias", "301-100")["text"]
        self.assertNotEqual(forced, text)
        self.assertEqual(len(set(forced.split())), 1, forced)
        refused = quantspec("generate", "-p", PROMPT, "--logit-bias", "300+101")
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("--logit-bias of token 300 is 101", refused.stderr.decode())

    def test_sampling_says_where_its_values_come_from(self):
        with Folder() as model:
            replace(model / "generation_config.json",
                    b'{"top_p": 0.5, "min_p": 0.125, "eos_token_id": 2}')
            args = ("-m", str(model), "-p", PROMPT, "-n", "2", "--temp", "0.3", "-s", "9",
                    "--repeat-last-n", "32")
            sampling = generate_json(*args)["sampling"]
            log = generate(*args, "-v").stderr.decode()
        self.assertEqual(sampling["temperature"], {"value": 0.3, "from": "option"})
        self.assertEqual(sampling["top_p"], {"value": 0.5, "from": "generation_config.json"})
        self.assertEqual(sampling["top_k"], {"value": 40, "from": "default"})
        self.assertEqual(sampling["min_p"], {"value": 0.125, "from": "generation_config.json"})
        self.assertEqual(sampling["repeat_last_n"], {"value": 32, "from": "option"})
        self.assertEqual(sampling["seed"], {"value": 9, "from": "option"})
        self.assertEqual(set(sampling), {"temperature", "top_k", "top_p", "min_p", "repeat_penalty",
                                         "repeat_last_n", "presence_penalty",
                                         "frequency_penalty", "seed", "spec_sampling"})
        for words in ("--temp 0.3 (option)", "--top-p 0.5 (generation_config.json)",
                      "--seed 9 (option)", "--spec-sampling coupled (--seed)"):
            self.assertIn(words, log)

    def test_a_chat_template_that_is_not_used_is_said_so(self):
        def log(model):
            return generate("-v", "-m", str(model), "-p", PROMPT, "-n", "2").stderr.decode()
        self.assertNotIn("chat template", log(MODEL))
        with Folder() as model:
            (model / "chat_template.jinja").write_text("{{ messages }}")
            self.assertIn("has a chat template, which --chat uses", log(model))
        with Folder() as model:
            replace(model / "tokenizer_config.json", b'{"chat_template": "{{ messages }}"}')
            self.assertIn("has a chat template, which --chat uses", log(model))

    def test_stop_texts_end_the_text_and_are_not_part_of_it(self):
        args = ["-p", PROMPT, "-n", "40", "--temp", "0"]
        text = generate_json(*args)["text"]
        words = text.split()
        first, second = words[3], words[6]
        cut = generate_json(*args, "--stop", "no such text", "--stop", second, "--stop", first)
        self.assertEqual(cut["stop_reason"], "stop")
        self.assertEqual(cut["text"], text[:min(text.index(first), text.index(second))])

    def test_ignore_eos_goes_on(self):
        # A model whose end of text is a token that it does write.
        args = ["-p", PROMPT, "-n", "20", "--temp", "0"]
        tokens = generate_json(*args)["tokens"]
        with Folder() as model:
            config = json.loads((MODEL / "config.json").read_text())
            config["eos_token_id"] = tokens[5]
            replace(model / "config.json", json.dumps(config).encode())
            (model / "generation_config.json").unlink()
            ended = generate_json("-m", str(model), *args)
            went_on = generate_json("-m", str(model), "--ignore-eos", *args)
        first = tokens.index(tokens[5])
        self.assertEqual(ended["stop_reason"], "eos")
        self.assertEqual(ended["tokens"], tokens[:first + 1])
        self.assertEqual(went_on["tokens"], tokens)

    def test_sampling_defaults_come_from_the_model(self):
        args = ["-p", PROMPT, "-n", "16", "--draft-len", "0"]
        greedy = generate_json(*args, "--temp", "0")["text"]
        with Folder() as model:
            replace(model / "generation_config.json", b'{"do_sample": false, "eos_token_id": 2}')
            self.assertEqual(generate_json("-m", str(model), *args)["text"], greedy)

    def test_context_that_gets_full(self):
        run = generate_json("-p", PROMPT, "-c", "32", "-n", "-1", "--temp", "0", "--ignore-eos")
        self.assertEqual(run["stop_reason"], "context")

    def test_quiet_says_nothing(self):
        done = generate("-q", "-p", PROMPT, "-n", "8")
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertNotEqual(done.stdout, b"")

    def test_verbose_says_what_was_chosen(self):
        log = generate("-v", "-p", PROMPT, "-n", "8", "-s", "41").stderr.decode()
        self.assertIn("seed 41", log)
        self.assertRegex(log, r"debug: backend \S")
        # Why auto is not the GPU, where it is not.
        self.assertEqual("debug: backend cuda" in log, "auto takes the CPU: " not in log)
        self.assertRegex(log, r"debug: decode: \S")

    def test_color_tints_drafted_text_and_nothing_else(self):
        args = ["-p", PROMPT, "-n", "24", "--temp", "0", "--draft-len", "4"]
        plain = generate(*args, "--color", "never")
        tinted = generate(*args, "--color", "always")
        self.assertNotIn(b"\x1b", plain.stdout + plain.stderr)
        self.assertIn(b"\x1b[32m", tinted.stdout)
        self.assertIn(b"\x1b[32m", tinted.stderr)  # the legend
        self.assertEqual(re.sub(rb"\x1b\[\d+m", b"", tinted.stdout), plain.stdout)
        undrafted = generate(*args[:-1], "0", "--color", "always")
        self.assertEqual(undrafted.stdout, plain.stdout)

    def test_prompt_from_standard_input_and_from_a_file(self):
        args = ["-n", "8", "--temp", "0"]
        text = generate("-p", PROMPT, *args).stdout
        self.assertEqual(generate(*args, stdin=PROMPT + "\n").stdout, text)
        with tempfile.NamedTemporaryFile() as file:
            file.write(PROMPT.encode())
            file.flush()
            self.assertEqual(generate("-f", file.name, *args).stdout, text)

    def test_model_from_the_environment(self):
        done = generate("-p", PROMPT, env=environment(QUANTSPEC_MODEL="/nonexistent"))
        self.check_error(done, 1, "/nonexistent")
        done = generate("-p", PROMPT, "-n", "2", env=environment(QUANTSPEC_MODEL=str(MODEL)))
        self.assertEqual(done.returncode, 0, done.stderr)


class Interrupt(CliTest):
    def test_ctrl_c_ends_with_the_summary_and_130(self):
        process = subprocess.Popen([cli_support.binary, "generate", "-p", PROMPT, "-n", "-1", "--ignore-eos",
                                    "-t", "1"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env=environment())
        process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=HANGS)
        self.assertEqual(process.returncode, 130, err)
        self.assertIn(b"decode ", err)
        self.assertIn(b"interrupted", err)
        out.decode()  # UTF-8 to the last byte

    def test_sigterm_ends_with_the_summary_and_143(self):
        process = subprocess.Popen([cli_support.binary, "generate", "-p", PROMPT, "-n", "-1", "--ignore-eos",
                                    "-t", "1"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env=environment())
        process.stdout.read(1)
        process.terminate()
        out, err = process.communicate(timeout=HANGS)
        self.assertEqual(process.returncode, 143, err)
        self.assertIn(b"interrupted", err)
        out.decode()

    def test_ctrl_c_before_the_text(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write((PROMPT + ". ").encode() * 2000)
            file.flush()
            process = subprocess.Popen([cli_support.binary, "generate", "-f", file.name, "-v", "-t", "1"],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                       env=environment())
            for line in process.stderr:  # ends with the process, should it end
                if b"seed" in line:
                    break  # the prompt is read next, and that takes seconds
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=HANGS)
        self.assertEqual((process.returncode, out), (130, b""))
        self.assertEqual(err, b"quantspec: interrupted\n")


class Terminal(CliTest):
    def run_on_terminal(self, *args, env):
        """Everything the binary writes to a terminal of 80 columns."""
        pid, terminal = pty.fork()
        if pid == 0:
            os.execve(cli_support.binary, [cli_support.binary, *args], env)
        written = b""
        while select.select([terminal], [], [], HANGS)[0]:
            try:
                chunk = os.read(terminal, 65536)
            except OSError:  # the other side is closed
                break
            written += chunk
        os.close(terminal)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), written

    def test_color_is_for_terminals_that_want_it(self):
        args = ["generate", "-p", PROMPT, "-n", "24", "--temp", "0", "--draft-len", "4", "-t", "1"]
        for wanted, changes in [(True, {"TERM": "xterm"}), (False, {"TERM": "dumb"}),
                                (False, {"TERM": "xterm", "NO_COLOR": "1"})]:
            with self.subTest(changes):
                code, written = self.run_on_terminal(*args, env=environment(**changes))
                self.assertEqual(code, 0, written)
                self.assertEqual(b"\x1b[32m" in written, wanted, written)
                if not wanted:
                    self.assertNotIn(b"\x1b", written)


if __name__ == "__main__":
    cli_support.main(__doc__)
