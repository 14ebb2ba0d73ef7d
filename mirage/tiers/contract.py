"""Contract between an engine and the pool below the device.

A *key* names the content of one KV block: vLLM's hash of all tokens up to its end, and its KV
group. Keys of different weights never meet: an engine joins under the fingerprint of its weights,
dtype and layout, and engines with the same fingerprint share content.

Promises:

- Bytes at a `BlockPlace` do not change and do not go away while a request that `found` them READY
  has not left, or a reservation is neither committed nor abandoned.
- A key is READY for others only after `commit`. Blocks that an engine reserved and did not commit
  before it ended are never served.
- No call waits for a disk or another engine. Only `reserve` waits for the pool's answer, at most
  `ANSWER_S`; after that, and whenever the pool is gone, calls behave as if nothing were stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import NamedTuple, NewType, Protocol

from mirage.tiers.ledger import ALL, Due

Key = NewType("Key", bytes)

ANSWER_S = 0.05
"""Longest time in seconds that an engine waits for the pool's answer."""


class Medium(StrEnum):
    """Media that can hold a block, fastest first."""

    PEER = "peer"
    HOST = "host"
    SSD = "ssd"


class LentBy(NamedTuple):
    """Holder of another GPU's memory: of the `nbytes` bytes from `offset` on of medium PEER."""

    socket: str
    """Path of its socket, over which it takes the messages of `mirage.tiers.lending.messages`."""
    offset: int
    nbytes: int


class Lookup(Enum):
    """State of a key that a request has asked for, as the pool reports it."""

    UNKNOWN = "unknown"
    """The pool has not answered yet."""
    ABSENT = "absent"
    BELOW = "below"
    """The block is on a tier that engines cannot copy from: a `seek` with `rise` brings it up if
    there is room. Or it is a copy of parameters (see `Member.replicas`) that others have to give
    back: neither use it nor make another one."""
    COMING = "coming"
    """The block is on its way to a place that an engine can copy from."""
    RISING = "rising"
    """The block is on its way from the disk to such a place."""
    READY = "ready"
    RECALLED = "recalled"
    """Only for copies of parameters (see `Member.replicas`): the pool wants back the memory of one
    that the request has, so the request has to leave soon."""


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """Place from or to which an engine copies a block."""

    medium: Medium
    offset: int
    """Bytes from the start of the medium's region."""
    risen: bool = field(default=False, compare=False)
    """True if the block came to the place from the disk after the request had begun to seek it."""

    @property
    def source(self) -> Medium:
        """Medium in which the block was found."""
        return Medium.SSD if self.risen else self.medium


@dataclass(frozen=True, slots=True)
class Member:
    """Engine that joins the pool."""

    tenant: str
    fingerprint: bytes
    """Fingerprint of weights, dtype and block layout: engines with the same one can read the same
    bytes."""
    block_bytes: int
    due: Due = ALL
    """Entitlement of the tenant. The pool's server uses its own value instead."""
    replicas: bool = False
    """True if its blocks are copies of content that its host memory has anyway, such as parameters.
    They are on peers only, at most the tenant's share, and are not copied when they go. They may be
    needed for long: a request that has one is told when it is RECALLED, and has to leave."""
    locks: bool = False
    """True for an engine that page-locks host memory for its device, and wants a connection for
    that."""


class Pool(Protocol):
    """Engine's end of the pool. Used by one thread."""

    def seek(self, request: str, keys: Iterable[Key], *, rise: bool = True) -> None:
        """Tell the pool that a request entered the queue and will need `keys`, in this order.

        Blocks that the pool has are pinned. With `rise`, blocks in the tier below begin to be
        copied to host memory, as far as there is room; the others are BELOW. A second call for the
        request adds keys, and looks again for those that were ABSENT or BELOW. A seek also counts
        as an access for eviction, and nothing else does: a request seeks blocks that the device
        still caches as well, so that their copies stay as long as those of the loaded blocks.
        """

    def found(self, request: str, key: Key) -> Lookup:
        """Return the state of a key that the request seeks; reads answers, and never waits.

        ABSENT for a key that it does not seek.
        """

    def places(self, request: str, keys: Iterable[Key]) -> list[BlockPlace]:
        """Return the places of READY keys. Raise `KeyError` for a key that is not READY."""

    def leave(self, request: str) -> None:
        """Tell the pool that the request needs none of its blocks any more. Unknown requests are
        ignored."""

    def reserve(self, keys: Iterable[Key]) -> Mapping[Key, BlockPlace]:
        """Reserve places to copy the blocks of `keys` to, and return them by key. Keys that the
        pool has, or for which it has no room, are left out."""

    def commit(self, keys: Iterable[Key]) -> None:
        """Tell the pool that the reserved places of these keys hold the content that the keys
        name."""

    def abandon(self, keys: Iterable[Key]) -> None:
        """Tell the pool that the reserved places of these keys will not be filled: it frees them.
        The caller writes to them no more."""

    def memory(self, medium: Medium) -> memoryview:
        """Return the medium's region, as mapped in this process. Raise `KeyError` if there is
        none."""

    def lenders(self) -> tuple[LentBy, ...]:
        """Return the holders of peers' memory; empty if the pool has no peers, or their memory is
        host memory in a region."""

    def locks(self) -> int | None:
        """Return the descriptor of a connection for page-locking slabs of host memory; the caller
        owns it.

        It takes the messages of `mirage.tiers.lending.messages`. None if there is no such
        connection, or it was returned already.
        """

    def bytes_per_s(self, medium: Medium) -> float | None:
        """Return the speed in bytes a second to which the caller has to limit its copies from and
        to the medium; None for no limit."""

    @property
    def lost(self) -> bool:
        """True if there is no pool, or no longer one: nothing is found or stored from then on."""

    def close(self) -> None:
        """Leave the pool; places that were reserved and not committed are given up. A second call
        does nothing.

        The caller promises that nothing is copied from or to places any more, because other members
        may get the places immediately.
        """
