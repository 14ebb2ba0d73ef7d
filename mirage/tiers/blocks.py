"""Block of the pool, and the orders about blocks. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from mirage.tiers.contract import Key, Lookup
from mirage.tiers.holes import ByteRange


class Name(NamedTuple):
    """Name of a block's content: vLLM's `key` of it, under the `fingerprint` of weights, dtype and
    layout."""

    fingerprint: bytes
    key: Key


class Seeker(NamedTuple):
    """Request that asks for blocks, and the number of its engine in the pool (`member`)."""

    member: int
    request: str | int


class BlockState(Enum):
    """State of a block. `WRITTEN`: an engine copies into it. `RISING`: it is being copied to host
    memory, from the tier below or a peer. `READY`: readable."""

    WRITTEN = "written"
    RISING = "rising"
    READY = "ready"


@dataclass(eq=False, slots=True)
class Block:
    """Block of the pool. Its bytes are charged to `tenant`, which stored or used it last."""

    name: Name
    tenant: str
    offset: int
    stride: int
    """Bytes that the block's place takes: whole pages."""
    nbytes: int
    """Bytes of the block's content."""
    state: BlockState
    writer: int | None = None
    """Number of the member that reserved it; None if no engine writes it."""
    pins: set[Seeker] = field(default_factory=set)
    """Requests that need the block; it does not change until they have left."""
    sinking: bool = False
    """True while it is copied to the tier below, or from a peer to host memory: it counts as
    pinned."""
    offered: bool = False
    """True if it came from below, was offered to the tier below, or could not be copied: it is not
    offered again."""
    replica: bool = False
    """True for a copy of content that engines have in host memory anyway, such as parameters: it is
    on a peer only, and never copied."""
    doomed: bool = False
    """True if its tenant was removed: it is evicted as soon as it is idle, unless another tenant
    uses it."""

    @property
    def idle(self) -> bool:
        """True if the block may be evicted."""
        return self.state is BlockState.READY and not self.pins and not self.sinking

    @property
    def stays(self) -> bool:
        """True if it is a replica (a copy of parameters) that a request needs. It is then no
        candidate for eviction, since it is pinned for long."""
        return self.replica and bool(self.pins)


@dataclass(frozen=True, slots=True)
class Tell:
    """Message to a member: the new state of a key that one of its requests has asked for."""

    seeker: Seeker
    key: Key
    found: Lookup
    offset: int = 0
    """Offset of the block's place, if READY; else 0."""


@dataclass(frozen=True, slots=True)
class Punch:
    """Order to give memory back to the operating system."""

    range: ByteRange


@dataclass(frozen=True, slots=True)
class Unlock:
    """Order to engines: unlock the page-locked slab that begins at byte `start`. `Core.unlocked`
    follows when no engine has it page-locked any more."""

    start: int


@dataclass(frozen=True, slots=True)
class Sink:
    """Order to copy a block from host memory to the tier below; its `place` in host memory does not
    change before `Core.sunk`."""

    name: Name
    place: ByteRange
    tenant: str


@dataclass(frozen=True, slots=True)
class Rise:
    """Order to copy a block from the tier below to host memory; its `place` there is used for
    nothing else before `Core.risen`."""

    name: Name
    place: ByteRange


@dataclass(frozen=True, slots=True)
class PeerCopy:
    """Order to copy a block of a peer to host memory; neither place changes before `Core.moved`."""

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
    """Order: a peer's holder releases memory that no block needs; it counts as lent until
    `Core.returned`."""

    device: str
    range: ByteRange


Action = Tell | Punch | Unlock | Sink | Rise | PeerCopy | LendOrder | ReturnOrder
"""Orders to `Acting`, which carries them out in the order in which they are given."""
