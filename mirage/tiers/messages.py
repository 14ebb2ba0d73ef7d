"""Messages between engines and the host pool, over one Unix socket.

The form is that of `mirage.wire`. An engine's first message is a `Join`, answered by a `Welcome`
with the region's file descriptor, or by `Sorry`. Nothing else is waited for but `Given`. Requests
are numbered by the engine, each number for one life of a request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

from mirage.tiers.contract import Key, Lookup
from mirage.wire import Message

VERSION = 7
MOST_KEYS = 1024
"""In one message, so that nobody's takes long."""

Keys = Annotated[list[bytes], msgspec.Meta(max_length=MOST_KEYS)]


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
    """True if blocks that lie deeper start to come up."""


class Leave(Message, frozen=True):
    request: int
    loaded: int
    """Blocks whose places were asked for."""
    from_peers: int = 0
    """Blocks of them that lie on peers."""


class Reserve(Message, frozen=True):
    number: int
    """Number of the question; the answer has it too."""
    keys: Keys


class Commit(Message, frozen=True):
    keys: Keys


class Abandon(Message, frozen=True):
    keys: Keys


class Bye(Message, frozen=True):
    """The engine reads and writes no more."""


class Welcome(Message, frozen=True):
    nbytes: int
    """Bytes of host memory."""
    peer_nbytes: int = 0
    """Bytes of peers' memory, whose offsets begin behind it; if there is some, a second file has
    it.
    """
    peer_bytes_per_s: float | None = None
    lenders: list[tuple[str, int, int]] = msgspec.field(default_factory=list)
    """Lenders of peers' memory, as in `LentBy`; then no second file has it."""
    locks: bool = False
    """True if the last descriptor is a line on which slabs of host memory are locked."""


class Sorry(Message, frozen=True):
    why: str


class News(Message, frozen=True):
    """State of keys that a request seeks, and the offset of each READY one."""

    request: int
    answers: list[tuple[bytes, Lookup, int]]


class Given(Message, frozen=True):
    number: int
    places: list[tuple[bytes, int]]


FromEngine = Join | Seek | Leave | Reserve | Commit | Abandon | Bye
ToEngine = Welcome | Sorry | News | Given


def portions(keys: Sequence[Key]) -> Iterator[Keys]:
    """Parts of a list that each fit into one message, in order."""
    for start in range(0, len(keys), MOST_KEYS):
        yield list(keys[start : start + MOST_KEYS])
