#!/usr/bin/env python3
"""A compiler launcher: takes an object from another build folder, if that was compiled by the same command.

Usage: reuse_object.py BUILD LOG COMPILER ARGUMENT...

The same but for warnings and for where folders lie: then the same compiler writes the same object. What
differs is compiled, and the command is added to LOG. A build of the library by another project takes a
second instead of minutes so, and LOG says whether that project compiles what our tests test.
BUILD has a compile_commands.json (CMAKE_EXPORT_COMPILE_COMMANDS).
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

WITH_VALUE = {"-o", "-c", "-MT", "-MF", "-I", "-isystem"}
DEPENDENCIES = {"-MD", "-MT", "-MF"}
WARNINGS = re.compile(r"-w|-W(?!l,|p,|a,).*")


def options(command):
    """The command's (option, value) pairs; a folder or source is what it is after all links."""
    words = iter(command)
    for word in words:
        if word in WITH_VALUE:
            value = next(words)
            yield word, value if word in DEPENDENCIES | {"-o"} else str(Path(value).resolve())
        elif word.startswith("-I"):
            yield "-I", str(Path(word[2:]).resolve())
        else:
            yield word, None


def what_it_compiles(command):
    return [(option, value) for option, value in options(command)
            if option not in DEPENDENCIES | {"-o"} and not WARNINGS.fullmatch(option)]


def object_of_same(command, build):
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        other = shlex.split(entry["command"])
        if what_it_compiles(other) == what_it_compiles(command):
            return Path(entry["directory"], dict(options(other))["-o"])
    return None


def main():
    build, log, *command = sys.argv[1:]
    made = object_of_same(command, Path(build))
    where = dict(options(command))
    if made is None:
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{shlex.join(command)}\n")
        return subprocess.call(command)
    shutil.copyfile(made, where["-o"])
    Path(where["-MF"]).write_text(f"{where['-MT']}: {where['-c']}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
