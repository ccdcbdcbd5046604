#!/usr/bin/env python3
"""Puts quantspec serve under load with the bundled model, and sees that nothing is lost by it.

    tools/serve_load.py            all of it
    tools/serve_load.py streams    1,000 streams at once: each has the text that it has alone
    tools/serve_load.py cut        10,000 requests whose client goes away at any place of its own

Afterwards nothing runs or waits, the server has the files open that it had, and answers as before.
--small tries everything with little. Standard library only. Exit code 1: something was lost.
"""

import argparse
import asyncio
import json
import random
import re
import resource
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from peers.programs import Programs, ROOT, checkout, physical_cores, processor
from peers.serving import Server

WORDS = "night wind river stone garden letter winter house horse captain road island fire window".split()
IN_FLIGHT = 64  # clients that cut off at once


def parse_args():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", metavar="WHAT", help="streams, cut (default: both)")
    parser.add_argument("--small", action="store_true", help="a hundredth of it")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of where clients go away")
    parser.add_argument("--quantspec", metavar="FILE", default=ROOT / "build/quantspec",
                        help="our program (default: build/quantspec)")
    parser.add_argument("-v", "--verbose", action="store_true", help="print what is run")
    args = parser.parse_args()
    args.what = args.what or ["streams", "cut"]
    for what in args.what:
        if what not in ("streams", "cut"):
            parser.error(f"{what!r} is none of streams, cut")
    args.llama = ""  # which is not asked for
    return args


def body_of(i, tokens):
    prompt = " ".join(WORDS[(i * k + i // 7) % len(WORDS)] for k in range(1, 6))
    return {"prompt": f"{i}. The {prompt} of the", "max_tokens": tokens, "temperature": 0,
            "stream": True, "ignore_eos": True}


def message_of(body):
    payload = json.dumps(body).encode()
    head = (b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(payload))
    return head, payload


def connect(server, i):
    """From one of eight addresses: each may have so many connections."""
    return asyncio.open_connection("127.0.0.1", server.port, local_addr=(f"127.0.0.{2 + i % 8}", 0))


async def text_of(server, body, i=0):
    """The text of a stream; waits as it is told where the server is full. Also how often."""
    for refusals in range(10_000):
        reader, writer = await connect(server, i)
        writer.write(b"".join(message_of(body)))
        reply = await reader.read()
        writer.close()
        head, _, rest = reply.partition(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        if status == 429:
            wait = re.search(rb"retry-after: (\d+)", head.lower())
            await asyncio.sleep(float(wait[1]) * (0.5 + random.random()))
            continue
        if status != 200 or b"data: [DONE]" not in rest:
            raise RuntimeError(f"status {status}, {rest[-200:]!r}")
        events = re.findall(rb"^data: (\{.*\})\r?$", rest, re.MULTILINE)
        return "".join(json.loads(e)["choices"][0]["text"] for e in events), refusals
    raise RuntimeError("the server is full for ever")


async def streams(server, args):
    count = 10 if args.small else 1000
    bodies = [body_of(i, 8 + i % 9) for i in range(count)]
    begin = time.monotonic()
    answers = await asyncio.gather(*(text_of(server, body, i) for i, body in enumerate(bodies)))
    seconds = time.monotonic() - begin
    alone = range(0, count, max(1, count // 100))
    different = [i for i in alone if (await text_of(server, bodies[i]))[0] != answers[i][0]]
    print(f"streams: {count} at once in {seconds:.1f} s, {sum(r for _, r in answers)} times told to come "
          f"later; of {len(alone)} that were asked for again alone, {len(different)} were different")
    return not different


async def cut_off(server, seed, i):
    """Goes away at a place of its own: in the head, in the body, before an answer, inside it."""
    rng = random.Random(f"{seed}, {i}")
    head, payload = message_of(body_of(i, 1 + rng.randrange(64)))
    message = head + payload
    place = rng.choice(["head", "body", "sent", "answer", "answer"])
    if place == "head":
        message = message[:rng.randrange(len(head))]
    elif place == "body":
        message = message[:len(head) + rng.randrange(len(payload))]
    reader, writer = await connect(server, i)
    try:
        writer.write(message)
        await writer.drain()
        if place == "answer":
            for _ in range(1 + rng.randrange(20)):
                if not await reader.readline():
                    break
        elif rng.random() < 0.5:
            await asyncio.sleep(rng.random() * 0.05)
    except ConnectionError:
        pass
    finally:
        if rng.random() < 0.5:
            writer.transport.abort()  # a reset
        else:
            writer.close()


async def cut(server, args):
    count = 200 if args.small else 10_000
    begin = time.monotonic()
    waiting = set()
    for i in range(count):
        if len(waiting) >= IN_FLIGHT:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
        waiting.add(asyncio.create_task(cut_off(server, args.seed, i)))
    await asyncio.gather(*waiting)
    print(f"cut: {count} requests cut off in {time.monotonic() - begin:.1f} s")
    return True


def metric(server, name):
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as reply:
        found = re.search(rf"^{re.escape(name)} (\S+)$", reply.read().decode(), re.MULTILINE)
    return float(found[1])


def state_of(server):
    memory = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{server.process.pid}/status").read_text())
    return {"files": len(list(Path(f"/proc/{server.process.pid}/fd").iterdir())),
            "MiB": int(memory[1]) // 1024,
            "running": metric(server, "vllm:num_requests_running"),
            "waiting": metric(server, "vllm:num_requests_waiting")}


def settled(server, before):
    """What the server has when it is done, or after a minute."""
    for _ in range(120):
        now = state_of(server)
        if not now["running"] and not now["waiting"] and now["files"] <= before["files"]:
            break
        time.sleep(0.5)
    return now


def main():
    args = parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    programs = Programs(args)
    good = True
    print(f"quantspec of a checkout at {checkout()}; {processor()}, {physical_cores()} cores")
    with tempfile.TemporaryDirectory(prefix="serve_load.") as folder:
        options = ["serve", "-m", ROOT / "models/pg-24m", "-c", 2048, "--parallel", 16, "-q"]
        with Server(programs, "quantspec", options, Path(folder) / "log") as server:
            told = asyncio.run(text_of(server, body_of(0, 40)))[0]
            for what in args.what:
                before = state_of(server)
                good &= asyncio.run({"streams": streams, "cut": cut}[what](server, args))
                after = settled(server, before)
                same = asyncio.run(text_of(server, body_of(0, 40)))[0] == told
                print(f"  before {before}\n  after  {after}; an answer is "
                      + ("the same" if same else "ANOTHER"))
                lost = after["running"] or after["waiting"] or after["files"] > before["files"]
                good &= same and not lost
            if server.process.poll() is not None:
                print("the server is gone")
                good = False
    print("nothing was lost" if good else "SOMETHING WAS LOST")
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("serve_load: stopped")
