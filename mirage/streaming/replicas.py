"""Copies of cold experts in memory that is quicker to read than host memory. Pure.

An expert is in device memory (`residency`), on a peer as well as in host memory, or in host memory
only. What lies on a peer may be wanted back at any time: host memory still has it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from mirage.streaming.residency import CLEARLY, Expert, Residency
from vmm.driver import Stream


class ReplicaWish(NamedTuple):
    """A cold expert, and the share of its layer's steps that route to it."""

    expert: Expert
    share: float


class Replicas(Protocol):
    """Copies of cold experts on peers. Used by the engine's thread."""

    stream: Stream
    """Stream of their copies; it waits for nothing else."""

    def lent(self) -> AbstractContextManager[Mapping[Expert, int]]:
        """Addresses of experts' copies. What is enqueued on `stream` inside may read them."""

    def wish(self, wishes: Sequence[ReplicaWish]) -> None:
        """Set the replicas to keep from now on, most wanted first; none while no expert is cold."""


def wishes(books: Residency) -> list[ReplicaWish]:
    """All cold experts that any step routes to, the most used first."""
    found = [
        ReplicaWish(Expert(layer, number), books.routing.share(layer, number))
        for layer, cold in books.cold.items()
        for number in cold
    ]
    return sorted((w for w in found if w.share > 0), key=lambda w: (-w.share, w.expert))


def missing(wished: Sequence[ReplicaWish], held: Collection[Expert]) -> ReplicaWish | None:
    """The most wanted one that is not held."""
    return next((wish for wish in wished if wish.expert not in held), None)


def gives_way(
    wished: Sequence[ReplicaWish], held: Collection[Expert], to: ReplicaWish
) -> Expert | None:
    """Replica to drop for `to`: an unwanted one, or one clearly less used."""
    shares = {wish.expert: wish.share for wish in wished}
    least = min(held, key=lambda e: (shares.get(e, -1.0), e), default=None)
    if least is None or (least in shares and shares[least] + CLEARLY > to.share):
        return None
    return least
