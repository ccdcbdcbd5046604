#!/usr/bin/env python3
"""Makes tests/testdata/chat: what jinja2 renders of small templates, and of whole ones.

    tools/make_chat_tests.py [--check]

snippets.txt has small templates, each a line below the name of its construct; the script writes
snippets.json with their texts. conversations.json has the variables of whole templates, *.jinja; the
script writes goldens.json. All are ours: no template is another model's. Needs the Python package
jinja2, 3.1.2 or later; the tests need none. --check writes nothing: exit code 1 if something would change.
"""

import json
import sys
from pathlib import Path

import chat_jinja

OUT = Path(__file__).resolve().parent.parent / "tests/testdata/chat"

# What snippets see.
VARIABLES = {
    "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"},
                 {"role": "user", "content": ""}],
    "tools": None, "documents": None, "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>",
    "text": "  Grüße, \"Welt\" <b>&</b>\n\tit's 12 ", "words": "one two  three", "empty": "", "path": "a/b//c/",
    "number": 42, "negative": -7, "real": 2.5, "tiny": 1e-07, "huge": 1e+22, "yes": True, "no": False,
    "nothing": None, "list": [3, 1, 2, 1], "names": ["b", "A", "c", "a"], "nested": [[1, 2], [3, [4, None]]],
    "dict": {"b": 1, "A": 2, "c": {"d": [1, 2.0, "x"]}, "items": 5, "ü": None},
    "people": [{"name": "Ann", "age": 30, "at": {"city": "Rome"}}, {"name": "bob", "age": 25, "at": {"city": "Oslo"}},
               {"name": "Cy", "age": 30, "at": {}}],
    "tree": [{"n": 1, "of": [{"n": 2, "of": [{"n": 3, "of": []}]}, {"n": 4, "of": []}]}],
}


def result(template, variables):
    text, why = chat_jinja.render(template, variables)
    return {"text": text} if why is None else {"refused": why.split(":")[0]}


def snippets():
    rows, construct = [], ""
    for line in (OUT / "snippets.txt").read_text(encoding="utf-8").split("\n"):
        if line.startswith("## "):
            construct = line[3:]
        elif line:
            template = line.replace("⏎", "\n")  # so that a template is a line
            rows.append({"construct": construct, "template": template, **result(template, VARIABLES)})
    return {"variables": VARIABLES, "snippets": rows}


def goldens():
    rows = []
    conversations = json.loads((OUT / "conversations.json").read_text(encoding="utf-8"))
    for path in sorted(OUT.glob("*.jinja")):
        for name, variables in conversations.items():
            source = path.read_bytes().decode("utf-8")
            rows.append({"template": path.name, "conversation": name, **result(source, variables)})
    return rows


def main():
    changed = False
    for name, content in (("snippets.json", snippets()), ("goldens.json", goldens())):
        text = json.dumps(content, ensure_ascii=False, indent=1) + "\n"
        path = OUT / name
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        changed = True
        print(f"{name} {'would change' if '--check' in sys.argv else 'is new'}")
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
    return 1 if changed and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
