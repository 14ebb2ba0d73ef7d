"""The socket at which routers come: each says hello, and brings the sockets that it listens on."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

from mirage.serve.routed.messages import MOST_SOCKETS, PROTOCOL_VERSION, FromRouter, RouterHello
from mirage.wire import Broken, Channel

log = logging.getLogger(__name__)

BACKLOG = 16
NO_FILE_S = 0.1
"""Seconds after which a router for which no file could be opened is let in again."""


class RouterCame(NamedTuple):
    """A router that has said hello."""

    sockets: list[socket.socket]
    """Sockets that it listens on, now the caller's."""
    guest: str
    """Machine whose router it is; empty for the device's own."""
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class RouterEntrance:
    """Socket for routers. `comes` gets each one that has said hello; `close` ends `listen`."""

    def __init__(self, comes: Callable[[RouterCame], Awaitable[None]]) -> None:
        self._comes = comes
        self._accepting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        """Tasks: one for each router, and one for each socket."""

    @property
    def is_open(self) -> bool:
        return self._accepting is not None

    def listen(self, path: Path) -> None:
        """Listen at `path`, again if the socket is gone; connections stay. Raises `OSError`."""
        path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX)
        try:
            listening.bind(str(path))
            listening.listen(BACKLOG)
            listening.setblocking(False)
        except BaseException:
            listening.close()
            raise
        self.close()
        self._accepting = self._begin(self._accept(listening))
        self._accepting.add_done_callback(lambda task: listening.close())

    def close(self) -> None:
        """Stop listening. Idempotent."""
        if self._accepting is not None:
            self._accepting.cancel()
            self._accepting = None

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                there, _ = await loop.sock_accept(listening)
            except OSError:
                await asyncio.sleep(NO_FILE_S)
            else:
                self._begin(self._meet(there))

    async def _meet(self, there: socket.socket) -> None:
        try:
            sockets, guest = await _hello(there)
        except (Broken, OSError) as error:
            log.error("a router was sent away: %s", error)
            there.close()
            return
        except BaseException:
            there.close()
            raise
        streams = await asyncio.open_unix_connection(sock=there)
        await self._comes(RouterCame(sockets, guest, *streams))


async def _hello(there: socket.socket) -> tuple[list[socket.socket], str]:
    """Sockets that a router brings, and whose guest it is. Raises `Broken` and `OSError`."""
    there.setblocking(False)
    channel: Channel[FromRouter] = Channel(there, FromRouter, most_descriptors=MOST_SOCKETS)
    while (heard := channel.next()) is None:
        await _readable(there)
        channel.read()
    hello, descriptors = heard
    sockets = [socket.socket(fileno=one) for one in descriptors]
    if isinstance(hello, RouterHello) and hello.version == PROTOCOL_VERSION:
        return sockets, hello.guest
    for one in sockets:
        one.close()
    raise Broken(f"it began with {hello}")


async def _readable(there: socket.socket) -> None:
    """Return when there is something to read, or the end."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def ready() -> None:
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(there, ready)
    try:
        await readable
    finally:
        loop.remove_reader(there)
