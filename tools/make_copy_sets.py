#!/usr/bin/env python3
"""Makes datasets of kind `tasks` (docs/datasets.md): what is asked for is a copy.

    tools/make_copy_sets.py -o DIR
    tools/make_copy_sets.py --books FOLDER --words 28000 --back 85 -o DIR
    build/quantspec bench -d tasks:DIR/quotes.jsonl -c 8192 --prompts 4

Four files of records come out, the same for the same seed, books and sources:

  code.jsonl    sources of this repository; a function is written again with
                other names
  quotes.jsonl  a book; a passage is read again
  tables.jsonl  a book with a table of its names in it; the table is copied and
                gets one row more
  edits.jsonl   a book, and turns that change a word of a passage and repeat
                all of it

A task ends in the first words of the answer, so that a model copies that was
never taught to follow instructions. Sizes are in words, marks counted as words:
a model's tokens are as many or up to half more. So prompts of C tokens (-c) can
be cut from --words C, and hold what is copied: it stands 15% to 65% of the
words before the task (in edits the first time). Needs the standard library
only.
"""

import argparse
import json
import random
import re
import sys
from bisect import bisect_left
from collections import Counter
from itertools import accumulate
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STORY = ROOT / "prompts" / "the-lighthouse-clock.txt"

# In code the parts of names, so that they are about as many as tokens there, too.
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]|[^\sA-Za-z0-9]")
# Where a prompt can end: no tokenizer has a token that goes across a space before a word.
BORDER = re.compile(r"(?<=\S) (?=[A-Za-z])")
SENTENCE = re.compile(r"(?:\n\n+|(?<=[.!?])[ \n])(?=[A-Z])")
SENTENCE_END = re.compile(r"[.!?][\"”]?(?=\s|$)")
NAME = re.compile(r"(?<=[a-z,] )[A-Z][a-z]{2,}\b")
PLAIN = re.compile(r"\b[a-z]{5,}\b")
GUTENBERG = [re.compile(r"\A.*?^\*\*\* ?START OF[^*]*\*\*\*\s*", re.DOTALL | re.MULTILINE),
             re.compile(r"^\*\*\* ?END OF.*\Z", re.DOTALL | re.MULTILINE)]
FUNCTION = re.compile(r"^(?!namespace|class|struct|enum|union|template|extern)\w[^\n;=]*?"
                      r"(\w+)\([^;{}]*\)(?: const)? \{\n(?:(?: [^\n]*)?\n)+?\}\n", re.MULTILINE)
NOT_CODE = re.compile(r'#[^\n]*|//[^\n]*|"(?:[^"\\\n]|\\.)*"')
IDENTIFIER = re.compile(r"\b[A-Za-z]\w{3,}\b")
KEYWORDS = set("auto bool break case catch char class const const_cast constexpr continue default "
               "delete double else enum false float fmt int16_t int32_t int64_t int8_t kind long "
               "move override private public return short signed size size_t sizeof span static "
               "static_cast string string_view struct switch template this throw true typename "
               "uint16_t uint32_t uint64_t uint8_t unsigned using vector void while".split())

ANSWER = 240      # words that an answer has, about
BEGUN = 16        # words of it that the task gives
LINE = 30         # words that a line of a book has, at most
RENAMED = 3       # names of a function that are others
TRIES = 200       # places where a record could be made, before there is none
LEAST_WORDS = 300  # of text


class Unmade(Exception):
    """A record cannot be made here."""


class Source:
    """A text in which places are counted in words."""

    def __init__(self, name, text):
        self.name = name
        self.text = text
        self.starts = [match.start() for match in WORD.finditer(text)]

    def __len__(self):
        return len(self.starts)

    def word_at(self, offset):
        return bisect_left(self.starts, offset)

    def between(self, first, end):
        if first < 0 or end > len(self):
            raise Unmade
        return self.text[self.starts[first]:self.starts[end] if end < len(self) else None]


def count_words(text):
    return len(WORD.findall(text))


def read_book(path):
    text = path.read_text(encoding="utf-8-sig")
    for marks in GUTENBERG:
        text = marks.sub("", text)
    return Source(path.name, text)


def read_sources():
    paths = [path for path in sorted((ROOT / "src").rglob("*"))
             if path.suffix in (".h", ".cc") and not path.stem.endswith("_test")]
    return [(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in paths]


def whole_lines(text):
    return text[:text.rfind("\n") + 1] or text


def whole_sentences(text):
    ends = [match.end() for match in SENTENCE_END.finditer(text, len(text) // 2)]
    return text[:ends[-1]] if ends else text.rstrip()


def changed(text, old, new):
    return re.sub(rf"\b{re.escape(old)}\b", new, text)


def renamed(code, others):
    """With other names, but for comments and strings."""
    parts, at = [], 0
    for match in [*NOT_CODE.finditer(code), None]:
        part = code[at:match.start() if match else None]
        for old, new in others.items():
            part = changed(part, old, new)
        parts.append(part)
        if match:
            parts.append(match.group())
            at = match.end()
    return "".join(parts)


def other_name(name):
    if re.match(r"k[A-Z]", name):
        return "kOther" + name[1:]
    return ("Other" if name[0].isupper() else "other_") + name


def record_of(text, order, answer, place, back, begun=BEGUN):
    """`order` and the first words of the answer are the task."""
    ends = [match.end() for match in WORD.finditer(answer)]
    border = BORDER.search(answer, ends[min(begun, len(ends) // 2)])
    if not border:
        raise Unmade
    at = border.start()
    return {"text": text.rstrip(), "task": f"\n\n{order}\n\n{answer[:at]}", "answer": answer[at:],
            "from": place, "back": back}


class Maker:
    """Makes records of one size. What a record is made of is chosen by chance until one can be."""

    def __init__(self, args):
        self.words = args.words
        self.fixed_back = args.back
        self.answer_words = min(ANSWER, args.words // 6)
        files = sorted(args.books.glob("*.txt")) if args.books.is_dir() else [args.books]
        if not files:
            sys.exit(f"make_copy_sets: {args.books}: no .txt file in this folder")
        self.books = [read_book(path) for path in files]
        files = [(name, f"// {name}\n{text}\n") for name, text in read_sources()]
        self.sources = Source("src", "".join(text for _, text in files))
        ends = accumulate(len(text) for _, text in files)
        self.files = [(end, name) for end, (name, _) in zip(ends, files)]
        self.functions = [match for match in FUNCTION.finditer(self.sources.text)
                          if 60 <= count_words(match.group()) <= 2 * self.answer_words]

    def make(self, kind, number, rng):
        # Far and near ones in turn, however few are used.
        part = self.fixed_back / 100 if self.fixed_back else 0.15 + 0.5 * ((0.8 + 0.618 * number) % 1)
        for _ in range(TRIES):
            try:
                return getattr(self, kind)(number, int(part * self.words), rng)
            except Unmade:
                pass
        longest = max(self.books, key=len)
        sys.exit(f"make_copy_sets: {kind}: no place found for a record of --words {self.words}; the longest "
                 f"book, {longest.name}, has {len(longest)}")

    def around(self, source, place, back):
        """So many words that `back` of them follow on `place`."""
        return whole_lines(source.between(place - (self.words - back), place + back))

    def place_in(self, number, back, rng):
        """A book, in turn, and a sentence of it that has text enough before and after it."""
        low, after = self.words - back, max(back, self.answer_words)
        books = [book for book in self.books if low < len(book) - after]
        if not books:
            raise Unmade
        book = books[number % len(books)]
        high = len(book) - after
        start = SENTENCE.search(book.text, book.starts[rng.randrange(low, high)])
        if not start:
            raise Unmade
        return book, book.word_at(start.end())

    def code(self, number, back, rng):
        function = rng.choice(self.functions)
        text = function.group()
        found = Counter(name for name in IDENTIFIER.findall(NOT_CODE.sub("", text)) if name not in KEYWORDS)
        common = sorted((name for name in found if found[name] > 1), key=lambda name: (-found[name], name))
        others = {name: other_name(name) for name in common[:RENAMED]}
        if not others or any(other in self.sources.text for other in others.values()):
            raise Unmade
        first = self.sources.word_at(function.start())
        _, path = next(file for file in self.files if function.start() < file[0])
        names = ", ".join(f"{old} is now {new}" for old, new in others.items())
        back = max(back, count_words(text))
        order = f"// {function.group(1)} of {path} once more, with other names: {names}."
        return record_of(self.around(self.sources, first, back), order, renamed(text, others), path, back)

    def quotes(self, number, back, rng):
        back = max(back, self.answer_words + LINE)
        book, place = self.place_in(number, back, rng)
        return record_of(self.around(book, place, back),
                         "He opened the book again and read the same lines:",
                         whole_sentences(book.between(place, place + self.answer_words)), book.name, back)

    def tables(self, number, back, rng):
        book, place = self.place_in(number, back, rng)
        rows = self.rows(book, place)
        head = "| name | times | what follows it first |\n|---|--:|---|\n"
        table = head + "".join(rows[:-1])
        size = count_words(table)
        back = max(back, size)
        before = book.between(place - (self.words - back), place).rstrip()
        after = whole_lines(book.between(place, place + back - size))
        order = ("Here is the same table once more. At its end it has one row more, which is\n\n"
                 f"{rows[-1]}\nThe table:")
        return record_of(f"{before}\n\n{table}\n{after}", order, table + rows[-1], book.name, back,
                         begun=count_words(head) + 4)

    def rows(self, book, place):
        """Of the names that come before a place, with their first sentences; of about an answer's size."""
        text = book.between(0, place)
        rows, size = [], 0
        for name, count in sorted(Counter(NAME.findall(text)).items(), key=lambda one: (-one[1], one[0])):
            at = re.search(rf"\b{name}\b", text).end()
            said = " ".join(re.findall(r"[A-Za-z]+", text[at:at + 80])[:6])
            rows.append(f"| {name} | {count} | {said} |\n")
            size += count_words(rows[-1])
            if size > self.answer_words:
                break
        if len(rows) < 3:
            raise Unmade
        return rows

    def edits(self, number, back, rng):
        turns = 2 + number % 4
        book, place = self.place_in(number, back, rng)
        size = max(40, min(self.answer_words, back // (turns + 1) - 20))
        passage = " ".join(whole_sentences(book.between(place, place + size)).split())
        words = sorted(set(PLAIN.findall(passage)))
        known = sorted(set(PLAIN.findall(book.between(place - 2 * size, place))) - set(words))
        if len(words) < turns or len(known) < turns:
            raise Unmade
        said = [f"The passage:\n\n{passage}"]
        for old, new in zip(rng.sample(words, turns), rng.sample(known, turns)):
            passage = changed(passage, old, new)
            order = f'Change "{old}" to "{new}":'
            said.append(f"{order}\n\n{passage}")
        talk = "\n\n".join(said[:-1])
        back = max(back, count_words(talk))
        before = book.between(place - (self.words - back), place).rstrip()
        # Between passage and turns the book goes on, so that the first turn copies from far back.
        after = place + count_words(passage)
        between = book.between(after, after + back - count_words(talk))
        text = f"{before}\n\n{said[0]}\n\n{between}".rstrip()
        return record_of("\n\n".join([text, *said[1:-1]]), order, passage, book.name, back)


KINDS = ["code", "quotes", "tables", "edits"]


def parse_args():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", required=True, metavar="DIR", type=Path,
                        help="where the files go; it is made")
    parser.add_argument("--books", metavar="DIR", type=Path, default=STORY,
                        help="folder of .txt files, or one (default: the bundled story)")
    parser.add_argument("--records", type=int, default=8, metavar="N",
                        help="of each file (default: 8)")
    parser.add_argument("--words", type=int, default=7200, metavar="N",
                        help="of text before a task (default: 7200, which the bundled model has for "
                        "prompts of 8192 tokens)")
    parser.add_argument("--back", type=int, metavar="PERCENT",
                        help="how far back all that is copied stands, of the words, 10 to 90 "
                        "(default: 15 to 65, in each record another one)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="(default: 1)")
    args = parser.parse_args()
    if args.records < 1:
        parser.error("--records: 1 or more")
    if args.words < LEAST_WORDS:
        parser.error(f"--words: {LEAST_WORDS} or more")
    if args.back is not None and not 10 <= args.back <= 90:
        parser.error("--back: 10 to 90")
    return args


def main():
    args = parse_args()
    maker = Maker(args)
    made = {}
    for kind in KINDS:
        rng = random.Random(f"{kind} {args.seed}")
        made[kind] = [maker.make(kind, number, rng) for number in range(args.records)]
    args.out.mkdir(parents=True, exist_ok=True)
    for kind, records in made.items():
        path = args.out / f"{kind}.jsonl"
        path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records),
                        encoding="utf-8")
        backs = [record["back"] for record in records]
        print(f"{path}: {len(records)} records, copied from {min(backs)} to {max(backs)} words back")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("make_copy_sets: stopped")
