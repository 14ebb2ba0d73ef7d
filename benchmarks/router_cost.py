"""Processor time of the router for a request and for a chunk of a stream, and that of a bare proxy.

python benchmarks/router_cost.py [--rounds 7] [--requests 2000] [--streams 100] [--chunks 100]

Before one dummy backend on a Unix socket are the router, in its own process as under `mirage
serve`, and a proxy of forty lines that only passes requests on (aiohttp over uvloop). Their rounds
alternate, so that a busy machine affects both, and medians are compared. The time of a chunk is the
time of streams beyond that of as many requests. Chunks of one stream are 20 ms apart.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import median
from typing import NamedTuple

import aiohttp
import psutil
import uvloop
from aiohttp import web

from mirage.config import HANG_S, HttpSection, Policy
from mirage.control.roster.roster import Roster
from mirage.control.roster.states import LifeState
from mirage.processes.reaper_client import ReaperClient
from mirage.serve.access.forms import NO_KEYS
from mirage.serve.registry.registry import Registry, TenantServer
from mirage.serve.roster.attendance import Attendance
from mirage.serve.routed.messages import RouterWelcome
from mirage.serve.routing.desk import RouterDesk
from mirage.serve.routing.keeper import PROGRAM, RouterKeeper

ROUTE = "/v1/completions"
AT_ONCE = 16
"""Requests at one time, where they are not streams."""
GAP_S = 0.02
EVENT = b'data: {"choices": [{"index": 0, "text": "%08d"}], "id": "cmpl-0", "model": "a"}\n\n'
ANSWER = {"choices": [{"index": 0, "text": "Hello" * 20}], "model": "a"}
USAGE = {"prompt_tokens": 100, "completion_tokens": 16, "total_tokens": 116}
PROMPT = "A prompt of a hundred tokens or so. " * 14


# -- the other processes --------------------------------------------------------------------


async def backend(path: str) -> None:
    """Serve at a Unix socket: answer each request immediately, or as a stream of as many chunks as
    it has `max_tokens`.
    """

    async def answer(request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        if not (chunks := asked.get("max_tokens")) or not asked.get("stream"):
            return web.json_response(ANSWER | {"usage": USAGE})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        begun = time.monotonic()
        for number in range(chunks):
            await response.write(EVENT % number)
            await asyncio.sleep(begun + (number + 1) * GAP_S - time.monotonic())
        await response.write(b"data: [DONE]\n\n")
        return response

    await _listen(answer, path=path)


async def bare(path: str, port_of: str) -> None:
    """Serve for ever as a proxy that only passes requests on to the Unix socket `path`. Its own
    port is written to the file `port_of`.
    """
    http = aiohttp.ClientSession(
        connector=aiohttp.UnixConnector(path, limit=0), auto_decompress=False
    )

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = {"Content-Type": request.headers["Content-Type"]}
        async with http.post(f"http://a{request.path_qs}", data=body, headers=headers) as got:
            kept = {"Content-Type": got.headers["Content-Type"]}
            if "Content-Length" in got.headers:
                kept["Content-Length"] = got.headers["Content-Length"]
            response = web.StreamResponse(status=got.status, headers=kept)
            await response.prepare(request)
            while chunk := await got.content.readany():
                await response.write(chunk)
            return response

    await _listen(answer, port_of=port_of)


async def _listen(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]],
    *,
    path: str = "",
    port_of: str = "",
) -> None:
    """Serve for ever at the Unix socket `path`, or else at a free port, which is written to the
    file `port_of`.
    """
    app = web.Application()
    app.router.add_post(ROUTE, answer)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    if path:
        await web.UnixSite(runner, path).start()
    else:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        Path(port_of).write_text(str(runner.addresses[0][1]))
    await asyncio.Event().wait()


def _main(which: str, words: tuple[str, ...]) -> None:
    os.setsid()  # as the router has it: Linux may share processors by session
    uvloop.run({"backend": backend, "bare": bare}[which](*words))


@contextlib.contextmanager
def process(which: str, *words: str) -> Iterator[BaseProcess]:
    """Run a process while the block runs, and kill it at the end; `which` is "backend" or "bare",
    and `words` its arguments."""
    made = multiprocessing.get_context("spawn").Process(
        target=_main, args=(which, words), daemon=True
    )
    made.start()
    try:
        yield made
    finally:
        made.kill()
        made.join()


def cpu_s(pid: int) -> float:
    """Processor seconds that a process has used; its clock's id is as the C library makes it."""
    return time.clock_gettime((~pid << 3) | 2)


# -- what is measured -----------------------------------------------------------------------


class Proxy(NamedTuple):
    """One of the two measured proxies: the router or the bare one."""

    name: str
    url: str
    pid: int


class Cost(NamedTuple):
    """Processor time of a proxy in microseconds, for a request and for a chunk."""

    request: float
    chunk: float


@contextlib.asynccontextmanager
async def router(folder: Path, path: Path) -> AsyncIterator[Proxy]:
    """Run our router in front of the backend at the socket `path`, in its own process, while the
    block runs.
    """
    backends = {"a": TenantServer("a", path, 4096, LifeState.READY, missed=False)}
    registry = Registry(Policy.MIRAGE, 1 << 30, backends)
    desk = RouterDesk(registry, Attendance(Roster(1 << 30), None), HANG_S)  # type: ignore[arg-type]
    http, line = HttpSection().model_dump(), folder / "router.sock"
    await desk.start(line, RouterWelcome(http, "127.0.0.1", 1, HANG_S, "", {}), NO_KEYS)
    listening = socket.create_server(("127.0.0.1", 0))
    with ReaperClient() as reaper:

        async def sockets() -> list[socket.socket]:
            return [listening]

        keeper = RouterKeeper(desk, reaper, line, sockets, lambda pid: None)
        await keeper.start()
        keeping = asyncio.create_task(desk.keep())
        await desk.connected()
        children = psutil.Process().children()
        (nursery,) = (one for one in children if PROGRAM[-1] in one.cmdline())
        (forked,) = nursery.children()
        try:
            yield Proxy("router", f"http://127.0.0.1:{listening.getsockname()[1]}", forked.pid)
        finally:
            keeping.cancel()
            await keeper.stop()
            desk.close()
            listening.close()


async def ask(http: aiohttp.ClientSession, url: str, chunks: int) -> None:
    body = {"model": "a", "prompt": PROMPT, "max_tokens": chunks or 16, "stream": chunks > 0}
    data = json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "Authorization": "Bearer x" * 8}
    async with http.post(url + ROUTE, data=data, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        read = 0
        while chunk := await answer.content.readany():
            read += chunk.count(b"\n\n")
        assert read == (chunks + 1 if chunks else 0), read


async def requests(http: aiohttp.ClientSession, url: str, count: int) -> None:
    left = iter(range(count))

    async def one_after_the_other() -> None:
        for _ in left:
            await ask(http, url, 0)

    await asyncio.gather(*(one_after_the_other() for _ in range(AT_ONCE)))


async def measured(proxy: Proxy, options: argparse.Namespace) -> Cost:
    """Measure one round of a proxy: requests without streams, and then streams."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as http:
        await requests(http, proxy.url, 4 * AT_ONCE)
        begun = cpu_s(proxy.pid)
        await requests(http, proxy.url, options.requests)
        request = (cpu_s(proxy.pid) - begun) / options.requests
        begun = cpu_s(proxy.pid)
        streams = [ask(http, proxy.url, options.chunks) for _ in range(options.streams)]
        await asyncio.gather(*streams)
        took = cpu_s(proxy.pid) - begun - options.streams * request
    return Cost(1e6 * request, 1e6 * took / (options.streams * options.chunks))


async def compare(options: argparse.Namespace, folder: Path) -> None:
    path, port = folder / "a.sock", folder / "port"
    with process("backend", str(path)), process("bare", str(path), str(port)) as proxy:
        async with router(folder, path) as ours:
            while not (path.exists() and port.exists() and port.read_text()):
                await asyncio.sleep(0.05)
            assert proxy.pid is not None
            other = Proxy("bare", f"http://127.0.0.1:{port.read_text()}", proxy.pid)
            costs: dict[str, list[Cost]] = {"bare": [], "router": []}
            for _ in range(options.rounds):
                for one in (other, ours):
                    costs[one.name].append(await measured(one, options))
    print(f"{'µs of a processor':18} {'bare proxy':>10} {'router':>8} {'ratio':>6}")
    for field in Cost._fields:
        middle = {n: median(getattr(cost, field) for cost in costs[n]) for n in costs}
        ratio = middle["router"] / middle["bare"]
        print(f"{field:18} {middle['bare']:10.1f} {middle['router']:8.1f} {ratio:6.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--chunks", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        uvloop.run(compare(options, Path(folder)))


if __name__ == "__main__":
    main()
