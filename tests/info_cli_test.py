#!/usr/bin/env python3
"""End-to-end tests of `quantspec info` and `quantspec tokenize`. Usage: info_cli_test.py BINARY
[unittest arguments]. Standard library only.
"""

import json

import cli_support
from cli_support import MODEL, CliTest, quantspec


class Info(CliTest):
    def test_info(self):
        done = quantspec("info", "-m", str(MODEL), "-c", "5000")
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        text = done.stdout.decode()
        for word in ("llama", "8192 tokens", "32768", " 5000 ", "backend  ", "MB are free"):
            self.assertIn(word, text)
        for line in text.splitlines():
            self.assertLessEqual(len(line), 80)

    def test_info_says_one_largest_context(self):
        report = json.loads(quantspec("info", "--json").stdout)
        text = quantspec("info").stdout.decode()
        largest = report["largest_context"]
        self.assertLessEqual(largest, report["max_positions"])
        self.assertRegex(text, rf"(?m)^fits +(all )?{largest} (tokens of the model|of the model's)")

    def test_info_json(self):
        done = quantspec("info", "--json", "-c", "5000")
        report = json.loads(done.stdout)
        self.assertEqual((report["num_layers"], report["page_size"]), (6, 128))
        self.assertRegex(report["backend"], r"^(cpu|cuda) ")
        plan = next(plan for plan in report["plans"] if plan["context"] == 5000)
        parts = ("weights_bytes", "draft_weights_bytes", "kv_bytes", "ring_bytes", "prefill_bytes")
        self.assertEqual(plan["total_bytes"], sum(plan[part] for part in parts))
        self.assertEqual(plan["kv_fp16_bytes"], 5000 * 6 * 512 * 2 * 2)
        self.assertIs(plan["fits"], True)

    def test_info_says_what_choices_of_weights_cost(self):
        report = json.loads(quantspec("info", "--json", "--draft-weights", "4").stdout)
        rows = {(row["target_weights"], row["draft_weights"]): row for row in report["weights"]}
        self.assertEqual(len(rows), 8)
        self.assertEqual([key for key, row in rows.items() if row["default"]],
                         [("checkpoint", "auto")])
        chosen = rows["checkpoint", "4"]
        for key in ("weights_bytes", "draft_weights_bytes"):
            self.assertEqual(chosen[key], report["plans"][0][key])
        self.assertEqual(rows["8", "auto"]["draft_weights_bytes"], 0)
        text = quantspec("info").stdout.decode()
        for target in ("checkpoint", "8"):
            sums = (sum(rows[target, drafts][key] for key in
                        ("weights_bytes", "draft_weights_bytes")) / 1e6
                    for drafts in ("full", "4", "8", "auto"))
            self.assertIn(f"\n{target:10}" + "".join(f"{mb:9.1f}" for mb in sums) + "\n", text)

    def test_info_says_what_does_not_fit(self):
        args = ("info", "-c", str(1 << 28))
        self.assertRegex(quantspec(*args).stdout.decode(), rf"(?m)^{1 << 28} .* \*$")
        self.assertIs(json.loads(quantspec(*args, "--json").stdout)["plans"][-1]["fits"], False)

    def test_info_follows_its_options(self):
        def plan(*args):
            return json.loads(quantspec("info", "--json", *args).stdout)["plans"][0]
        self.assertLess(plan("--draft-weights", "4")["draft_weights_bytes"],
                        plan("--draft-weights", "8")["draft_weights_bytes"])
        self.assertEqual(plan("--draft-weights", "full")["draft_weights_bytes"], 0)
        self.assertLess(plan("--page-size", "64")["ring_bytes"], plan()["ring_bytes"])


class Tokenize(CliTest):
    def test_tokenize(self):
        done = quantspec("tokenize", "-p", "dark night\n é")
        self.assertEqual(done.returncode, 0)
        lines = done.stdout.decode().splitlines()
        self.assertEqual(lines[0].split(None, 1), ["1", "(begin of text)"])
        self.assertEqual(done.stderr.decode(), f"{len(lines)} tokens\n")
        report = json.loads(quantspec("tokenize", "--json", "-p", "dark night\n é").stdout)
        self.assertEqual(list(report), ["tokens", "pieces", "count"])
        self.assertEqual([int(line.split()[0]) for line in lines], report["tokens"])
        self.assertEqual(report["count"], len(lines))
        self.assertEqual("".join(report["pieces"]), "dark night\n é")

    def test_tokenize_ids(self):
        ids = quantspec("tokenize", "--ids", stdin="dark night\n").stdout.split()
        without = quantspec("tokenize", "--ids", "--no-bos", "-p", "dark night").stdout.split()
        self.assertEqual(ids, [b"1"] + without)


if __name__ == "__main__":
    cli_support.main(__doc__)
