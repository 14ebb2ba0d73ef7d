"""What engines and the host pool say to each other, over one Unix socket.

Each message is MessagePack behind its length. An engine's first one is a `Join`, answered by a
`Welcome` with the region's file descriptor, or by `Sorry`. Nothing else is waited for but `Given`.
Requests are numbered by the engine, each number for one life of a request.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import msgspec

from mirage.tiers.contract import Found, Key

VERSION = 6
LENGTH = struct.Struct("!I")
LONGEST = 2**20
"""Bytes of a message."""
MOST_KEYS = 1024
"""In one message, so that nobody's takes long."""

Keys = list[bytes]


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Written as a list that begins with the class's name."""


class Join(Message, frozen=True):
    version: int
    tenant: str
    fingerprint: bytes
    block_bytes: int
    replicas: bool = False
    """As of `Member`."""
    locks: bool = False
    """Likewise."""


class Seek(Message, frozen=True):
    request: int
    keys: Keys
    rise: bool = True
    """Whether what lies deeper starts to come up."""


class Leave(Message, frozen=True):
    request: int
    loaded: int
    """Blocks whose places were asked for."""
    from_peers: int = 0
    """Of them, those that lie on peers."""


class Reserve(Message, frozen=True):
    number: int
    """Of the question; the answer has it too."""
    keys: Keys


class Commit(Message, frozen=True):
    keys: Keys


class Abandon(Message, frozen=True):
    keys: Keys


class Bye(Message, frozen=True):
    """The engine reads and writes no more."""


class Welcome(Message, frozen=True):
    nbytes: int
    """Of host memory."""
    peer_nbytes: int = 0
    """Of peers' memory, whose offsets begin behind it; if there is some, a second file has it."""
    peer_bytes_per_s: float | None = None
    lenders: list[tuple[str, int, int]] = []
    """Who has the memory of peers, as in `LentBy`; then no second file does."""
    locks: bool = False
    """True if the last descriptor is a line on which slabs of host memory are locked."""


class Sorry(Message, frozen=True):
    why: str


class News(Message, frozen=True):
    """Of keys that a request seeks: what was found, and the offset if it is READY."""

    request: int
    answers: list[tuple[bytes, Found, int]]


class Given(Message, frozen=True):
    number: int
    places: list[tuple[bytes, int]]


FromEngine = Join | Seek | Leave | Reserve | Commit | Abandon | Bye
ToEngine = Welcome | Sorry | News | Given

_encoder = msgspec.msgpack.Encoder()
_from_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)
_to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)


class Malformed(Exception):
    """The other end does not speak as agreed; the message says how."""


def encode(message: FromEngine | ToEngine) -> bytes:
    """Its length, then itself."""
    body = _encoder.encode(message)
    return LENGTH.pack(len(body)) + body


def from_engine(body: bytes) -> FromEngine:
    """Raises `Malformed`."""
    try:
        message = _from_engine.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Malformed(f"{error} in {body[:80]!r}") from None
    if len(getattr(message, "keys", ())) > MOST_KEYS:
        raise Malformed(f"{type(message).__name__} of more than {MOST_KEYS} keys")
    return message


def to_engine(body: bytes) -> ToEngine:
    """Raises `Malformed`."""
    try:
        return _to_engine.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Malformed(f"{error} in {body[:80]!r}") from None


def portions(keys: Sequence[Key]) -> Iterator[Keys]:
    """As many as go into one message, in order."""
    for start in range(0, len(keys), MOST_KEYS):
        yield list(keys[start : start + MOST_KEYS])


class Frames:
    """Bytes as they come in, messages as they are whole."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> None:
        self._bytes += data

    def next(self) -> bytes | None:
        """The body of the next message; None if it is not whole. Raises `Malformed`."""
        if len(self._bytes) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(self._bytes)
        if length > LONGEST:
            raise Malformed(f"a message of {length} bytes: {LONGEST} at most")
        end = LENGTH.size + length
        if len(self._bytes) < end:
            return None
        body = bytes(self._bytes[LENGTH.size : end])
        del self._bytes[:end]
        return body
