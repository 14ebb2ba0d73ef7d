"""A light engine that grows its KV memory piece by piece, and streams chunks at a given rate.

It takes the command line of `mirage.serve.launch.launcher.command`. For each piece it reports its
demand, as an engine does after a step, waits for its allotment and maps the memory. A line of
``GROWTH_FILE`` has the time of the demand, on the clock of all processes, and the seconds until the
piece was usable. A line that begins with ``maps`` has the time at which any engine began to map or
unmap, and the seconds that this took. ``GROWTH_CORE`` is the processor that the engine runs on. A
completion of N `max_tokens` is a stream of N events, `best_of` of them a second.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from aiohttp import web

from mirage.protocol import (
    BEAT_S,
    PROTOCOL_VERSION,
    Allotment,
    Hello,
    ModelShape,
    Pulse,
    Refusal,
    Report,
    Shutdown,
    Stepped,
    ToEngine,
)
from mirage.wire import Channel, encode
from vmm.host import HostDriver

PAGE = 1 << 16
EXTENT = 8 * PAGE
LAYER = FIXED = PAGE
LAYERS, MOST, LEAST = 2, 120, 8
SHAPE = ModelShape(LAYERS, LAYER, FIXED, EXTENT, 1, 16, MOST, LEAST, LAYERS)
FULL = 100
"""Extents that are enough: more than the share of 60."""
SECOND = "second"
"""The one of two tenants that grows in odd turns of the clock, while the other one wants little; in
even ones it is the other way round."""
TURN_S = 1.0
SETTLES_S = 0.1
"""Seconds of a turn that are not counted: the other one may not have said yet that it rests."""
PAUSE_S = 0.005
"""Seconds between two pieces: a decode step."""
REST_S = 0.02
EVENT = b'data: {"choices": [{"index": 0, "text": " token", "finish_reason": null}]}\n\n'


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--uds", type=Path)
    parser.add_argument("--additional-config", type=json.loads)
    parser.add_argument("--core", action="store_true")
    options, _ = parser.parse_known_args()
    os.sched_setaffinity(0, {int(os.environ["GROWTH_CORE"])})
    mirage = options.additional_config["mirage"]
    if options.core:
        Core(str(mirage["tenant"])).run(str(mirage["control"]))
    else:
        asyncio.run(serve(options.uds))


class Core:
    """Core of the fake engine, which holds the memory."""

    def __init__(self, tenant: str) -> None:
        self._tenant = tenant
        self._told: queue.SimpleQueue[Allotment | Refusal | None] = queue.SimpleQueue()
        self._driver = HostDriver(PAGE)
        self._begin = self._driver.reserve(MOST * EXTENT)
        self._pages: list[Any] = []
        """Pages of each mapped extent, in the order of addresses."""
        self._newest = Allotment(0, 0, 0, 0, _held(0))

    def run(self, address: str) -> None:
        with socket.socket(socket.AF_UNIX) as control:
            control.connect(address)
            self._control, self._lock = control, threading.Lock()
            self._say(Hello(PROTOCOL_VERSION, self._tenant, os.getpid(), SHAPE, _held(0)))
            self._report(0)
            self._say(Stepped())
            for work in (self._beat, self._listen):
                threading.Thread(target=work, daemon=True).start()
            goes_on = self._obey(self._told.get())
            while goes_on:
                goes_on = self._grow() if self._has_turn() else self._rest()

    def _has_turn(self) -> bool:
        return int(time.monotonic() / TURN_S) % 2 == (self._tenant == SECOND)

    def _grow(self) -> bool:
        """Grow by one piece, unless there are enough or growth was refused. False if the server has
        ended.
        """
        time.sleep(PAUSE_S)
        if (wanted := len(self._pages) + 1) > FULL:
            return self._rest(wanted - 1)
        asked = time.monotonic()
        self._report(wanted)
        while len(self._pages) < wanted:
            if isinstance(told := self._told.get(), Refusal):
                return self._rest()  # as one that preempts its requests
            if not self._obey(told, wanted):
                return False
        took = time.monotonic() - asked
        if asked % TURN_S > SETTLES_S:
            self._log(f"{asked} {took}")
        return True

    def _rest(self, wanted: int = LEAST) -> bool:
        """Obey messages for a while. False if the server has ended."""
        self._report(wanted)
        try:
            return self._obey(self._told.get(timeout=REST_S), wanted)
        except queue.Empty:
            return True

    def _obey(self, told: Allotment | Refusal | None, wanted: int = LEAST) -> bool:
        """Hold what the allotment `told` says, and report a wish for `wanted` extents. False if the
        server has ended.
        """
        if not isinstance(told, Allotment):
            return told is not None
        self._newest, begun, before = told, time.monotonic(), len(self._pages)
        while len(self._pages) < told.kv_extents:
            pages = self._driver.create(EXTENT // PAGE)
            self._driver.map(self._begin + len(self._pages) * EXTENT, pages)
            self._pages.append(pages)
        while len(self._pages) > told.kv_extents:
            pages = self._pages.pop()
            self._driver.unmap(self._begin + len(self._pages) * EXTENT, EXTENT)
            self._driver.release(pages)
        mapped_s = time.monotonic() - begun
        self._report(wanted)
        if len(self._pages) != before:
            self._log(f"maps {begun} {mapped_s}")
        return True

    def _log(self, line: str) -> None:
        with Path(os.environ["GROWTH_FILE"]).open("a") as log:
            log.write(line + "\n")

    def _report(self, wanted: int) -> None:
        told, has = self._newest, len(self._pages)
        report = Report(
            told.revision, True, _held(has), told.layers_remapped, told.stream_slots, has, 0
        )
        report.kv_usable_extents = report.kv_blocks = has
        report.kv_used_extents = report.kv_used_blocks = min(wanted, has)
        report.growth_extents = report.admission_extents = wanted
        report.running, report.asleep = int(wanted > 0), told.asleep
        self._say(report)

    def _say(self, message: Any) -> None:
        with self._lock if hasattr(self, "_lock") else contextlib.nullcontext():
            self._control.sendall(encode(message))

    def _beat(self) -> None:
        calls = 0
        while True:
            calls += 1
            self._say(Pulse(calls, 0))
            time.sleep(BEAT_S)

    def _listen(self) -> None:
        channel: Channel[ToEngine] = Channel(self._control, ToEngine)
        for message in channel.until_end():
            if isinstance(message, Shutdown):
                break
            if isinstance(message, Allotment | Refusal):
                self._told.put(message)
        self._told.put(None)


def _held(extents: int) -> int:
    return LAYERS * LAYER + FIXED + extents * EXTENT


async def serve(uds: Path) -> None:
    child = subprocess.Popen([sys.executable, *sys.argv, "--core"])
    app = web.Application()
    app.router.add_get("/health", lambda request: asyncio.sleep(0, web.Response()))
    app.router.add_post("/v1/completions", stream)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.UnixSite(runner, str(uds)).start()
    while child.poll() is None:
        await asyncio.sleep(0.5)
    os._exit(1)


async def stream(request: web.Request) -> web.StreamResponse:
    """Stream of events at the requested rate; an event that is late is sent immediately."""
    asked = await request.json()
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    if not asked.get("stream"):
        return response
    loop = asyncio.get_running_loop()
    begun = loop.time()
    for number in range(asked["max_tokens"]):
        await asyncio.sleep(max(0.0, begun + number / asked["best_of"] - loop.time()))
        await response.write(EVENT)
    return response


if __name__ == "__main__":
    main()
