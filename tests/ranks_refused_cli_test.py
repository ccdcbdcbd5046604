#!/usr/bin/env python3
"""What ranks cannot do is refused before a model is loaded. Usage: ranks_refused_cli_test.py BINARY
[unittest arguments]. Standard library only."""

import unittest

import cli_support
from cli_support import CliTest, Folder, quantspec, replace

TEXT = f"text:{cli_support.ROOT}/prompts/the-lighthouse-clock.txt"
SHARED = ["--ranks", "2", "--context-ranks", "2"]


class Refused(CliTest):
    def test_plans_that_choose_pages_of_a_shared_context(self):
        """By every command that takes plans, typed or its own; the weights are no file to load."""
        eval_options = ["-d", TEXT, "-c", "256", "--prompts", "1", "--tokens", "8"]
        with Folder() as model:
            replace(model / "model.safetensors", b"no weights")
            for command in (["generate", "-p", "x", "--plan", "quantspec+sparse"],
                            ["serve", "--port", "0", "--plan", "quantspec+sparse"],
                            ["bench", "-d", TEXT, "-c", "256", "--plan", "quantspec,quantspec+sparse"],
                            ["bench", "-d", TEXT, "-c", "256", "--plan", "quantspec+sparse", "--streams", "2"],
                            ["eval", "fidelity", *eval_options],
                            ["eval", "prefill", *eval_options, "--plan", "quantspec,quantspec+sparse"],
                            ["eval", "lossless", *eval_options, "--plan", "quantspec+sparse"]):
                with self.subTest(command=command):
                    done = quantspec(*command, "-m", str(model), "-t", "1", *SHARED)
                    plan = "quantspec+sparse" if "--plan" in command else "streaming"  # the first that does
                    self.check_error(done, 2, f"--plan {plan}: it reads some pages or tokens",
                                     "with --context-ranks 2 plans that read all of them work, such as quantspec")
            done = quantspec("bench", "-m", str(model), "-d", TEXT, "-c", "256", "--sweep", "budget", *SHARED)
            self.check_error(done, 2, "--sweep budget measures --plan quantspec+sparse: it reads some pages or tokens",
                             "such as quantspec; --plan takes others")
            self.check_error(quantspec("bench", "-m", str(model), "-d", TEXT, "-c", "256", "--plan", "quick"), 2,
                             "no plan 'quick'")


if __name__ == "__main__":
    cli_support.main(__doc__)
