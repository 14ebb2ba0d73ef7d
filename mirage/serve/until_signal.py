"""A server until a signal: the first SIGTERM or SIGINT makes it stop after a time for running
requests, the second kills it at once. SIGHUP makes it read its files again.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from mirage.processes.hangup import HangUps
from mirage.serve.logs.progress import say
from mirage.serve.service.manager import ServiceManager

HANG_UP_S = 0.5
"""Seconds to wait after SIGHUP: a terminal that closes is gone by then, and may send it more than
once.
"""
EXIT_CODES: dict[int, int] = {signal.SIGTERM: 0, signal.SIGHUP: 0, signal.SIGINT: 130}


class SignalledServer(Protocol):
    """Server, as the handler of its signals sees it (`UntilSignal`)."""

    async def serve(self) -> None:
        """Start and serve. Never returns: it fails or is cancelled."""

    def stops(self) -> None:
        """Note that the first signal has come; `stop` follows."""

    async def stop(self) -> None:
        """Stop all that has begun, with time for running requests; the task of `serve` has ended
        before."""

    def kill(self) -> None:
        """Kill all processes of the server immediately, and remove the files of its run."""


class UntilSignal:
    """Handler of the signals to one server."""

    def __init__(self, server: SignalledServer, hangups: HangUps, service: ServiceManager) -> None:
        self._server, self._hangups, self._service = server, hangups, service
        self._hung_up = asyncio.Event()
        self._signal: asyncio.Future[int]

    async def run(self) -> int:
        """Serve and stop; return the exit code. Raises the error with which the server's
        `serve` ends."""
        loop = asyncio.get_running_loop()
        self._signal = loop.create_future()
        for number in EXIT_CODES.keys() - {signal.SIGHUP}:
            loop.add_signal_handler(number, self._on_signal, number)
        if not self._hangups.ignored:
            loop.add_signal_handler(signal.SIGHUP, self._hung_up.set)
        work = asyncio.create_task(self._server.serve(), name="serve")
        try:
            either: list[asyncio.Future[Any]] = [work, self._signal]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
            return self._signal.result()
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            self._service.stopping()
            await self._server.stop()

    async def hear_hangups(self, read_again: Callable[[], Awaitable[None]]) -> None:
        """Stop if the terminal is gone; on any other SIGHUP read files again. Never returns."""
        while True:
            await self._hung_up.wait()
            self._service.reloading()
            await asyncio.sleep(HANG_UP_S)
            self._hung_up.clear()
            if self._hangups.terminal_is_gone:
                self._on_signal(signal.SIGHUP)
            else:
                await read_again()
                self._service.reloaded()

    def _on_signal(self, number: int) -> None:
        name, code = signal.Signals(number).name, EXIT_CODES[number]
        if not self._signal.done():
            say(f"{name}: stopping; once more to stop at once")
            self._server.stops()
            self._signal.set_result(code)
            return
        self._server.kill()
        os._exit(code)


@contextmanager
def signals_exit(hangups: HangUps) -> Iterator[None]:
    """Context in which a signal that stops a server raises `SystemExit`, so that nothing is left
    behind.
    """

    def leave(number: int, frame: object) -> None:
        if number != signal.SIGHUP or (hangups.terminal_is_gone and not hangups.ignored):
            raise SystemExit(EXIT_CODES[number])

    before = {number: signal.signal(number, leave) for number in EXIT_CODES}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
