"""Messages between engines and the host pool, over one Unix socket.

The form is that of `mirage.wire`. An engine's first message is a `Join`, answered by a `Welcome`
with the region's file descriptor, or by `Sorry`. After that an engine waits only for `Given`.
Requests are numbered by the engine, and a number is not used again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

from mirage.tiers.contract import Key, Lookup
from mirage.wire import Message

VERSION = 7
MOST_KEYS = 1024
"""Largest number of keys in one message, so that no message takes long."""

Keys = Annotated[list[bytes], msgspec.Meta(max_length=MOST_KEYS)]


class Join(Message, frozen=True):
    version: int
    tenant: str
    fingerprint: bytes
    block_bytes: int
    replicas: bool = False
    """True if the engine's blocks are copies of parameters: see `Member.replicas`."""
    locks: bool = False
    """True if the engine wants a connection for page-locking host memory: see `Member.locks`."""


class Seek(Message, frozen=True):
    request: int
    keys: Keys
    rise: bool = True
    """True if blocks in the tier below are to be copied to host memory."""


class Leave(Message, frozen=True):
    request: int
    loaded: int
    """Number of blocks whose places were asked for, to load them to the device."""
    from_peers: int = 0
    """Number of these blocks that are on peers."""


class Reserve(Message, frozen=True):
    number: int
    """Number of the question, which its answer repeats."""
    keys: Keys


class Commit(Message, frozen=True):
    keys: Keys


class Abandon(Message, frozen=True):
    keys: Keys


class Bye(Message, frozen=True):
    """The engine reads and writes no more."""


class Welcome(Message, frozen=True):
    nbytes: int
    """Bytes of the host memory's file, which has more offsets than the budget has bytes."""
    peer_nbytes: int = 0
    """Bytes of peers' memory in a second file, whose offsets follow those of host memory; 0 if
    there is no such file."""
    peer_bytes_per_s: float | None = None
    lenders: list[tuple[str, int, int]] = msgspec.field(default_factory=list)
    """Lenders of peers' memory, as in `LentBy`; empty if that memory is in the second file, or
    there is none."""
    locks: bool = False
    """True if the last descriptor is a connection for page-locking slabs of host memory."""


class Sorry(Message, frozen=True):
    why: str


class News(Message, frozen=True):
    """New states of keys that a request has asked for by `Seek`, with the block's offset for each
    READY key."""

    request: int
    answers: list[tuple[bytes, Lookup, int]]


class Given(Message, frozen=True):
    number: int
    places: list[tuple[bytes, int]]


FromEngine = Join | Seek | Leave | Reserve | Commit | Abandon | Bye
ToEngine = Welcome | Sorry | News | Given


def portions(keys: Sequence[Key]) -> Iterator[Keys]:
    """Yield parts of a list that each fit into one message, in order."""
    for start in range(0, len(keys), MOST_KEYS):
        yield list(keys[start : start + MOST_KEYS])
