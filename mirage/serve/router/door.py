"""Door of a device: routers of other machines are connected with its Unix sockets.

`reach.py` has the other end.
"""

from __future__ import annotations

import asyncio
from typing import cast

from aiohttp import web

from mirage.serve.ends.comeback import LOOK_AGAIN_S
from mirage.serve.openai import ApiError
from mirage.serve.routed.messages import LINE
from mirage.serve.router.gate import AccessGate
from mirage.serve.router.link import SupervisorLink
from mirage.serve.router.reach import DOOR, OPENED, TO, watch


class DeviceDoor:
    """Connects who has the cluster's key with the supervisor, or with an engine."""

    def __init__(self, link: SupervisorLink, gate: AccessGate) -> None:
        """`link` is that of the only device here, which has been welcomed."""
        self._link, self._gate = link, gate

    def routes(self) -> list[web.RouteDef]:
        """The route, of a device that has a door."""
        return [web.post(DOOR, self._open)] if self._link.welcome.door else []

    async def _open(self, request: web.Request) -> web.StreamResponse:
        """Never answers: who has asked is connected. Raises `ApiError`."""
        if self._gate.key_name(request) != self._link.welcome.door:
            raise ApiError(403, "the door of a device opens to its cluster's key alone")
        loop = asyncio.get_running_loop()
        try:
            _, inner = await loop.create_unix_connection(_Pipe, self._path(request.query.get(TO)))
        except OSError as error:
            message = f"nobody listens there now ({error.strerror or error})"
            raise ApiError(503, message, wait_s=LOOK_AGAIN_S) from None
        outer = _Pipe()
        transport = request.transport
        if transport is None:
            inner.close()
            raise ConnectionResetError
        watch(transport)
        transport.write(OPENED + b"Switching Protocols\r\n\r\n")
        request.protocol.transport = None  # it is HTTP's no more
        request.protocol.connection_lost(None)
        transport.set_protocol(outer)
        outer.connection_made(transport)
        outer.joins(inner)
        await asyncio.Event().wait()  # the end of HTTP's connection has cancelled this
        raise ConnectionResetError

    def _path(self, to: str | None) -> str:
        """Path of a socket that may be reached. Raises `ApiError`."""
        if to == LINE:
            return str(self._link.path)
        known = {self._link.welcome.inner, *(one.row.socket for one in self._link.tenants)}
        if to is None or to not in known:
            raise ApiError(404, "the device has no such socket: its table says which it has")
        return to


class _Pipe(asyncio.Protocol):
    """A connection of two: what comes by it goes on by the other."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self._other: _Pipe | None = None
        self._early: list[bytes] = []
        self._is_lost = False

    def joins(self, other: _Pipe) -> None:
        """Have bytes go to and fro from now on."""
        for one, its in ((self, other), (other, self)):
            one._other = its
        for one in (self, other):
            one._begin()

    def _begin(self) -> None:
        assert self._other is not None
        for data in self._early:
            self._other.transport.write(data)
        self._early.clear()
        if self._is_lost:
            self._other.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._other is None:
            self._early.append(data)
        else:
            self._other.transport.write(data)

    def pause_writing(self) -> None:
        if self._other is not None:
            self._other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self._other is not None and not self._other._is_lost:
            self._other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_lost = True
        if self._other is not None:
            self._other.close()

    def close(self) -> None:
        """Send what has come, then close."""
        if not self._is_lost:
            self.transport.close()
