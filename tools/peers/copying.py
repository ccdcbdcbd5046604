"""Tasks whose answers copy from their prompts: made of this checkout's own files and of a book, so the
same conversations for both programs, and for runs at one commit."""

from .programs import ROOT

# Files of 1,000 to 3,000 tokens, and what is to be renamed in them.
CODE = [
    ("src/kv_cache/page_pool.h", "PagePool", "SlabPool"),
    ("src/scheduler/fair_queue.cc", "FairQueue", "OwnerQueue"),
    ("src/base/thread_pool.cc", "ThreadPool", "WorkerPool"),
    ("src/engine/slice_time.cc", "SliceTime", "SliceCost"),
    ("src/sampler/acceptance.cc", "Acceptance", "Verdict"),
    ("src/model/rope.cc", "Rope", "Rotation"),
]
TABLES = ["docs/cpu.md", "docs/glossary.md", "docs/datasets.md", "docs/real-models.md"]
BEGUN_LINES = 4  # of an answer, which are given: small models would write about the file instead


class Task:
    """A conversation, and how its answer begins."""

    def __init__(self, kind, messages, begin):
        self.kind = kind
        self.messages = messages
        self.begin = begin


def user(content):
    return {"role": "user", "content": content}


def lines_of(text, count):
    return "".join(text.splitlines(keepends=True)[:count])


def beginning(path, most):
    """Whole lines of a file."""
    text = (ROOT / path).read_text()
    return text if len(text) <= most else text[:text.rfind("\n", 0, most) + 1]


def rewrite(path, old, new):
    text = beginning(path, 9000)
    return [user(f"Write this file again, but call {old} {new}. Write the file alone.\n\n```\n{text}```"),
            "```\n" + lines_of(text.replace(old, new), BEGUN_LINES)]


def code():
    return [Task("code", [message], begin) for message, begin in (rewrite(*one) for one in CODE)]


def edits():
    """A second turn: the answer to the first one is given, and is to be changed once more."""
    tasks = []
    for path, old, new in CODE[:4]:
        text = beginning(path, 6000)
        first = "```\n" + text.replace(old, new) + "```"
        again = text.replace(old, new + "2")
        tasks.append(Task("edits", [
            user(f"Write this file again, but call {old} {new}. Write the file alone.\n\n```\n{text}```"),
            {"role": "assistant", "content": first},
            user(f"Now call it {new}2."),
        ], "```\n" + lines_of(again, BEGUN_LINES)))
    return tasks


def table_of(text):
    """Its longest table."""
    tables, lines = [[]], text.splitlines()
    for line in lines:
        if line.startswith("|"):
            tables[-1].append(line)
        elif tables[-1]:
            tables.append([])
    return "\n".join(max(tables, key=len)) + "\n"


def tables():
    tasks = []
    for path in TABLES:
        text = table_of((ROOT / path).read_text())
        text = text[:text.rfind("\n", 0, 8000) + 1]
        tasks.append(Task("tables", [user(f"Copy this table.\n\n{text}")], lines_of(text, BEGUN_LINES)))
    return tasks


def quotes(book):
    """A passage from the middle of a text that was read."""
    tasks = []
    for i in range(4):
        text = book[20000 + 12000 * i:][:10000]
        at = text.index(". ", 4000) + 2
        tasks.append(Task("quotes", [user(
            f"{text}\n\nQuote this text from the words \"{text[at:at + 40]}\" on.")], text[at:at + 120]))
    return tasks


def prose(book):
    """Nothing is copied: what looking up may cost."""
    return [Task("prose", [user(f"Go on with this story.\n\n{book[90000 + 7000 * i:][:4000]}")], "")
            for i in range(4)]


def tasks(book):
    return [*code(), *edits(), *tables(), *quotes(book), *prose(book)]
