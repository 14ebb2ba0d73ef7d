"""Copies of cold experts in memory that is faster to read than host memory. Pure.

An expert is in device memory (`residency`), on a peer as well as in host memory, or in host memory
only. A peer may reclaim its memory at any time, since host memory still has the expert.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from mirage.streaming.residency import CLEARLY, Expert, Residency
from vmm.driver import Stream


class ReplicaWish(NamedTuple):
    """Cold expert, and the part of its layer's steps that route to it, 0 to 1."""

    expert: Expert
    share: float


class Replicas(Protocol):
    """Copies on peers of cold experts, whose device memory was given away. Used by the engine's
    thread."""

    stream: Stream
    """Stream for copies from peers; it waits for no other work."""

    def lent(self) -> AbstractContextManager[Mapping[Expert, int]]:
        """Return a context manager with the addresses of the copies. Work enqueued on `stream`
        inside it may read them."""

    def wish(self, wishes: Sequence[ReplicaWish]) -> None:
        """Set the copies to keep from now on, most wanted first; an empty list while no expert is
        cold."""


def wishes(books: Residency) -> list[ReplicaWish]:
    """Return all cold experts that any step routes to, the most used first."""
    found = [
        ReplicaWish(Expert(layer, number), books.routing.share(layer, number))
        for layer, cold in books.cold.items()
        for number in cold
    ]
    return sorted((w for w in found if w.share > 0), key=lambda w: (-w.share, w.expert))


def missing(wished: Sequence[ReplicaWish], held: Collection[Expert]) -> ReplicaWish | None:
    """Return the most wanted expert that is not held; None if all are held."""
    return next((wish for wish in wished if wish.expert not in held), None)


def gives_way(
    wished: Sequence[ReplicaWish], held: Collection[Expert], to: ReplicaWish
) -> Expert | None:
    """Return the copy to drop for `to`: an unwanted one, or one clearly less used; None if there is
    none."""
    shares = {wish.expert: wish.share for wish in wished}
    least = min(held, key=lambda e: (shares.get(e, -1.0), e), default=None)
    if least is None or (least in shares and shares[least] + CLEARLY > to.share):
        return None
    return least
