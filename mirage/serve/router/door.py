"""Door of a device: connects routers of other machines with the device's Unix sockets.

`reach.py` is the other end, in the routers.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import cast
from weakref import WeakSet

from aiohttp import web

from mirage.serve.api.openai import ApiError
from mirage.serve.ends.comeback import LOOK_AGAIN_S
from mirage.serve.routed.messages import LINE
from mirage.serve.router.gate import AccessGate
from mirage.serve.router.link import SupervisorLink
from mirage.serve.router.peer_silence import PeerSilence
from mirage.serve.router.reach import DOOR, FROM, OPENED, TO


class DeviceDoor:
    """Connects routers of other machines, if they have the cluster's key, with this device's
    supervisor or engines.
    """

    def __init__(self, link: SupervisorLink, gate: AccessGate, silence: PeerSilence) -> None:
        """`link` is the line to the only supervisor here, which has answered this router's hello.
        `silence` breaks connections with machines that are silent for too long.
        """
        self._link, self._gate, self._silence = link, gate, silence
        self._open_to: defaultdict[str, WeakSet[_Pipe]] = defaultdict(WeakSet)
        """Connections with engines and with the supervisor's HTTP server, by the machine whose
        router has them.
        """

    def routes(self) -> list[web.RouteDef]:
        """Route of the door; none if the supervisor's `RouterWelcome` names no key for it."""
        return [web.post(DOOR, self._open)] if self._link.welcome.door else []

    async def _open(self, request: web.Request) -> web.StreamResponse:
        """Connect the asking router with the socket that its query names.

        After the head of the answer (101) the connection is no longer HTTP: it passes bytes on,
        until it ends. Raises `ApiError` for another key, for a socket that is not in the table, and
        if no process listens there.
        """
        if self._gate.key_name(request) != self._link.welcome.door:
            raise ApiError(403, "the door of a device opens to its cluster's key alone")
        loop = asyncio.get_running_loop()
        try:
            _, inner = await loop.create_unix_connection(_Pipe, self._path(request.query.get(TO)))
        except OSError as error:
            message = f"nobody listens there now ({error.strerror or error})"
            raise ApiError(503, message, wait_s=LOOK_AGAIN_S) from None
        transport = request.transport
        if transport is None:
            inner.close()
            raise ConnectionResetError
        self._silence.watch(transport)
        guest = request.query.get(FROM, "")
        if request.query.get(TO) == LINE:
            self._silence.beats(transport)
            outer = _Pipe(partial(self._cut, guest))
        else:
            outer = _Pipe()
            self._open_to[guest].add(outer)
        transport.write(OPENED + b"Switching Protocols\r\n\r\n")
        request.protocol.transport = None  # it is HTTP's no more
        request.protocol.connection_lost(None)
        transport.set_protocol(outer)
        outer.connection_made(transport)
        outer.joins(inner)
        await asyncio.Event().wait()  # the end of HTTP's connection has cancelled this
        raise ConnectionResetError

    def _cut(self, guest: str) -> None:
        """Break off the connections of a silent machine's router with engines, which then compute
        nothing for it.
        """
        for one in list(self._open_to.pop(guest, ())):
            one.transport.abort()

    def _path(self, to: str | None) -> str:
        """Path of the socket that the query names. Raises `ApiError` if it may not be reached."""
        if to == LINE:
            return str(self._link.path)
        known = {self._link.welcome.inner, *(one.row.socket for one in self._link.tenants)}
        if to is None or to not in known:
            raise ApiError(404, "the device has no such socket: its table says which it has")
        return to


class _Pipe(asyncio.Protocol):
    """One of two connections that are joined: each writes what the other receives."""

    def __init__(self, silent: Callable[[], None] = lambda: None) -> None:
        """`silent` is called if the connection ends because the other machine acknowledges
        nothing.
        """
        self.transport: asyncio.Transport
        self._other: _Pipe | None = None
        self._early: list[bytes] = []
        self._is_lost = False
        self._silent = silent

    def joins(self, other: _Pipe) -> None:
        """Pass bytes between both connections from now on, with those that have come already."""
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
        if error is not None and not isinstance(error, ConnectionError):
            self._silent()
        if self._other is not None:
            self._other.close()

    def close(self) -> None:
        """Close the connection once all written bytes are sent."""
        if not self._is_lost:
            self.transport.close()
