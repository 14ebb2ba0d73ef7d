"""The router's process: `python -m mirage.serve.router.process LINE LEVEL DESCRIPTORS`.

It imports what a router needs, and forks the router. If the router is killed or fails, this process
forks another one on the same sockets, with or without a supervisor. It does nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import uvloop

from mirage.processes.unread import unread_stderr
from mirage.serve.logs.logs import LogFormat, LogPlan, log_by
from mirage.serve.router.access_log import AccessLog
from mirage.serve.router.app import Router
from mirage.serve.router.link import AGAIN_S, SupervisorLink
from mirage.wire import Broken

log = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1
SHORT_S = 1.0
"""Seconds of life of a router below which another one is started only after `PAUSE_S`."""
PAUSE_S = 0.5
ATTEMPTS = 25
"""Number of attempts of a new router to connect to the supervisor, beside a last one that may
raise.
"""


async def serve(line: Path, sockets: Sequence[socket.socket], access: Path | None) -> None:
    """Serve until the supervisor ends the router, or is away beyond the lease.

    `access` is the file for a line about each request, None for none. Raises `OSError` or `Broken`
    if the supervisor cannot be connected at the start.
    """
    link = SupervisorLink(line, sockets)
    await _connect(link)
    router = Router(link, AccessLog(access) if access is not None else None)
    keeping = asyncio.create_task(link.keep(router))
    starting = asyncio.create_task(_start(link, router, sockets))
    beside = asyncio.create_task(router.tenants.keep())
    try:
        await asyncio.wait([keeping, starting], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
        starting.cancel()
        await keeping
    finally:
        beside.cancel()
        await router.stop()


async def _start(link: SupervisorLink, router: Router, sockets: Sequence[socket.socket]) -> None:
    await link.has_table.wait()
    await router.start(sockets)


async def _connect(link: SupervisorLink) -> None:
    for _ in range(ATTEMPTS):
        with contextlib.suppress(OSError, Broken):
            await link.connect()
            return
        await asyncio.sleep(AGAIN_S)
    await link.connect()


def _run(line: Path, sockets: Sequence[socket.socket], parent: int, access: Path | None) -> int:
    """Run a router until its end in this process, which the process `parent` has just forked;
    returns the exit status for this process."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return 1
    with unread_stderr():
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(serve(line, sockets, access))
        except (OSError, Broken) as error:
            log.error("the router has no supervisor: %s", error)
        except Exception:
            log.exception("the router failed")
            return 1
    return 0


def main(words: Sequence[str] | None = None) -> None:
    """Fork a router, and another one after each that fails, until one exits with status 0. `words`
    are the arguments, None for those of the command line."""
    parser = argparse.ArgumentParser(prog="router")
    parser.add_argument("line", type=Path)
    parser.add_argument("level", type=int)
    parser.add_argument("descriptors", type=int, nargs="+")
    parser.add_argument("--lease", action="store_true", help="it may outlive the supervisor")
    parser.add_argument("--log-format", type=LogFormat, default=LogFormat.TEXT)
    parser.add_argument("--log-file", type=Path)
    parser.add_argument("--access-log", type=Path)
    given = parser.parse_args(words)
    if not given.lease:  # no answer may come after the supervisor's death
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the server ends first
    log_by(LogPlan(given.log_format, given.log_file), given.level)
    sockets = [socket.socket(fileno=descriptor) for descriptor in given.descriptors]
    parent = os.getpid()
    gc.collect()
    gc.freeze()  # what was imported stays: no collection looks at it again
    while True:
        begun = time.monotonic()
        if not (child := os.fork()):
            os._exit(_run(given.line, sockets, parent, given.access_log))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if not status:
            return
        log.warning("the router ended (%d): another one serves", status)
        if time.monotonic() - begun < SHORT_S:
            time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
