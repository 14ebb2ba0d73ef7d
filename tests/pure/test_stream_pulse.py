"""Comments that keep a silent stream open, by a clock that jumps instead of waiting."""

from __future__ import annotations

import asyncio
import gc
import selectors
from collections.abc import Awaitable, Callable
from typing import cast

import pytest
from aiohttp import web

from mirage.serve.clients.stream_pulse import COMMENT, StreamPulse
from mirage.serve.http.whole_events import WholeEvents

pytestmark = pytest.mark.pure
EVENT = b"data: 1\n\n"


class JumpingSelector(selectors.SelectSelector):
    """Selector that returns at once, and adds the time that its loop would have waited to its
    clock.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is not None:
            self.now += timeout
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    """Event loop whose time is the clock of its selector."""

    def __init__(self) -> None:
        self._jumps = JumpingSelector()
        super().__init__(self._jumps)

    def time(self) -> float:
        return self._jumps.now


class Sink:
    """Stand-in for an answer to a client. It records each write with its time, and a write of an
    event takes `blocks` seconds.
    """

    def __init__(self, blocks: float = 0.0, gone: bool = False) -> None:
        self.written: list[tuple[float, bytes]] = []
        self._blocks, self._gone = blocks, gone

    async def write(self, data: bytes) -> None:
        self.written.append((round(asyncio.get_running_loop().time(), 3), data))
        if self._gone:
            raise ConnectionResetError
        await asyncio.sleep(0 if data == COMMENT else self._blocks)


def comments(
    sink: Sink,
    scenario: Callable[[StreamPulse], Awaitable[None]],
    events: WholeEvents | None,
    quiet_s: float | None = 15.0,
) -> list[float]:
    """Times at which comments were written, in seconds since the start of `scenario`. `events` is
    None for an answer that is no stream.
    """

    async def main() -> None:
        response = cast(web.StreamResponse, sink)
        with StreamPulse(response, events, quiet_s) as pulse:
            await scenario(pulse)
        await asyncio.sleep(100)  # nothing comes after the context

    loop, faults = JumpingLoop(), list[object]()
    loop.set_exception_handler(lambda _, fault: faults.append(fault))
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()
    gc.collect()
    assert faults == []
    return [when for when, data in sink.written if data == COMMENT]


async def writes(pulse: StreamPulse) -> None:
    """Write an event after 10, 20 and 30 s, and nothing more until 63 s."""
    for _ in range(3):
        await asyncio.sleep(10)
        await pulse.write(EVENT)
    await asyncio.sleep(33)


def test_a_comment_comes_when_nothing_was_sent_for_so_long() -> None:
    assert comments(Sink(), writes, WholeEvents()) == [45, 60]


def test_without_events_or_a_time_there_is_none() -> None:
    assert comments(Sink(), writes, None) == []
    assert comments(Sink(), writes, WholeEvents(), None) == []


def test_who_does_not_read_gets_none() -> None:
    """The client reads so slowly that each event takes 40 s to be sent. No comment is written
    meanwhile, only 15 and 30 s after the last event was sent.
    """
    assert comments(Sink(blocks=40), writes, WholeEvents()) == [165, 180]


def test_none_comes_within_an_event() -> None:
    events = WholeEvents()
    events.is_open = True
    assert comments(Sink(), writes, events) == []


def test_a_client_that_has_gone_is_no_fault_of_the_pulse() -> None:
    async def silent(pulse: StreamPulse) -> None:
        await asyncio.sleep(60)

    assert comments(Sink(gone=True), silent, WholeEvents()) == [15]
