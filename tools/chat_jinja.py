"""jinja2 as Hugging Face's apply_chat_template sets it up: what the room src/chat must equal.

Needs the Python package jinja2 (Debian: python3-jinja2).
"""

import datetime
import json

import jinja2
import jinja2.ext
import jinja2.sandbox

NOW = datetime.datetime(2024, 2, 5, 13, 4, 9)  # as tests/chat_render.cc has it


class Generation(jinja2.ext.Extension):
    """{% generation %} blocks, which trainers mark, as text like any other."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller):
        return caller()


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = to_json
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


def render(template, variables):
    """(text, None), or (None, why not). `template`: of environment().from_string(), or its text."""
    try:
        if isinstance(template, str):
            template = environment().from_string(template)
        return template.render(**variables), None
    except Exception as error:  # Python's own errors of types and values, too
        return None, f"{type(error).__name__}: {error}"
