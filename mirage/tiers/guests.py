"""One engine at the pool's socket: what it says is done, what it is told waits until it reads."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from mirage.tiers.acting import Acting
from mirage.tiers.blocks import Tell
from mirage.tiers.contract import Found, Key, Member
from mirage.tiers.core import Core, MemberRefused
from mirage.tiers.ledger import Due
from mirage.tiers.messages import (
    VERSION,
    Abandon,
    Bye,
    Commit,
    Frames,
    FromEngine,
    Given,
    Join,
    Leave,
    Malformed,
    News,
    Reserve,
    Seek,
    Sorry,
    Welcome,
    encode,
    from_engine,
)
from mirage.tiers.region import Regions

PIECE = 2**16
"""Bytes that are read at a time."""
MOST_UNREAD = 2**22
"""Bytes that wait for an engine to read them, before it is sent away."""


class SentAway(Exception):
    """The engine has left, or must; the message says why. `fault`: it broke the protocol."""

    def __init__(self, why: str, *, fault: bool) -> None:
        super().__init__(why)
        self.fault = fault


class Guest:
    """A connection; `number` is the core's for it once it has joined."""

    def __init__(self, made: socket.socket) -> None:
        self.socket = made
        self.number: int | None = None
        self.tenant: str | None = None
        self.polite = False
        """It said that it reads and writes no more."""
        self.has_more = False
        """Whether a whole message has been read and not been heard."""
        self._frames = Frames()
        self._next: bytes | None = None
        self._news: dict[int, list[tuple[bytes, Found, int]]] = {}
        self._out = bytearray()
        self._fds: list[int] = []
        """To be sent with the first byte."""
        self._line: socket.socket | None = None
        """One of them: the engine's end of a line of `Lockers`."""

    @property
    def who(self) -> str:
        return f"the engine of {self.tenant!r}" if self.tenant else "an unknown process"

    @property
    def has_news(self) -> bool:
        """Whether there is something to be told that `send` has not seen."""
        return bool(self._news)

    def read(self) -> None:
        """What has come. Raises `SentAway` and `OSError`."""
        if self.has_more:
            return
        try:
            data = self.socket.recv(PIECE)
        except BlockingIOError:
            return
        if not data:
            raise SentAway("it has gone", fault=False)
        self._frames.feed(data)
        self._step()

    def obey(self, core: Core, acting: Acting, tenants: Mapping[str, Due]) -> None:
        """Hear one message, if there is a whole one. Raises `SentAway`."""
        if self._next is None:
            return
        try:
            message = from_engine(self._next)
        except Malformed as error:
            raise SentAway(str(error), fault=True) from None
        if self.number is None:
            self._join(message, core, acting, tenants)
        else:
            self._do(self.number, message, core)
        self._step()

    def tell(self, tell: Tell) -> None:
        """Put into the next letter."""
        answers = self._news.setdefault(int(tell.seeker.request), [])
        answers.append((tell.key, tell.found, tell.offset))

    def send(self) -> int:
        """What can be sent now; bytes that are left. Raises `SentAway` and `OSError`."""
        for request, answers in self._news.items():
            self._out += encode(News(request, answers))
        self._news.clear()
        if len(self._out) > MOST_UNREAD:
            raise SentAway(f"it has not read {len(self._out)} bytes", fault=True)
        try:
            while self._out:
                del self._out[: self._send_some()]
        except BlockingIOError:
            pass
        return len(self._out)

    def _send_some(self) -> int:
        if not self._fds:
            return self.socket.send(self._out)
        sent = socket.send_fds(self.socket, [self._out], self._fds)
        self._fds = []
        self._close_line()
        return sent

    def close(self) -> None:
        """The connection ends."""
        self.socket.close()
        self._close_line()

    def _close_line(self) -> None:
        """The engine has its end, or never will."""
        if self._line is not None:
            self._line.close()
            self._line = None

    def _step(self) -> None:
        try:
            self._next = self._frames.next()
        except Malformed as error:
            raise SentAway(str(error), fault=True) from None
        self.has_more = self._next is not None

    def _join(
        self, message: FromEngine, core: Core, acting: Acting, tenants: Mapping[str, Due]
    ) -> None:
        if not isinstance(message, Join):
            raise SentAway(f"its first message is {type(message).__name__}, no Join", fault=True)
        why = _why_not(message, tenants)
        if why is None:
            try:
                self.number = core.join(
                    Member(
                        message.tenant,
                        message.fingerprint,
                        message.block_bytes,
                        tenants[message.tenant],
                        replicas=message.replicas,
                    )
                )
            except MemberRefused as error:
                why = str(error)
        if why is not None:
            self.socket.send(encode(Sorry(why)))
            raise SentAway(why, fault=True)
        self.tenant = message.tenant
        if message.locks:
            self._line = acting.lockers.admit(message.tenant)
        self._welcome(acting.regions)

    def _welcome(self, regions: Regions) -> None:
        host, peer = regions.host, regions.peer
        self._fds = [host.fd] if peer is None else [host.fd, peer.fd]
        if self._line is not None:
            self._fds.append(self._line.fileno())
        size, pace = (0, None) if peer is None else (peer.nbytes, regions.peer_bytes_per_s)
        locks = self._line is not None
        self._out += encode(Welcome(host.nbytes, size, pace, list(regions.lenders), locks))

    def _do(self, number: int, message: FromEngine, core: Core) -> None:
        match message:
            case Seek(request, keys, rise):
                core.seek(number, request, map(Key, keys), rise=rise)
            case Leave(request, loaded, from_peers):
                core.leave(number, request, loaded, from_peers)
            case Reserve(question, keys):
                given = core.reserve(number, map(Key, keys))
                self._out += encode(Given(question, list(given.items())))
            case Commit(keys):
                core.commit(number, map(Key, keys))
            case Abandon(keys):
                core.abandon(number, map(Key, keys))
            case Bye():
                self.polite = True
                raise SentAway("it says goodbye", fault=False)
            case Join():
                raise SentAway("a second Join", fault=True)


def _why_not(message: Join, tenants: Mapping[str, Due]) -> str | None:
    if message.version != VERSION:
        return f"protocol version {message.version}, this pool speaks {VERSION}"
    if message.tenant not in tenants:
        return f"no tenant is named {message.tenant!r}"
    return None
