"""One engine at the pool's socket: its messages are carried out, answers wait until it reads."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from mirage.tiers.acting import Acting
from mirage.tiers.blocks import Tell
from mirage.tiers.contract import Key, Lookup, Member
from mirage.tiers.core import Core, MemberRefused
from mirage.tiers.ledger import Due
from mirage.tiers.messages import (
    VERSION,
    Abandon,
    Bye,
    Commit,
    FromEngine,
    Given,
    Join,
    Leave,
    News,
    Reserve,
    Seek,
    Sorry,
    Welcome,
)
from mirage.wire import Broken, Channel, ChannelClosed


class SentAway(Exception):
    """Error: the engine has left, or has to leave; the message says why. `fault` is True if the
    engine broke the protocol, or its `Join` was refused."""

    def __init__(self, why: str, *, fault: bool) -> None:
        super().__init__(why)
        self.fault = fault


class Guest:
    """Connection of an engine; `number` is its member number once it has joined."""

    def __init__(self, made: socket.socket, selector: selectors.BaseSelector) -> None:
        self._channel: Channel[FromEngine] = Channel(made, FromEngine, selector=selector)
        self.number: int | None = None
        self.tenant: str | None = None
        self.polite = False
        """True once it has said that it reads and writes no more."""
        self._given: list[Given] = []
        """Answers that are sent after all earlier orders of the core have been carried out."""
        self._news: dict[int, list[tuple[bytes, Lookup, int]]] = {}

    @property
    def who(self) -> str:
        return f"the engine of {self.tenant!r}" if self.tenant else "an unknown process"

    def fileno(self) -> int:
        return self._channel.fileno()

    @property
    def has_more(self) -> bool:
        """True if a whole message has been read and not been handled."""
        return self._channel.has_next

    @property
    def has_news(self) -> bool:
        """True if there is news that was not sent."""
        return bool(self._news or self._given)

    def read(self) -> None:
        """Read the bytes that have come. Raise `SentAway` if the connection ended or broke the
        protocol."""
        if self.has_more:
            return
        with _sending_away():
            self._channel.read()

    def obey(self, core: Core, acting: Acting, tenants: Mapping[str, Due]) -> None:
        """Handle one message, if a whole one has come. Raise `SentAway` if the engine has to
        leave."""
        with _sending_away():
            if (heard := self._channel.next()) is None:
                return
            if self.number is None:
                self._join(heard[0], core, acting, tenants)
            else:
                self._do(self.number, heard[0], core)

    def tell(self, tell: Tell) -> None:
        """Add the state of a key to the messages that the next `send` sends."""
        answers = self._news.setdefault(int(tell.seeker.request), [])
        answers.append((tell.key, tell.found, tell.offset))

    def send(self) -> None:
        """Send all messages that wait, as far as the engine has room for them. Raise `SentAway` if
        it does not read."""
        letters = [*self._given, *(News(request, found) for request, found in self._news.items())]
        self._given.clear()
        self._news.clear()
        with _sending_away():
            self._channel.say(*letters)

    def close(self) -> None:
        """End the connection."""
        self._channel.close()

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
            self._channel.say(Sorry(why))
            raise SentAway(why, fault=True)
        self.tenant = message.tenant
        self._welcome(acting, locks=message.locks)

    def _welcome(self, acting: Acting, *, locks: bool) -> None:
        host, peer = acting.regions.host, acting.regions.peer
        fds = [host.fd] if peer is None else [host.fd, peer.fd]
        size, pace = (0, None) if peer is None else (peer.nbytes, acting.regions.peer_bytes_per_s)
        welcome = Welcome(host.nbytes, size, pace, list(acting.regions.lenders), locks)
        if not locks:
            self._channel.say(welcome, descriptors=fds)
            return
        assert self.tenant is not None
        with acting.lockers.admit(self.tenant) as line:
            self._channel.say(welcome, descriptors=[*fds, line.fileno()])

    def _do(self, number: int, message: FromEngine, core: Core) -> None:
        match message:
            case Seek(request, keys, rise):
                core.seek(number, request, map(Key, keys), rise=rise)
            case Leave(request, loaded, from_peers):
                core.leave(number, request, loaded, from_peers)
            case Reserve(question, keys):
                given = core.reserve(number, map(Key, keys))
                self._given.append(Given(question, list(given.items())))
            case Commit(keys):
                core.commit(number, map(Key, keys))
            case Abandon(keys):
                core.abandon(number, map(Key, keys))
            case Bye():
                self.polite = True
                raise SentAway("it says goodbye", fault=False)
            case Join():
                raise SentAway("a second Join", fault=True)


@contextmanager
def _sending_away() -> Iterator[None]:
    try:
        yield
    except Broken as error:
        raise SentAway(str(error), fault=not isinstance(error, ChannelClosed)) from None


def _why_not(message: Join, tenants: Mapping[str, Due]) -> str | None:
    if message.version != VERSION:
        return f"protocol version {message.version}, this pool speaks {VERSION}"
    if message.tenant not in tenants:
        return f"no tenant is named {message.tenant!r}"
    return None
