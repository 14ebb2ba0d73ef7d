"""Clients that misbehave towards a real server, and what the server holds meanwhile."""

from __future__ import annotations

import asyncio
import json
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import psutil
from clients import connected, one_answer
from odd_requests import body, head
from supervised import Served

JSON = {"Content-Type": "application/json"}
WAIT_S = 120.0


class Front:
    """The processes that listen at a server's address, with their memory and open files."""

    def __init__(self, served: Served) -> None:
        port = urlsplit(served.url).port
        self._processes = [each for each in served.family() if _listens(each, port)]
        assert self._processes

    def memory(self) -> int:
        """Memory (resident set) of all these processes, in bytes."""
        return sum(each.memory_info().rss for each in self._processes)

    def files(self) -> int:
        return sum(each.num_fds() for each in self._processes)

    async def has_at_most(self, files: int) -> None:
        """Wait until these processes together have at most `files` files open."""
        async with asyncio.timeout(WAIT_S):
            while self.files() > files:
                await asyncio.sleep(0.2)


def _listens(process: psutil.Process, port: int | None) -> bool:
    found = process.net_connections("tcp")
    return any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in found)


@dataclass
class Steady:
    """Well-behaved clients that send requests again and again while a test runs, and count
    statuses.
    """

    url: str
    statuses: Counter[int] = field(default_factory=Counter)

    async def rate(self, until: Callable[[], bool], clients: int = 4) -> float:
        """Let `clients` clients send requests until `until()` is true; return the answers per
        second.
        """
        loop, before = asyncio.get_running_loop(), self.statuses.total()
        begun = loop.time()
        async with aiohttp.ClientSession() as http:
            await asyncio.gather(*(self._one(http, until) for _ in range(clients)))
        return (self.statuses.total() - before) / (loop.time() - begun)

    async def _one(self, http: aiohttp.ClientSession, until: Callable[[], bool]) -> None:
        url, data = f"{self.url}/v1/completions", body("pids")
        while not until():
            async with http.post(url, data=data, headers=JSON) as answer:
                await answer.read()
                self.statuses[answer.status] += 1


def after(seconds: float) -> Callable[[], bool]:
    """Function that returns True once `seconds` have passed from now on."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    return lambda: loop.time() >= until


SLOW_HEAD = b"GET /live HTTP/1.1\r\nHost: localhost\r\nX-More: "
SLOW_BODY = head(b"Content-Length: 100000") + b'{"model": "a", "prompt": "'


async def slow(url: str, begin: bytes, every_s: float = 1.0) -> int:
    """Status of the answer to a client that sends `begin` and then one letter each `every_s`; 0 if
    the server just closes.
    """
    reader, writer = await connected(url, begin)
    answer = asyncio.create_task(one_answer(reader))
    while not (await asyncio.wait([answer], timeout=every_s))[0]:
        writer.write(b"a")
    writer.close()
    try:
        return answer.result()[0]
    except (ConnectionError, asyncio.IncompleteReadError):
        return 0  # closed without a word


async def sent_whole(url: str, data: bytes, sent: Callable[[], None]) -> tuple[int, dict[str, str]]:
    """Status and headers of the answer to a client that sends the body `data` of which this process
    has one copy for all clients. `sent` is called if all of it could be sent. Returns 0 and no
    headers if the server just closes.
    """
    reader, writer = await connected(url, head(b"Content-Length: %d" % len(data)))
    sending = asyncio.create_task(_send(writer, memoryview(data), sent))
    try:
        status, headers, _ = await one_answer(reader)
        return status, headers
    except (ConnectionError, asyncio.IncompleteReadError):
        return 0, {}  # closed while it sent
    finally:
        sending.cancel()
        writer.close()


async def _send(writer: asyncio.StreamWriter, data: memoryview, sent: Callable[[], None]) -> None:
    for begin in range(0, len(data), 1 << 16):
        writer.write(data[begin : begin + (1 << 16)])
        await writer.drain()
    sent()


@dataclass
class Soak:
    """Random operations by `clients` clients at a time. `count` has the number of each status, 0
    for an answer that the client did not wait for, or that broke off.
    """

    url: str
    models: tuple[str, ...]
    max_tokens: int = 4
    count: Counter[int] = field(default_factory=Counter)

    async def run(self, operations: int, seed: int, clients: int = 8) -> None:
        left = iter(range(operations))
        async with aiohttp.ClientSession() as http:
            await asyncio.gather(
                *(self._client(http, left, random.Random(f"{seed} {n}")) for n in range(clients))
            )

    async def _client(self, http: aiohttp.ClientSession, left: Any, dice: random.Random) -> None:
        for _ in left:
            try:
                async with asyncio.timeout(WAIT_S):
                    await self._one(http, dice)
            except aiohttp.ClientConnectionError:
                self.count[0] += 1

    async def _one(self, http: aiohttp.ClientSession, dice: random.Random) -> None:
        asked: dict[str, Any] = {"model": dice.choice(self.models), "prompt": "pids"}
        asked |= {"max_tokens": self.max_tokens, "stream": dice.random() < 0.3}
        kind, path, data = dice.random(), "/v1/completions", b""
        if kind < 0.1:
            asked["model"] = dice.choice(["nobody", "", None, 7])
        elif kind < 0.15:
            data = dice.choice([b"{", b"", b"[" * 3000, b'{"model": "a", "x": "\\ud83d"}'])
        elif kind < 0.2:
            path = dice.choice(["/nowhere", "/v1/v1/completions", "/sleep"])
        elif kind < 0.3:
            await self._read(http, dice.choice(["/v1/models", "/live", "/ready", "/health"]))
            return
        elif kind < 0.31:
            await self._read(http, dice.choice(["/metrics", "/mirage/state", "/openapi.json"]))
            return
        data = data or json.dumps(asked).encode()
        leaves = kind > 0.95
        async with http.post(self.url + path, data=data, headers=JSON) as answer:
            if not leaves:
                await answer.read()
        self.count[0 if leaves else answer.status] += 1

    async def _read(self, http: aiohttp.ClientSession, path: str) -> None:
        async with http.get(self.url + path) as answer:
            await answer.read()
            self.count[answer.status] += 1


EXPECTED = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", 501]
"""
"""A model does not offer each route: 501 is vLLM's word for that."""


def fuzz(
    served: Served, folder: Path, models: list[str], seconds: float, seed: int, phases: str
) -> Counter[int]:
    """Let schemathesis send requests by the server's own OpenAPI document; return the number of
    each status.

    Only served models are asked for, because others are refused before anything is read. Requests
    that were answered with a fault are printed with a way to repeat them. Only server errors count
    as faults.
    """
    status, document = served.request("GET", "/openapi.json")
    assert status == 200
    for schema in document["components"]["schemas"].values():
        if "model" in schema.get("properties", {}):
            schema["properties"]["model"] = {"enum": models}
    file = folder / "openapi.json"
    file.write_text(json.dumps(document))
    (folder / "schemathesis.toml").write_text(EXPECTED)
    before = statuses(served)
    done = subprocess.run(
        [
            *(str(Path(sys.executable).with_name("schemathesis")), "run", str(file)),
            *("--url", served.url, "--checks", "not_a_server_error", "--seed", str(seed)),
            *("--max-time", str(int(seconds)), "--continue-on-failure", "--no-shrink"),
            *("--suppress-health-check", "all", "--warnings", "off", "--phases", phases),
            *("--request-timeout", str(int(WAIT_S)), "--no-color"),
        ],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=seconds + 600,
    )
    told = done.stdout
    print(told[told.find("= FAILURES =") :] if "Server error" in told else told[-1200:])
    return statuses(served) - before


def statuses(served: Served) -> Counter[int]:
    """Number of requests to be passed on to engines, by status, from the server's metrics."""
    text = served.request("GET", "/metrics")[1].decode()
    found: Counter[int] = Counter()
    for code, count in re.findall(
        r'^mirage_http_requests_total{code="(\d+)".*} (\S+)$', text, re.M
    ):
        found[int(code)] += int(float(count))
    return found
