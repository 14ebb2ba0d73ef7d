"""Processor time of the router for a scrape of `/metrics`, with several engines behind it.

python -m benchmarks.scrape_cost [--engines 8] [--scrapes 20] [--histograms 24] [--plain 40]

One process stands for all engines. It answers at a socket for each, with as many metric families as
vLLM has. The router has a process of its own, as under `mirage serve`; the supervisor is this
process. The program prints processor and wall time of three kinds of scrape: one that asks all
engines, one shortly after another, and one with an engine that never answers.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import signal
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import median
from typing import NamedTuple

import aiohttp
import psutil
import uvloop
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from benchmarks.router_cost import cpu_s
from mirage.config import HANG_S, HttpSection, Policy
from mirage.control.roster.roster import Roster
from mirage.control.roster.states import LifeState
from mirage.processes.reaper_client import ReaperClient
from mirage.protocol import Report
from mirage.serve.access.forms import NO_KEYS
from mirage.serve.registry.registry import Registry, TenantServer
from mirage.serve.roster.attendance import Attendance
from mirage.serve.routed.messages import RouterWelcome
from mirage.serve.routed.resizing import Resize
from mirage.serve.router.asked_source import FRESH_S
from mirage.serve.routing.desk import RouterDesk
from mirage.serve.routing.inner import InnerServer
from mirage.serve.routing.keeper import PROGRAM, RouterKeeper

BUCKETS = [step * 10.0**power for power in range(-3, 3) for step in (1, 2.5, 5)]


def told(model: str, histograms: int, plain: int) -> bytes:
    """Metrics of one engine, as text in vLLM's form."""
    registry = CollectorRegistry()
    own = {"model_name": model, "engine": "0"}
    for number in range(plain):
        kind = Counter if number % 2 else Gauge
        kind(f"vllm:plain_{number}", "One of many", [*own], registry=registry).labels(**own).inc(3)
    for number in range(histograms):
        name = f"vllm:times_{number}_seconds"
        family = Histogram(name, "Times", [*own], registry=registry, buckets=BUCKETS)
        family.labels(**own).observe(0.1)
    answers = Counter("http_requests", "Answers", ["handler", "status"], registry=registry)
    answers.labels("/v1/completions", "2xx").inc()
    return generate_latest(registry)


async def engines(folder: Path, count: int, histograms: int, plain: int) -> None:
    """Answer at one socket for each model, for ever."""
    for number in range(count):
        text = told(f"model-{number}", histograms, plain)

        async def answer(request: web.Request, text: bytes = text) -> web.Response:
            return web.Response(body=text, content_type="text/plain")

        app = web.Application()
        app.router.add_get("/metrics", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.UnixSite(runner, folder / f"{number}.sock").start()
    (folder / "up").touch()
    await asyncio.Event().wait()


class Scraped(NamedTuple):
    """Cost of one scrape: milliseconds of the router's processor and of the clock, and bytes."""

    cpu: float
    wall: float
    size: int


@asynccontextmanager
async def router(folder: Path, count: int) -> AsyncIterator[tuple[str, int]]:
    """Run a router in front of the engines while the block runs; yields its URL and process id."""
    backends = {
        f"model-{n}": TenantServer(
            f"model-{n}", folder / f"{n}.sock", 4096, LifeState.READY, missed=False
        )
        for n in range(count)
    }
    registry = Registry(Policy.MIRAGE, 1 << 30, backends)
    registry.reports |= {name: Report(1, True, 77, 3, 2, 4, 1) for name in backends}
    desk = RouterDesk(registry, Attendance(Roster(1 << 30), None), HANG_S)  # type: ignore[arg-type]
    inner, line = folder / "inner.sock", folder / "router.sock"
    server = InnerServer(registry, desk, _no_resize, _no_overview)
    await server.start(inner)
    http = HttpSection().model_dump()
    await desk.start(line, RouterWelcome(http, "127.0.0.1", 1, HANG_S, str(inner), {}), NO_KEYS)
    listening = socket.create_server(("127.0.0.1", 0))

    async def sockets() -> list[socket.socket]:
        return [listening]

    with ReaperClient() as reaper:
        keeper = RouterKeeper(desk, reaper, line, sockets, lambda pid: None)
        await keeper.start()
        keeping = asyncio.create_task(desk.keep())
        await desk.connected()
        children = psutil.Process().children()
        (nursery,) = (one for one in children if PROGRAM[-1] in one.cmdline())
        (forked,) = nursery.children()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", forked.pid
        finally:
            keeping.cancel()
            await keeper.stop()
            await server.stop()
            desk.close()
            listening.close()


async def _no_overview(*, reasons: bool) -> bytes:
    return b"{}"


async def _no_resize(wanted: Resize) -> None:
    raise ValueError("nothing to resize")


async def scrapes(url: str, pid: int, count: int, apart_s: float) -> list[Scraped]:
    """Costs of so many scrapes, `apart_s` after each other, without the first one,
    which connects.
    """
    found = []
    async with aiohttp.ClientSession() as http:
        for _ in range(count + 1):
            cpu, wall = cpu_s(pid), time.monotonic()
            async with http.get(url + "/metrics") as answer:
                size = len(await answer.read())
            took = time.monotonic() - wall
            found.append(Scraped(1e3 * (cpu_s(pid) - cpu), 1e3 * took, size))
            await asyncio.sleep(apart_s)
    return found[1:]


def show(name: str, found: list[Scraped]) -> None:
    cpu, wall = [one.cpu for one in found], [one.wall for one in found]
    print(
        f"{name:24} {median(cpu):8.2f} {max(cpu):8.2f} {median(wall):8.2f} {max(wall):8.2f}"
        f" {found[-1].size / 1024:8.0f}"
    )


async def measured(options: argparse.Namespace, folder: Path) -> None:
    late = folder / "late"
    late.mkdir()
    size = (options.histograms, options.plain)
    with process(folder, options.engines, *size), process(late, 1, *size) as frozen:
        while not ((folder / "up").exists() and (late / "up").exists()):
            await asyncio.sleep(0.05)
        print(f"{'ms a scrape':24} {'router':>8} {'most':>8} {'clock':>8} {'most':>8} {'KiB':>8}")
        async with router(folder, options.engines) as (url, pid):
            apart_s = FRESH_S + 0.05
            show(f"{options.engines} engines", await scrapes(url, pid, options.scrapes, apart_s))
            show("asked a moment ago", await scrapes(url, pid, options.scrapes, 0.0))
            (late / "0.sock").replace(folder / "0.sock")
            assert frozen.pid is not None
            os.kill(frozen.pid, signal.SIGSTOP)
            show("one is frozen", await scrapes(url, pid, options.scrapes, apart_s))


@contextmanager
def process(*words: object) -> Iterator[BaseProcess]:
    """Run all engines in one process of their own while the block runs."""
    made = multiprocessing.get_context("spawn").Process(target=_run, args=words, daemon=True)
    made.start()
    try:
        yield made
    finally:
        made.kill()
        made.join()


def _run(folder: Path, count: int, histograms: int, plain: int) -> None:
    asyncio.run(engines(folder, count, histograms, plain))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--scrapes", type=int, default=20)
    parser.add_argument("--histograms", type=int, default=24)
    parser.add_argument("--plain", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        uvloop.run(measured(options, Path(folder)))


if __name__ == "__main__":
    main()
