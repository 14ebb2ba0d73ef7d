"""Socket at which routers connect: each says hello, and brings its listening sockets."""

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
"""Seconds until the next attempt to accept a router, if there was no file descriptor for it."""


class RouterCame(NamedTuple):
    """Router that has connected and said hello."""

    sockets: list[socket.socket]
    """Listening sockets that the router brought; the receiver closes them."""
    guest: str
    """Name of the machine whose router it is; empty for the device's own."""
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class RouterEntrance:
    """Socket for routers. `comes` is called with each router that has said hello. `listen` begins
    to accept routers, `close` stops that.
    """

    def __init__(self, comes: Callable[[RouterCame], Awaitable[None]]) -> None:
        self._comes = comes
        self._accepting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        """Running tasks: one for each connection, and one for the listening socket."""

    @property
    def is_open(self) -> bool:
        return self._accepting is not None

    def listen(self, path: Path) -> None:
        """Listen at `path`, in place of an earlier socket; connections stay. Raises `OSError` if no
        socket can be made there.
        """
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
    """Wait for a router's hello; return its sockets and its machine's name.

    Raises `Broken` if the router closes the connection first, or begins with anything but a hello
    of this protocol's version.
    """
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
    """Return when the socket can be read, or its other end has closed it."""
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
