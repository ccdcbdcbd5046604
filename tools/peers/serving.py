"""Servers of OpenAI's API on this machine, and clients that time their streams."""

import asyncio
import datetime
import json
import platform
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

from .programs import checkout, fail, instructions, note, processor

START_SECONDS = 120
ANSWER_SECONDS = 1800


def about_run(programs, args):
    """What a measurement is of, for its JSON."""
    for name in ("quantspec", "llama-server"):
        programs.path_of(name)
    return {
        "model": Path(args.model).name, "processor": processor(), "instructions": instructions(),
        "threads": args.threads, "system": platform.release(), "llama_cpp": programs.llama_version(),
        "quantspec_commit": checkout(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def heading(about):
    return (f"**{about['model']}**, {about['processor']} ({', '.join(about['instructions'])}), "
            f"{about['threads']} threads; llama.cpp {about['llama_cpp']}, flash attention on; quantspec "
            f"{about['quantspec_commit']}")


def write_out(args, what, found):
    out = args.out or Path(f"peers-{Path(args.model).stem}-{what}.json")
    out.write_text(json.dumps({"measurement": f"peers-{what}", **found}, indent=1) + "\n")
    print(f"\nAll of it: {out}")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A process that serves while the `with` lasts."""

    def __init__(self, programs, name, options, log):
        self.port = free_port()
        self.log = log
        self.command = programs.command(name, [*options, "--port", self.port])

    def __enter__(self):
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=subprocess.STDOUT)
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2) as reply:
                    if reply.status == 200:
                        return self
            except OSError:
                time.sleep(0.1)
        self.process.kill()
        fail(f"{self.command[0]} does not answer; its log ends with\n{self.last_words()}")

    def __exit__(self, *error):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def last_words(self):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-12:])

    def peak_memory(self):
        """Bytes that were resident at most."""
        for line in open(f"/proc/{self.process.pid}/status"):
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return 0


class Answer:
    """When what of a stream came, in seconds from `begin`; its text, and what it was counted as."""

    def __init__(self):
        self.begin = time.monotonic()
        self.times = []
        self.text = ""
        self.prompt_tokens = self.tokens = self.cached_tokens = 0

    def first(self):
        return self.times[0]

    def gaps(self, since=0.0, until=float("inf")):
        """Between events with text, those that end in that span of absolute time."""
        absolute = [self.begin + t for t in self.times]
        return [b - a for a, b in zip(absolute, absolute[1:]) if since <= b <= until]


async def body_lines(reader, is_chunked):
    """The lines of a reply's body as they come."""
    rest = b""
    while True:
        if is_chunked:
            size = int((await reader.readline()).split(b";")[0] or b"0", 16)
            block = await reader.readexactly(size) if size else b""
            await reader.readline()
        else:
            block = await reader.read(65536)
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            yield line
        if not block:
            return


async def ask(server, body):
    """One streamed answer, to messages of a chat or to a prompt."""
    path = "chat/completions" if "messages" in body else "completions"
    payload = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
    answer = Answer()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 24)
    try:
        writer.write(f"POST /v1/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
                     f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n".encode())
        writer.write(payload)
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        if " 200 " not in head.splitlines()[0]:
            fail(f"{server.command[0]} answered {head.splitlines()[0]}: {(await reader.read(500)).decode()}")
        async for line in body_lines(reader, "transfer-encoding: chunked" in head):
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                fail(f"{server.command[0]} broke off: {event['error']}")
            for choice in event["choices"]:
                content = choice.get("delta", {}).get("content") or choice.get("text")
                if content:
                    answer.times.append(time.monotonic() - answer.begin)
                    answer.text += content
            if event.get("usage"):
                usage = event["usage"]
                answer.prompt_tokens, answer.tokens = usage["prompt_tokens"], usage["completion_tokens"]
                answer.cached_tokens = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    finally:
        writer.close()
    if not answer.times:
        note(f"{server.command[0]}: an answer without text")
        answer.times.append(time.monotonic() - answer.begin)
    return answer


def run(work):
    return asyncio.run(asyncio.wait_for(work, ANSWER_SECONDS))
