#!/usr/bin/env python3
"""Has clients that people use ask quantspec serve: the openai package, lm-eval, and promtool of Prometheus.

    tools/check_clients.py                              all of them, on the bundled model
    tools/check_clients.py -m MODEL.gguf --only openai  of a model with a chat template conversations, too

Answers must be what a plain request gets. lm-eval runs two tiny tasks whose right answers come from such requests,
so that it must find them all. Run it by an interpreter with the packages openai and lm-eval[api]; promtool is in
Debian's package prometheus. Exit code 1: something is not as it should be, or not there.
"""

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from peers.programs import Programs, ROOT
from peers.serving import Server

KEY = "a-key-of-the-check"
PROMPTS = ["It was a dark and stormy night, and", "The captain of the ship said that", "She opened the letter and",
           "In the morning the old man"]
CHECKS = {}


def check(function):
    CHECKS[function.__name__.removeprefix("check_")] = function
    return function


def same(what, a, b):
    if a != b:
        sys.exit(f"check_clients: {what}: {a!r} is not {b!r}")


def plain(server, **body):
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}/v1/completions", json.dumps(body).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=600) as reply:
        return json.loads(reply.read())["choices"]


def refused(what, kind, work):
    try:
        work()
    except kind as error:
        return error
    sys.exit(f"check_clients: {what}: no {kind.__name__}")


@check
def check_openai(server, folder):
    import openai

    url = f"http://127.0.0.1:{server.port}/v1"
    client = openai.OpenAI(base_url=url, api_key=KEY, max_retries=0)
    model = client.models.list().data[0].id
    same("the model by its name", client.models.retrieve(model).id, model)
    body = {"model": model, "prompt": PROMPTS[0], "max_tokens": 24, "temperature": 0.8, "seed": 5}
    direct = plain(server, **body)[0]["text"]
    first = client.completions.create(**body)
    same("a seeded text", first.choices[0].text, direct)
    same("its usage", first.usage.completion_tokens, 24)
    pieces = list(client.completions.create(**body, stream=True, stream_options={"include_usage": True}))
    same("the same in a stream", "".join(c.text for p in pieces for c in p.choices), direct)
    same("a stream's usage", pieces[-1].usage.completion_tokens, 24)
    several = client.completions.create(**{**body, "prompt": PROMPTS[:2]}, n=2, logprobs=2, echo=True)
    same("two texts to two prompts", [c.index for c in several.choices], [0, 1, 2, 3])
    same("echoed", several.choices[0].text, PROMPTS[0] + direct)
    probs = several.choices[0].logprobs
    same("log-probabilities of all tokens", len(probs.tokens), len(probs.token_logprobs))
    with client.completions.create(**{**body, "max_tokens": 400}, stream=True) as stream:
        next(iter(stream))  # and away
    error = refused("a bad value", openai.BadRequestError,
                    lambda: client.completions.create(**{**body, "temperature": -1}))
    same("the bad field", error.param, "temperature")
    refused("a wrong key", openai.AuthenticationError,
            lambda: openai.OpenAI(base_url=url, api_key="wrong", max_retries=0).models.list())
    refused("what is not there", openai.APIStatusError,
            lambda: client.embeddings.create(model=model, input="text", encoding_format="float"))

    async def at_once():
        other = openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0)
        asked = [{**body, "prompt": prompt, "seed": i} for i, prompt in enumerate(PROMPTS * 3)]
        replies = await asyncio.gather(*(other.completions.create(**one) for one in asked))
        return asked, [reply.choices[0].text for reply in replies]

    asked, texts = asyncio.run(at_once())
    same("twelve at once, and each alone", texts, [plain(server, **one)[0]["text"] for one in asked])
    messages = [{"role": "user", "content": "Who are you?"}]
    chat = {"model": model, "messages": messages, "max_completion_tokens": 16, "temperature": 0}
    props = json.loads(urllib.request.urlopen(urllib.request.Request(
        f"http://127.0.0.1:{server.port}/props", headers={"X-Api-Key": KEY})).read())
    if props["has_chat_template"]:
        text = client.chat.completions.create(**chat, logprobs=True, top_logprobs=2).choices[0].message.content
        stream = client.chat.completions.create(**chat, stream=True)
        same("a conversation's answer", "".join(p.choices[0].delta.content or "" for p in stream), text)
        again = client.chat.completions.create(**chat, prediction={"type": "content", "content": text})
        same("the same with a prediction", again.choices[0].message.content, text)
        details = again.usage.completion_tokens_details
        same("most of it accepted", details.accepted_prediction_tokens > 8, True)
    else:
        refused("a conversation without a template", openai.BadRequestError,
                lambda: client.chat.completions.create(**chat))


TASK = """task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: {kind}
doc_to_text: "{{{{prompt}}}}"
{more}
metadata: {{version: 1}}
"""


AS_LM_EVAL = {"add_special_tokens": False}  # it sends ids, without a beginning of text


def log_prob(server, prompt, more):
    """Of `more` behind the prompt, by a request of our own."""
    echoed = plain(server, prompt=prompt + more, max_tokens=1, echo=True, logprobs=0, temperature=0,
                   **AS_LM_EVAL)[0]["logprobs"]
    inside = [p for p, at in zip(echoed["token_logprobs"], echoed["text_offset"])
              if len(prompt) <= at < len(prompt + more)]
    return sum(inside)


@check
def check_lm_eval(server, folder):
    texts = [plain(server, prompt=p, max_tokens=8, temperature=0, **AS_LM_EVAL)[0]["text"] for p in PROMPTS]
    options = [" door", " water", " night"]
    rows = []
    for prompt, text in zip(PROMPTS, texts):
        probs = [log_prob(server, prompt, option) for option in options]
        rows.append({"prompt": prompt, "written": text, "options": options, "likeliest": probs.index(max(probs))})
    data = folder / "rows.json"
    data.write_text("\n".join(json.dumps(row) for row in rows))
    (folder / "tasks").mkdir()
    for name, kind, more in [
        ("likeliest", "multiple_choice", 'doc_to_choice: options\ndoc_to_target: likeliest\ntarget_delimiter: ""\n'
                                         "metric_list: [{metric: acc}]"),
        ("written", "generate_until", 'doc_to_target: "{{written}}"\ngeneration_kwargs: {until: ["@@"], max_gen_toks: 8,'
                                      " do_sample: false, temperature: 0}\nmetric_list: [{metric: exact_match}]")]:
        (folder / "tasks" / f"{name}.yaml").write_text(TASK.format(name=name, data=data, kind=kind, more=more))
    model_args = {"model": "any", "base_url": f"http://127.0.0.1:{server.port}/v1/completions", "num_concurrent": 2,
                  "max_retries": 1, "tokenizer_backend": "remote", "auth_token": KEY, "max_length": 1024}
    script = ("import sys, json, lm_eval, lm_eval.tasks; args, tasks = map(json.loads, sys.argv[1:]);"
              "manager = lm_eval.tasks.TaskManager(include_path=tasks, include_defaults=False);"
              "done = lm_eval.simple_evaluate('local-completions', model_args=args, tasks=['likeliest', 'written'],"
              " task_manager=manager, bootstrap_iters=0);"
              "print(json.dumps({n: r for n, r in done['results'].items()}, default=str))")
    environment = {"OPENAI_API_KEY": KEY, "HF_HOME": str(folder), "HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin",
                   "HOME": str(folder)}
    done = subprocess.run([sys.executable, "-c", script, json.dumps(model_args), json.dumps(str(folder / "tasks"))],
                          env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"check_clients: lm-eval ended with {done.returncode}: {done.stderr[-2000:]}")
    results = json.loads(done.stdout.splitlines()[-1])
    same("lm-eval's likeliest endings", results["likeliest"]["acc,none"], 1.0)
    same("lm-eval's greedy texts", results["written"]["exact_match,none"], 1.0)


@check
def check_promtool(server, folder):
    if not shutil.which("promtool"):
        sys.exit("check_clients: no promtool here; Debian's package prometheus has it")
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}/metrics", headers={"X-Api-Key": KEY})
    text = urllib.request.urlopen(request).read()
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    if done.returncode == 1:
        sys.exit(f"check_clients: promtool: {done.stderr.decode()}")
    for line in done.stderr.decode().splitlines():  # names of vLLM and llama.cpp, which it finds unusual
        if "quantspec" in line:
            sys.exit(f"check_clients: promtool: {line}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", help="(default: the bundled one)", metavar="MODEL")
    parser.add_argument("--only", choices=CHECKS, help="one of these clients")
    parser.add_argument("--quantspec", metavar="FILE", default=ROOT / "build/quantspec", help="our program")
    parser.add_argument("-v", "--verbose", action="store_true", help="print what is run")
    args = parser.parse_args()
    args.llama = ""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "keys").write_text(KEY + "\n")
        options = ["serve", "-c", 2048, "--api-key-file", folder / "keys"]
        options += ["-m", args.model] if args.model else []
        with Server(Programs(args), "quantspec", options, folder / "log") as server:
            for client, run in CHECKS.items():
                if args.only in (None, client):
                    run(server, folder)
                    print(f"{client}: ok")


if __name__ == "__main__":
    main()
