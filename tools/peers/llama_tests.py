"""What became of llama.cpp's tests: those that passed, and for the others the reason in llama_tests.txt.

Lines there: a pattern of fnmatch for FILE::TEST, a tab, and a reason, or none for those that pass. The first that fits
counts.
"""

import collections
import fnmatch
import sys
import xml.etree.ElementTree
from pathlib import Path


def reasons():
    lines = (Path(__file__).parent / "llama_tests.txt").read_text().splitlines()
    return [line.split("\t") for line in lines if line and not line.startswith("#")]


def name_of(case):
    return case.get("classname").rsplit(".", 1)[-1] + "::" + case.get("name")


def main():
    results, ends = sys.argv[1:]
    known, used = reasons(), set()
    passed, explained, unexplained, stale = [], collections.Counter(), [], []
    for case in xml.etree.ElementTree.parse(results).iter("testcase"):
        name = name_of(case)
        if case.find("skipped") is not None:
            continue
        good = case.find("failure") is None and case.find("error") is None
        found = next((i for i, (pattern, _) in enumerate(known) if fnmatch.fnmatchcase(name, pattern)), None)
        if found is not None:
            used.add(found)
        if good:
            passed.append(name)
            if found is not None and known[found][1]:
                stale.append(f"{name}: passes, and has a reason not to: {known[found][1]}")
        elif found is None or not known[found][1]:
            unexplained.append(name)
        else:
            explained[known[found][1]] += 1
    crashes = [code for code in Path(ends).read_text().split() if int(code) < 0]
    print(f"{len(passed)} pass\n{sum(explained.values())} do not, since")
    for reason, count in explained.most_common():
        print(f"{count:6}  {reason}")
    print(f"{len(Path(ends).read_text().split())} servers, {len(crashes)} crashed")
    for line in stale + [f"{name}: fails, and has no reason" for name in unexplained]:
        print(line)
    for i, (pattern, reason) in enumerate(known):
        if i not in used:
            print(f"{pattern}: fits no test")
    sys.exit(1 if stale or unexplained or crashes or len(used) < len(known) else 0)


main()
