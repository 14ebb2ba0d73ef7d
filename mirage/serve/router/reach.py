"""Ways from a router to sockets of a device: on this machine, or through a device's door.

A door is a route of the device's own router (`door.py`). A router that has the cluster's key is
connected there with one of the device's Unix sockets, and bytes then pass both ways.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar, cast
from urllib.parse import quote, urlsplit
from weakref import WeakSet

from mirage.serve.router.peer_silence import PeerSilence

P = TypeVar("P", bound=asyncio.BaseProtocol)

DOOR = "/mirage/door"
TO, FROM = "to", "from"
"""Keys of the door's query that name the socket, and the machine of the router that asks."""
OPENED = b"HTTP/1.1 101 "
LONGEST_HEAD = 2**14


class DoorAway(ConnectionError):
    """The device, or its whole machine, cannot be reached."""


class DoorShut(ConnectionError):
    """The door refuses: the key does not fit, the device has no such socket, or no process listens
    there.
    """


class Reach(Protocol):
    """Way from the router to the sockets of one device, on this machine or on another."""

    @property
    def tells_unread(self) -> bool:
        """True if a reset connection proves that the other end has not read all that was sent."""

    async def connect(self, make: Callable[[], P], path: str) -> tuple[asyncio.Transport, P]:
        """Connect the protocol that `make` creates with the socket at `path`; return the transport
        and the protocol. Raises `OSError` if the socket cannot be reached."""

    def beats(self, transport: asyncio.BaseTransport) -> None:
        """Note that this end sends heartbeats on a connection all the time. A connection to another
        machine then breaks if they are not acknowledged for `http.silent_s` seconds."""

    def cut(self) -> None:
        """Break all connections, because the device is lost."""


class UnixReach:
    """Way to Unix sockets of this machine."""

    tells_unread = True

    async def connect(self, make: Callable[[], P], path: str) -> tuple[asyncio.Transport, P]:
        """Connect the protocol that `make` creates with the Unix socket at `path` of this machine;
        return the transport and the protocol. Raises `OSError` if no process listens there."""
        return await asyncio.get_running_loop().create_unix_connection(make, path)

    def beats(self, transport: asyncio.BaseTransport) -> None:
        """Do nothing: a connection on one machine needs no bound."""

    def cut(self) -> None:
        """Do nothing: the kernel ends connections of processes that have ended."""


class DoorReach:
    """Way to the sockets of a device on another machine, through the device's door. `moves` sets
    the door's address.
    """

    tells_unread = False

    def __init__(self, token: str, machine: str, silence: PeerSilence) -> None:
        """`token` is the cluster's key, by which the door opens; `machine` is the router's own.
        `silence` breaks connections whose other machine is silent for too long.
        """
        self._token, self._machine, self._url = token, machine, ""
        self._silence = silence
        self._open: WeakSet[asyncio.Transport] = WeakSet()

    def moves(self, url: str) -> None:
        """Set the URL of the device's door; an empty one as long as no address of it is known."""
        self._url = url

    async def connect(self, make: Callable[[], P], path: str) -> tuple[asyncio.Transport, P]:
        """Connect the protocol that `make` creates with the socket at `path` of the device's
        machine, through the device's door; return the transport and the protocol. Raises `DoorAway`
        if the door cannot be reached, and `DoorShut` if it refuses."""
        parts = urlsplit(self._url)
        head = (
            f"POST {DOOR}?{TO}={quote(path, safe='')}&{FROM}={quote(self._machine, safe='')} "
            f"HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            f"Authorization: Bearer {self._token}\r\nContent-Length: 0\r\n\r\n"
        )
        transport = await self._knock(parts.hostname, parts.port, parts.scheme, head.encode())
        protocol = make()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        self._open.add(transport)
        return transport, protocol

    async def _knock(
        self, host: str | None, port: int | None, scheme: str, head: bytes
    ) -> asyncio.Transport:
        if host is None or port is None:
            raise DoorAway("its address is not known")
        # The key says who may come in; a certificate for clients does not name this address.
        tls = ssl._create_unverified_context() if scheme == "https" else None
        loop = asyncio.get_running_loop()
        wait_s = self._silence.door_s
        try:
            async with asyncio.timeout(wait_s):
                transport, knock = await loop.create_connection(
                    lambda: _Knock(head), host, port, ssl=tls
                )
                self._silence.watch(transport)
                try:
                    status = await knock.answer
                except BaseException:
                    transport.abort()
                    raise
        except TimeoutError:
            raise DoorAway(f"nobody answers within {wait_s:g} s") from None
        except OSError as error:
            raise DoorAway(error.strerror or str(error)) from None
        if not status.startswith(OPENED):
            transport.abort()
            raise DoorShut(status.decode(errors="replace"))
        return transport

    def beats(self, transport: asyncio.BaseTransport) -> None:
        """Let a connection break if sent data is not acknowledged for `http.silent_s` seconds, in
        addition to the usual probes of an idle connection.
        """
        self._silence.beats(transport)

    def cut(self) -> None:
        """Break all connections through the door, because the device is lost."""
        for transport in list(self._open):
            transport.abort()
        self._open.clear()


class _Knock(asyncio.Protocol):
    """Asks the door to connect, and waits for the head of its answer."""

    def __init__(self, head: bytes) -> None:
        self._head, self._heard = head, b""
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        """First line of the answer; raises `DoorAway` if the connection ends without one."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._head)

    def data_received(self, data: bytes) -> None:
        self._heard += data
        if self.answer.done():
            return
        if b"\r\n\r\n" in self._heard:
            self.answer.set_result(self._heard.partition(b"\r\n")[0])
        elif len(self._heard) > LONGEST_HEAD:
            self.answer.set_exception(DoorAway("this is no answer of a door"))

    def connection_lost(self, error: Exception | None) -> None:
        if not self.answer.done():
            self.answer.set_exception(DoorAway(str(error or "the connection was closed")))


async def streams(
    reach: Reach, path: str | Path
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Reader and writer of a connection to the socket at `path`, on which the caller sends
    heartbeats. Raises `OSError` if the socket cannot be reached.

    To another machine it breaks if sent data is not acknowledged for `http.silent_s`.
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(loop=loop)
    made = lambda: asyncio.StreamReaderProtocol(reader, loop=loop)  # noqa: E731
    transport, protocol = await reach.connect(made, str(path))
    reach.beats(transport)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
