#!/usr/bin/env python3
"""Starts quantspec serve by llama-server's options, for llama.cpp's own tests of a server (tools/peer_tests.sh).

QUANTSPEC names our program, QUANTSPEC_TEST_MODEL the model that stands for theirs, QUANTSPEC_TEST_ENDS a file that gets
how each server ended. An option that has no counterpart ends it with one line, unless leaving it out changes nothing
that a client sees.
"""

import os
import signal
import subprocess
import sys
import tempfile

# What only says how llama.cpp computes, or names a model; with a value, and without.
IGNORED = {"--hf-repo", "--hf-file", "--model", "--model-url", "--batch-size", "--ubatch-size", "--n-gpu-layers",
           "-fa", "-ctk", "-ctv", "--seed", "--temp"}
IGNORED_FLAGS = {"--offline", "--cont-batching", "--metrics", "--no-slots", "--jinja", "--no-jinja", "--kv-unified", "--verbose"}
SAME = {"--host": "--host", "--port": "--port", "--threads": "--threads", "--parallel": "--parallel",
        "--alias": "--name", "--n-predict": "--max-output", "--chat-template-file": "--chat-template"}


def file_of(text):
    with tempfile.NamedTemporaryFile("w", prefix="quantspec_peer_test", delete=False) as file:
        file.write(text)
    return file.name


def main():
    values, ours = {}, ["-m", os.environ["QUANTSPEC_TEST_MODEL"], "-t", "2"]
    given = sys.argv[1:]
    while given:
        name = given.pop(0)
        if name in IGNORED_FLAGS:
            continue
        if name in IGNORED:
            given.pop(0)
        elif name == "--n-predict" and given[0] == "-1":  # no bound, which is ours
            given.pop(0)
        elif name in SAME:
            values[SAME[name]] = given.pop(0)
        elif name == "--ctx-size":
            values["-c"] = given.pop(0)
        elif (name, given[:1]) in [("--reasoning", ["auto"]), ("--reasoning-format", ["none"])]:  # as it is here
            given.pop(0)
        elif name == "--chat-template" and ("{" in given[0] or " " in given[0]):  # else the name of one of theirs
            ours += ["--chat-template", file_of(given.pop(0))]
        elif name == "--cors-origins":
            for origin in given.pop(0).split(","):
                ours += ["--cors-origin", origin]
        elif name == "--api-key":
            ours += ["--api-key-file", file_of(given.pop(0) + "\n")]
        else:
            sys.exit(f"llama_server: {name} has no counterpart in quantspec serve")
    if "-c" in values:  # theirs is divided among the slots
        values["-c"] = str(int(values["-c"]) // int(values.get("--parallel", "1")))
    for name, value in values.items():
        ours += [name, value]
    server = subprocess.Popen([os.environ["QUANTSPEC"], "serve", *ours])
    signal.signal(signal.SIGTERM, lambda *_: server.terminate())
    code = server.wait()
    with open(os.environ["QUANTSPEC_TEST_ENDS"], "a") as ends:
        ends.write(f"{code}\n")
    sys.exit(max(code, 0))


main()
