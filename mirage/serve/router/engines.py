"""Requests to engines, over connections that are kept for later requests.

Parser, writer and protocol are aiohttp's. Its session is not used: nothing else of it is needed
here, and it took as long as the rest of the router.
"""

from __future__ import annotations

import asyncio
import errno
import re
from collections import deque
from functools import partial
from types import TracebackType
from typing import NamedTuple

import aiohttp
from aiohttp import StreamReader
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import HttpProcessingError, StreamWriter
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from mirage.serve.routed.tenants import RoutedTenant
from mirage.serve.router.devices import RoutedDevices
from mirage.serve.router.reach import Reach
from mirage.units import KIB

KEPT_S = 60.0
"""Seconds for which an idle connection is kept. Engines keep it for longer (`launcher`), so that an
engine never closes a connection while a request is being sent on it.
"""
UNREAD = {errno.EPIPE, errno.ECONNRESET}
"""Errors of a Unix socket whose other end has not read all that was sent."""
PIECE_BYTES = 256 * KIB
"""Most bytes of a body that are written at a time, because the transport copies those that it
cannot send yet.
"""
PLAIN = re.compile(r"[\w/.-]+", re.ASCII)
"""Request targets that need no quoting."""
HOST = "engine"


class EngineAway(aiohttp.ClientConnectionError):
    """Failure to connect to an engine's socket: no process listens there, or the device's machine
    cannot be reached.
    """


class EngineAnswer(NamedTuple):
    """Answer of an engine whose head has come; `content` is its body."""

    status: int
    headers: CIMultiDictProxy[str]
    content: StreamReader

    @property
    def length(self) -> int | None:
        """Bytes of the body by its ``Content-Length``; None if that header is absent."""
        told = self.headers.get("Content-Length")
        return None if told is None else int(told)

    @property
    def kind(self) -> str:
        """Media type of the body, in lower case and without parameters; empty if it is not
        given.
        """
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()


class EngineRequest:
    """Request to an engine: sent when the context is entered, which yields the answer.

    At the end of the context a connection whose answer was not read to its end is closed, so that
    the engine notices.
    """

    def __init__(
        self,
        connections: EngineConnections,
        method: str,
        target: str,
        headers: CIMultiDict[str],
        body: bytes = b"",
    ) -> None:
        """`headers` is changed: it gets Host and Content-Length."""
        if not PLAIN.fullmatch(target):
            target = URL(f"http://{HOST}{target}").raw_path_qs
        headers["Host"] = HOST
        headers["Content-Length"] = str(len(body))
        self._line, self._headers, self._body = f"{method} {target} HTTP/1.1", headers, body
        self._connections = connections
        self._connection: ResponseHandler | None = None
        self._sending: asyncio.Task[None] | None = None
        self._answer: EngineAnswer | None = None

    async def __aenter__(self) -> EngineAnswer:
        """Send the request, and return the answer once its head has come.

        Raises `EngineAway` if the socket cannot be reached, `OSError` or `aiohttp.ClientError` if
        the connection breaks, and `aiohttp.ClientPayloadError` for bytes that are not HTTP.
        """
        connection = self._connection = await self._connections.one()
        try:
            await self._send(connection)
            message, content = await connection.read()
            while 100 <= message.code < 200:
                message, content = await connection.read()
        except HttpProcessingError as error:
            self._over()
            raise aiohttp.ClientPayloadError("this is no answer of HTTP") from error
        except BaseException:
            self._over()
            raise
        self._answer = EngineAnswer(message.code, message.headers, content)
        return self._answer

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over()

    async def _send(self, connection: ResponseHandler) -> None:
        writer = StreamWriter(connection, asyncio.get_running_loop())
        await writer.write_headers(self._line, self._headers)
        if len(self._body) <= PIECE_BYTES:
            await writer.write(self._body, drain=False)
        else:  # an engine may answer before it has read all of it
            self._sending = asyncio.create_task(_in_pieces(connection, writer, self._body))

    def _over(self) -> None:
        connection, answer, sending = self._connection, self._answer, self._sending
        assert connection is not None
        sent = sending is None or sending.done()
        if sending is not None:
            sending.cancel()
        read = answer is not None and answer.content.is_eof()
        self._connections.back(connection, whole=sent and read)


async def _in_pieces(connection: ResponseHandler, writer: StreamWriter, body: bytes) -> None:
    try:
        for begin in range(0, len(body), PIECE_BYTES):
            await writer.write(body[begin : begin + PIECE_BYTES])
    except OSError as error:
        connection.set_exception(error)  # whoever awaits the answer hears of it


class EngineConnections:
    """Connections to the server at the Unix socket `path`. Call `close` at the end."""

    def __init__(self, reach: Reach, path: str) -> None:
        self._reach, self._path = reach, path
        self._loop = asyncio.get_running_loop()
        self._used: set[ResponseHandler] = set()
        self._idle: deque[tuple[float, ResponseHandler]] = deque()
        """Idle connections, each with the loop's time since which it is idle; the one that was in
        use most recently is used next.
        """
        self._look: asyncio.TimerHandle | None = None

    async def one(self) -> ResponseHandler:
        """Idle connection, or a new one. Give it back by `back`. Raises `EngineAway` if the
        socket cannot be reached.
        """
        found = self._kept()
        if found is None:
            make = partial(ResponseHandler, self._loop)
            try:
                _, found = await self._reach.connect(make, self._path)
            except OSError as error:
                raise EngineAway(error.strerror or str(error)) from error
        found.set_response_params(read_until_eof=True, auto_decompress=False)
        self._used.add(found)
        return found

    def back(self, connection: ResponseHandler, *, whole: bool) -> None:
        """Take a connection back, and keep it if it can be used again.

        `whole` is true if the request was sent and its answer read to the end.
        """
        self._used.discard(connection)
        if not whole or connection.should_close or not connection.is_connected():
            connection.close()
            return
        self._idle.append((self._loop.time(), connection))
        if self._look is None:
            self._look = self._loop.call_later(KEPT_S, self._close_old)

    def never_read(self, error: BaseException) -> bool:
        """True if `error` shows that the engine closed the connection before it had read the
        request.

        If the engine closes after that, the connection ends without such an error: it is not known
        then what the engine did with the request. Through a door only an attempt to write on a
        connection that has ended shows it, and no reset does.
        """
        closing = isinstance(error, aiohttp.ClientConnectionResetError)
        return closing or (self._reach.tells_unread and getattr(error, "errno", None) in UNREAD)

    def close(self) -> None:
        """Close all connections, those in use too: their requests fail. Idempotent."""
        if self._look is not None:
            self._look.cancel()
            self._look = None
        while self._used:
            used = self._used.pop().transport
            if used is not None:  # `ResponseHandler.close` would leave a reader of the body waiting
                used.close()
        while self._idle:
            self._idle.pop()[1].close()

    def _kept(self) -> ResponseHandler | None:
        while self._idle:
            _, kept = self._idle.pop()
            if kept.is_connected() and not kept.should_close:
                return kept
            kept.close()
        return None

    def _close_old(self) -> None:
        self._look = None
        now = self._loop.time()
        while self._idle and self._idle[0][0] + KEPT_S <= now:
            self._idle.popleft()[1].close()
        if self._idle:
            due = self._idle[0][0] + KEPT_S
            self._look = self._loop.call_at(due, self._close_old)


class EnginesConnected:
    """Connections to the engines of all tenants. Call `close` at the end."""

    def __init__(self, tenants: RoutedDevices) -> None:
        self._tenants = tenants
        self._engines: dict[tuple[str, str], EngineConnections] = {}
        """Connections by the device's name and the path of the engine's socket."""

    def to(self, tenant: RoutedTenant) -> EngineConnections:
        """Connections to a tenant's engine. Making new ones closes those to engines that have
        gone.
        """
        place = tenant.device, tenant.row.socket
        if (found := self._engines.get(place)) is None:
            found = EngineConnections(self._tenants.reach(tenant), tenant.row.socket)
            self._engines[place] = found
            there = {(one.device, one.row.socket) for one in self._tenants}
            for gone in self._engines.keys() - there - {place}:
                self._engines.pop(gone).close()
        return found

    def close(self) -> None:
        """Close all connections. Idempotent."""
        while self._engines:
            self._engines.popitem()[1].close()
