"""The moves of a plan: from where to where bytes go, for whom, and why. Pure.

A pass notes flows: bytes that leave a place or enter one. Here they become moves. Bytes are alike,
so who paid whom is a matter of order: a place that takes gets what its own tenant has just given,
then what others have given in this pass, the first one first, then free memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

import msgspec


class Reason(StrEnum):
    """The pass that moves memory: a word, and a sentence for an operator."""

    sentence: str

    def __new__(cls, word: str, sentence: str) -> Reason:
        """Member of a `StrEnum`, made of the word alone."""
        self = str.__new__(cls, word)
        self._value_, self.sentence = word, sentence
        return self

    RUNNING = "running", "Running requests use it, or the model cannot serve with less."
    WAKE = "wake", "A model that wakes gets its share back, which running requests use."
    RECALL = "recall", "A model that woke would serve too slowly without its layers."
    PREFIXES = "prefixes", "Computing cached prefixes again would cost more than lending layers."
    GROWTH = "growth", "Running requests need more, within the share of their model."
    GROWTH_BEYOND = "growth beyond", "Running requests need more than the share of their model."
    ADMISSION = "admission", "Waiting requests can start, within the share of their model."
    ADMISSION_BEYOND = "admission beyond", "Waiting requests can start beyond the share."
    COOLDOWN = "cooldown", "Requests wanted it a moment ago, and may want it again."
    RESTORE = "restore", "No demand needs the memory of these layers any more."
    STAY = "stay", "Layers that are away stay away: reversion is off."
    SHARE = "share", "No demand needs it, and the share of the model has room for it."


class Kind(StrEnum):
    """Use of memory; free memory is nobody's, all else one tenant's."""

    FREE = "free memory"
    LAYERS = "layers"
    EXPERTS = "experts"
    KV = "KV memory"
    PREFIXES = "cached prefixes"


class Place(NamedTuple):
    """A place of memory: its use, and the tenant that has it."""

    kind: Kind
    tenant: str = ""

    def __str__(self) -> str:
        return f"{self.kind} of {self.tenant}" if self.tenant else str(self.kind)


FREE = Place(Kind.FREE)


class Move(NamedTuple):
    """Bytes that a pass takes from one place to another, for the sake of `tenant`."""

    tenant: str
    source: Place
    to: Place
    nbytes: int
    reason: Reason


Flow = tuple[Kind, str, int]
"""Bytes that enter a place of a tenant; below 0 those that leave it."""


class PassRecord(msgspec.Struct, frozen=True):
    """Record of one pass, with `free` bytes before it."""

    reason: Reason
    free: int
    flows: list[Flow]


def moves(steps: Iterable[PassRecord]) -> Iterator[Move]:
    """The moves of passes in their order, none of them twice in one pass, or of no bytes."""
    for step in steps:
        for (source, to), nbytes in _Matching(step).pairs.items():
            yield Move(to.tenant or source.tenant, source, to, nbytes, step.reason)


class _Matching:
    """Payments between places in one step."""

    def __init__(self, step: PassRecord) -> None:
        self.pairs: Counter[tuple[Place, Place]] = Counter()
        self._free = step.free
        self._given: dict[Place, int] = {}
        """Bytes that nobody has taken yet, the first given first."""
        self._owed: dict[Place, int] = {}
        """Bytes that were taken and that nobody has paid for yet."""
        for kind, tenant, nbytes in step.flows:
            if nbytes < 0:
                self._give(Place(kind, tenant), -nbytes)
            elif nbytes:
                self._take(Place(kind, tenant), nbytes)
        for place, nbytes in self._given.items():
            self._pay(place, FREE, nbytes)
        for place, nbytes in self._owed.items():
            self._pay(FREE, place, nbytes)

    def _give(self, place: Place, nbytes: int) -> None:
        for to, part in _parts(self._owed, place.tenant, nbytes):
            self._pay(place, to, part)
            nbytes -= part
        if nbytes:
            self._given[place] = self._given.get(place, 0) + nbytes

    def _take(self, place: Place, nbytes: int) -> None:
        for source, part in _parts(self._given, place.tenant, nbytes):
            self._pay(source, place, part)
            nbytes -= part
        if free := min(nbytes, max(0, self._free)):
            self._free -= free
            self._pay(FREE, place, free)
        if nbytes > free:
            self._owed[place] = self._owed.get(place, 0) + nbytes - free

    def _pay(self, source: Place, to: Place, nbytes: int) -> None:
        if source != to:
            self.pairs[source, to] += nbytes


def _parts(places: dict[Place, int], tenant: str, nbytes: int) -> list[tuple[Place, int]]:
    """Up to `nbytes` bytes out of `places`, those of `tenant` first. Emptied places are removed."""
    parts = []
    for place in sorted(places, key=lambda p: p.tenant != tenant):
        part = min(nbytes, places[place])
        if not part:
            break
        parts.append((place, part))
        nbytes -= part
        places[place] -= part
        if not places[place]:
            del places[place]
    return parts
