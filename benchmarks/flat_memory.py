"""Peak memory of reading a trace of 1, 5 and 10 million rows: it does not grow with them.

    python benchmarks/flat_memory.py [--rows N] [--requests N] [SOURCE…]

The sources are `synthetic` (drawn), `sessions` (drawn, in conversations with shared prefixes),
`azure` (a CSV file, written first) and `mooncake` (JSON lines with hashes, written first). Each is
read in a process of its own as `mirage replay` reads it: rows, tenants, scales, calls, and every
thousandth prompt. The program prints the peak of the process's resident memory in MiB, and rows a
second.

`outcomes` measures the other end: that many requests are sent to a server beside it, and the bytes
are printed by which resident memory grows with each, as every outcome is kept for the report.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from aiohttp import web
from answering import DONE, answering, event

from mirage.config import Config
from mirage.tools.replay import client
from mirage.tools.replay.client import Habits, Journal
from mirage.units import MIB
from mirage.workload import dealing
from mirage.workload.chosen import chosen
from mirage.workload.dealing import TenantRequest
from mirage.workload.prompts import prompt_of
from mirage.workload.trace import AS_IT_SAYS

ROWS = 10_000_000
PARTS = (0.1, 0.5, 1.0)
SOURCES = ("synthetic", "sessions", "azure", "mooncake")
OUTCOMES, REQUESTS, CONCURRENCY = "outcomes", 20_000, 16
LENGTHS = (1, 64, 256)
"""Output tokens of a request."""
TENANTS = [{"name": name, "model": name, "share": 30, "max_model_len": 8192} for name in "abc"]
PLAIN = "kind: synthetic\nrate: 50\narrivals: gamma\ncv: 3\nmix: {long: 1, short: 3}\n"
TALKS = "sessions: {turns: 4, think_s: 20}\nprefixes: {count: 100, tokens: 512, share: 0.5}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "sources", nargs="*", metavar="SOURCE", help=", ".join((*SOURCES, OUTCOMES))
    )
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--send", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.read:
        read(words.read, words.rows)
        return
    if words.send:
        send(words.send, words.requests)
        return
    for source in words.sources or (*SOURCES, OUTCOMES):
        if source == OUTCOMES:
            for tokens in LENGTHS:
                command = [sys.executable, __file__, "--send", str(tokens)]
                subprocess.run([*command, "--requests", str(words.requests)], check=True)
            continue
        with TemporaryDirectory() as folder:
            path = write(source, Path(folder), words.rows)
            print(
                f"{source}: {words.rows:,} rows, {path.stat().st_size / MIB:,.1f} MiB", flush=True
            )
            command = [sys.executable, __file__, "--rows", str(words.rows)]
            subprocess.run([*command, "--read", str(path)], check=True)


def read(path: Path, rows: int) -> None:
    """Read all rows of a trace as a replay does, and print memory and speed."""
    config = Config.model_validate({"device": {"memory": "1GiB"}, "tenants": TENANTS})
    names = [tenant.name for tenant in config.tenants]
    which, skipped = chosen(str(path), names), Counter[str]()
    dealt = which.requests(names, config.replay.traffic, 0, AS_IT_SAYS, None, None, skipped)
    marks = [round(rows * part) for part in PARTS]
    start, characters = time.perf_counter(), 0
    for number, call in enumerate(dealing.calls(config, dealt, 1.0, 0.5), start=1):
        if number % 1000 == 0:
            characters += len(prompt_of(call, 0))
        if number in marks:
            per_s = number / (time.perf_counter() - start)
            print(
                f"  {number:>10,} rows: peak {peak_mib():.1f} MiB, {per_s:,.0f} rows/s", flush=True
            )
    assert number == rows and characters > 0, "all of them were read"


def send(tokens: int, requests: int) -> None:
    """Send requests of so many output tokens, and print the memory that their outcomes take."""
    with answering(at_once) as url:
        asyncio.run(_send(url, tokens, requests))


async def _send(url: str, tokens: int, requests: int) -> None:
    journal, habits, process = Journal(), Habits(CONCURRENCY), psutil.Process()
    begun, seen = time.perf_counter(), [(0, 0)]
    async with client.session(url, 600.0) as http:
        for part in PARTS:
            numbers = range(seen[-1][0], round(requests * part))
            calls = (TenantRequest(n, 0.0, "echo", 100, tokens, clipped=False) for n in numbers)
            await client.send_all(http, calls, 0, journal, habits)
            seen.append((len(journal.outcomes), process.memory_info().rss))
    assert len(journal.outcomes) == requests and not journal.failed
    assert {outcome.output_tokens for outcome in journal.outcomes} == {tokens}
    (few, low), (many, high) = seen[1], seen[-1]
    per_s = requests / (time.perf_counter() - begun)
    print(
        f"outcomes of {tokens} tokens: {(high - low) / (many - few):,.0f} bytes a request "
        f"({low / MIB:.1f} MiB after {few:,}, {high / MIB:.1f} after {many:,}), "
        f"{per_s:,.0f} requests/s",
        flush=True,
    )


async def at_once(request: web.Request) -> web.Response:
    """Answer with as many tokens as requested, without any delay."""
    tokens = (await request.json())["max_tokens"]
    choices = ({"index": 0, "text": f" w{n}", "token_ids": [50_000 + n]} for n in range(tokens))
    usage = {"prompt_tokens": 100, "completion_tokens": tokens}
    body = b"".join(event(choices=[choice]) for choice in choices) + event(usage=usage) + DONE
    return web.Response(body=body, content_type="text/event-stream")


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB


def write(source: str, folder: Path, rows: int) -> Path:
    """Write a trace of so many rows."""
    if source in ("synthetic", "sessions"):
        path = folder / "trace.yaml"
        path.write_text(f"{PLAIN}{TALKS if source == 'sessions' else ''}requests: {rows}\n")
        return path
    path, lines = folder / "trace", {"azure": azure, "mooncake": mooncake}[source]
    with path.open("w") as file:
        file.writelines(lines(rows))
    return path


def azure(rows: int) -> Iterator[str]:
    yield "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    start = datetime(2024, 5, 10)
    for number in range(rows):
        second, part = divmod(number, 50)
        if part == 0:
            stamp = f"{start + timedelta(seconds=second):%Y-%m-%d %H:%M:%S}"
        yield f"{stamp}.{part * 200_000:07d},{number % 4000 + 1},{number % 500 + 1}\n"


def mooncake(rows: int) -> Iterator[str]:
    """Rows with five to ten hashes, the first four of which are those of one of a thousand
    conversations.
    """
    for number in range(rows):
        blocks = 5 + number % 6
        talk = number % 1000 * 4
        hashes = [*range(talk, talk + 4), *range(10_000 + number, 10_000 + number + blocks - 4)]
        row = {"timestamp": number * 20, "input_length": blocks * 512, "output_length": 50}
        yield json.dumps(row | {"hash_ids": hashes}) + "\n"


if __name__ == "__main__":
    main()
