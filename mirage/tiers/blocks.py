"""One block of the pool, and what becomes of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from mirage.tiers.contract import Key, Lookup
from mirage.tiers.holes import ByteRange


class Name(NamedTuple):
    """Name of a block's content: `key` of the weights, dtype and layout that `fingerprint` stands
    for.
    """

    fingerprint: bytes
    key: Key


class Seeker(NamedTuple):
    """A request of a member."""

    member: int
    request: str | int


class BlockState(Enum):
    """`WRITTEN`: an engine copies into it. `RISING`: it comes up from below. `READY`: readable."""

    WRITTEN = "written"
    RISING = "rising"
    READY = "ready"


@dataclass(eq=False, slots=True)
class Block:
    """`tenant` is who stored or used it last: it counts as its own."""

    name: Name
    tenant: str
    offset: int
    stride: int
    """Bytes that its place takes."""
    nbytes: int
    """Bytes of the block."""
    state: BlockState
    writer: int | None = None
    """The member that reserved it."""
    pins: set[Seeker] = field(default_factory=set)
    """Requests that need it; nothing of it changes until they have left."""
    sinking: bool = False
    """It is being copied below, or from a peer to host memory: as good as pinned."""
    offered: bool = False
    """It came from below, or was offered there, or could not be copied: once is enough."""
    replica: bool = False
    """True for a replica of what its engines have in host memory anyway: on a peer only, never
    copied.
    """
    doomed: bool = False
    """Its tenant was removed: it goes as soon as it is idle, unless another one uses it."""

    @property
    def idle(self) -> bool:
        """True if it may be evicted."""
        return self.state is BlockState.READY and not self.pins and not self.sinking

    @property
    def stays(self) -> bool:
        """True if it is no candidate for eviction: a replica is pinned for long."""
        return self.replica and bool(self.pins)


@dataclass(frozen=True, slots=True)
class Tell:
    """Message to a member: the state of a key that one of its requests seeks."""

    seeker: Seeker
    key: Key
    found: Lookup
    offset: int = 0
    """Offset of its place, if READY."""


@dataclass(frozen=True, slots=True)
class Punch:
    """Order to give memory back to the operating system."""

    range: ByteRange


@dataclass(frozen=True, slots=True)
class Unlock:
    """A slab that no engine may have locked any longer; `Core.unlocked` when none has."""

    start: int


@dataclass(frozen=True, slots=True)
class Sink:
    """A block to be copied below; its place does not change before `Core.sunk`."""

    name: Name
    place: ByteRange
    tenant: str


@dataclass(frozen=True, slots=True)
class Rise:
    """A block to be copied up; its place is nobody else's before `Core.risen`."""

    name: Name
    place: ByteRange


@dataclass(frozen=True, slots=True)
class PeerCopy:
    """A block of a peer to be copied to host memory; no place changes before `Core.moved`."""

    name: Name
    source: ByteRange
    target: ByteRange


@dataclass(frozen=True, slots=True)
class LendOrder:
    """Order: a peer's holder creates memory, before any request is told of a place in it."""

    device: str
    range: ByteRange


@dataclass(frozen=True, slots=True)
class ReturnOrder:
    """Order: a peer's memory is no longer needed; it counts as lent until `Core.returned`."""

    device: str
    range: ByteRange


Action = Tell | Punch | Unlock | Sink | Rise | PeerCopy | LendOrder | ReturnOrder
"""Orders to the acting code, carried out in the order in which they are given."""
