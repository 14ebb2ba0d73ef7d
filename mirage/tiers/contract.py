"""Contract between an engine and the pool below the device.

A *key* names the content of one KV block: vLLM's hash of all tokens up to its end, and its KV
group. Keys of different weights never meet: an engine joins under the fingerprint of its weights,
dtype and layout, and engines with the same fingerprint share content.

Promises:

- Bytes at a `BlockPlace` do not change and do not go away while a request that `found` them READY
  has not left, or a reservation is neither committed nor abandoned.
- A key is READY for others only after `commit`. Blocks that an engine reserved and did not commit
  before it ended are never served.
- Nothing waits for a disk or another engine. Only `reserve` waits for the pool's answer, and at
  most `ANSWER_S`; then, and whenever the pool is gone, all is as if nothing was stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import NamedTuple, NewType, Protocol

from mirage.tiers.ledger import ALL, Due

Key = NewType("Key", bytes)

ANSWER_S = 0.05
"""Most seconds that an engine waits for the pool."""


class Medium(StrEnum):
    """Media that can hold a block, quickest first."""

    PEER = "peer"
    HOST = "host"
    SSD = "ssd"


class LentBy(NamedTuple):
    """Lender of these bytes of medium PEER, if no region has them."""

    socket: str
    """The path of its socket; what is said there is `mirage.tiers.lending.messages`."""
    offset: int
    nbytes: int


class Lookup(Enum):
    """State of a key that a request seeks, as the pool tells it."""

    UNKNOWN = "unknown"
    """Not answered yet."""
    ABSENT = "absent"
    BELOW = "below"
    """On a tier that engines cannot copy from: a `seek` with `rise` brings it up if there is room.
    Or a replica that others have to give back: neither use it nor make another one."""
    COMING = "coming"
    """On its way to a place that an engine can copy from."""
    RISING = "rising"
    """The same, from the disk."""
    READY = "ready"
    RECALLED = "recalled"
    """Only of replicas, of one that the request has: the memory is wanted back, so leave soon."""


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """Place from or to which an engine copies a block."""

    medium: Medium
    offset: int
    """Bytes from the start of the medium's region."""
    risen: bool = field(default=False, compare=False)
    """True if it came there from the disk after the request had begun to seek it."""

    @property
    def source(self) -> Medium:
        """Medium in which the block was found."""
        return Medium.SSD if self.risen else self.medium


@dataclass(frozen=True, slots=True)
class Member:
    """An engine that joins the pool."""

    tenant: str
    fingerprint: bytes
    """Fingerprint of weights, dtype and the layout of a block: engines with the same one may read
    the same bytes.
    """
    block_bytes: int
    due: Due = ALL
    """The tenant's. A server knows it itself."""
    replicas: bool = False
    """Its blocks are copies of what its host memory has anyway, parameters for one. They lie on
    peers only, never more of a tenant than its share, and are not copied when they go. They may be
    needed for long: who has one hears when it is RECALLED, and leaves."""
    locks: bool = False
    """True for an engine that locks host memory for its device, and wants a line for that."""


class Pool(Protocol):
    """The engine's end. Used by one thread."""

    def seek(self, request: str, keys: Iterable[Key], *, rise: bool = True) -> None:
        """A request entered the queue and will need `keys`, in this order.

        What is held is pinned. What lies deeper starts to come up with `rise`, as far as there is
        room, and is BELOW otherwise. Asked again, it adds keys, and looks anew for those that were
        ABSENT or BELOW. A seek also counts as an access for eviction, and there is no other one: a
        request seeks blocks that the device still caches as well, so that their copies stay as long
        as those of the loaded blocks.
        """

    def found(self, request: str, key: Key) -> Lookup:
        """State of a key that the request seeks; reads answers, and never waits.

        ABSENT for a key that it does not seek.
        """

    def places(self, request: str, keys: Iterable[Key]) -> list[BlockPlace]:
        """Places of READY keys. Raises `KeyError` for a key that is not READY."""

    def leave(self, request: str) -> None:
        """The request needs nothing of the pool any more. Unknown ones are ignored."""

    def reserve(self, keys: Iterable[Key]) -> Mapping[Key, BlockPlace]:
        """Places to copy blocks to, without those that are held and those that find no room."""

    def commit(self, keys: Iterable[Key]) -> None:
        """Reserved places hold what their keys name."""

    def abandon(self, keys: Iterable[Key]) -> None:
        """Reserved places hold nothing."""

    def memory(self, medium: Medium) -> memoryview:
        """The medium's region, as mapped in this process. Raises `KeyError` without one."""

    def lenders(self) -> tuple[LentBy, ...]:
        """Lenders of the memory of peers, if it is not in a region; none otherwise."""

    def locks(self) -> int | None:
        """The descriptor of a line on which slabs of host memory are locked, the caller's; what is
        said there is `mirage.tiers.lending.messages`. None without, and once it was given."""

    def bytes_per_s(self, medium: Medium) -> float | None:
        """At what pace copies from and to it have to go; None: as fast as they can."""

    @property
    def lost(self) -> bool:
        """True if there is no pool, or none any more: nothing is found or stored from then on."""

    def close(self) -> None:
        """Leave the pool; what was reserved and not committed is gone. Idempotent.

        Says that nothing is copied from or to places any more: they are others' at once.
        """
