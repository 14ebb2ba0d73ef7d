"""A light engine that borrows KV memory while a file says so, and returns it afterwards.

It takes the command line of `mirage.serve.launch.launcher.command`; `starting` starts it for the
tenant `BORROWER`, and vLLM's server for any other. While ``LOANS_FILE`` has ``borrow``, its
requests occupy all memory that it is granted and want more; otherwise it wants the least.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from mirage.geometry import footprint
from mirage.processes.child import NewChild, Start, start_program
from mirage.protocol import (
    BEAT_S,
    PROTOCOL_VERSION,
    Allotment,
    Hello,
    ModelShape,
    Pulse,
    Report,
    Shutdown,
    Stepped,
    ToEngine,
)
from mirage.serve.launch.launcher import SERVER
from mirage.wire import Channel, encode

BORROWER = "code"
BORROW, REST = "borrow", "rest"
MIB = 1 << 20
SHAPE = ModelShape(1, MIB, MIB, MIB, 1, 16, max_extents=4096, min_extents=4, movable_layers=0)
SEQUENCES = 8
POLL_S = 0.05


def starting(others: Start) -> Start:
    """Function that starts this program for the borrower, and all other engines by `others`."""

    def start(command: list[str], environment: Mapping[str, str], log: Path) -> NewChild:
        if BORROWER not in command:
            return others(command, environment, log)
        words = command[1 + len(SERVER) :]
        return start_program([sys.executable, __file__, *words], environment, log)

    return start


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--uds", type=Path)
    parser.add_argument("--additional-config", type=json.loads)
    parser.add_argument("--core", action="store_true")
    options, _ = parser.parse_known_args()
    if options.core:
        Core(Path(os.environ["LOANS_FILE"])).run(options.additional_config["mirage"]["control"])
    else:
        asyncio.run(serve(options.uds))


class Core:
    """Core of the fake engine, which has no memory but speaks with the control server."""

    def __init__(self, file: Path) -> None:
        self._file, self._lock = file, threading.Lock()
        self._newest = Allotment(0, 0, 0, 0, footprint(SHAPE, 0, 0))

    def run(self, address: str) -> None:
        """Exchange messages with the control server until it ends or orders the end."""
        with socket.socket(socket.AF_UNIX) as self._control:
            self._control.connect(address)
            held = self._newest.grant_bytes
            self._say(Hello(PROTOCOL_VERSION, BORROWER, os.getpid(), SHAPE, held), Stepped())
            threading.Thread(target=self._watch, daemon=True).start()
            channel: Channel[ToEngine] = Channel(self._control, ToEngine)
            for message in channel.until_end():
                if isinstance(message, Shutdown):
                    return
                if isinstance(message, Allotment):
                    self._newest = message
                    self._report()

    def _watch(self) -> None:
        """Send signs of life, and a report whenever the file has changed."""
        said, calls, beat_s = "", 0, 0.0
        while True:
            if (says := self._file.read_text()) != said:
                said = says
                self._report()
            if time.monotonic() - beat_s > BEAT_S:
                calls, beat_s = calls + 1, time.monotonic()
                self._say(Pulse(calls, 0))
            time.sleep(POLL_S)

    def _report(self) -> None:
        told, borrows = self._newest, self._file.read_text() == BORROW
        has, used = told.kv_extents, told.kv_extents if borrows else 0
        report = Report(told.revision, True, told.grant_bytes, 0, 0, has, used)
        report.kv_usable_extents, report.kv_blocks = has, max(0, has - 1)
        report.kv_used_blocks = used
        if borrows:
            report.running, report.growth_extents = SEQUENCES, SHAPE.max_extents
        self._say(report)

    def _say(self, *messages: Any) -> None:
        with self._lock:
            self._control.sendall(b"".join(map(encode, messages)))


async def serve(uds: Path) -> None:
    """Start the core, and answer `/health` at the Unix socket `uds`. If the core ends, this process
    ends with status 1."""
    child = subprocess.Popen([sys.executable, *sys.argv, "--core"])
    app = web.Application()
    app.router.add_get("/health", lambda request: asyncio.sleep(0, web.Response()))
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, str(uds)).start()
    while child.poll() is None:
        await asyncio.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    main()
