"""Moves of a plan: from where to where bytes go, for which tenant, and why. Pure.

A pass notes flows: bytes that leave a place (layers of a tenant, for example) or enter one. This
module makes moves of them. All bytes are alike, so a rule chooses the source of the bytes that a
place takes: first what its own tenant has given in this pass, then what other tenants have given,
the first given first, then free memory, and last what is given later in the pass. Bytes that no
place takes become free memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

import msgspec


class Reason(StrEnum):
    """Pass that moves memory, as a word and as a sentence for an operator."""

    sentence: str

    def __new__(cls, word: str, sentence: str) -> Reason:
        """Make a member whose value is the word alone."""
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
    """Use of memory. Free memory belongs to no tenant, all other memory to one."""

    FREE = "free memory"
    LAYERS = "layers"
    EXPERTS = "experts"
    KV = "KV memory"
    PREFIXES = "cached prefixes"


class Place(NamedTuple):
    """Place of memory: its use, and its tenant (empty for free memory)."""

    kind: Kind
    tenant: str = ""

    def __str__(self) -> str:
        return f"{self.kind} of {self.tenant}" if self.tenant else str(self.kind)


FREE = Place(Kind.FREE)


class Move(NamedTuple):
    """Bytes that a pass moves from one place to another, for the sake of `tenant`."""

    tenant: str
    source: Place
    to: Place
    nbytes: int
    reason: Reason


Flow = tuple[Kind, str, int]
"""Kind, tenant and bytes that enter a place; negative bytes leave it."""


class PassRecord(msgspec.Struct, frozen=True):
    """Flows of one pass, with `free` free bytes before it."""

    reason: Reason
    free: int
    flows: list[Flow]


def moves(steps: Iterable[PassRecord]) -> Iterator[Move]:
    """Yield the moves of passes in their order: within a pass one move for each pair of places, and
    no empty ones."""
    for step in steps:
        for (source, to), nbytes in _Matching(step).pairs.items():
            yield Move(to.tenant or source.tenant, source, to, nbytes, step.reason)


class _Matching:
    """Matching of the flows of one pass: in `pairs`, the bytes that pass from one place to
    another."""

    def __init__(self, step: PassRecord) -> None:
        self.pairs: Counter[tuple[Place, Place]] = Counter()
        self._free = step.free
        self._given: dict[Place, int] = {}
        """Bytes that were given and not taken yet, by place, the first given first."""
        self._owed: dict[Place, int] = {}
        """Bytes that were taken and not paid for yet, by place."""
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
    """Take up to `nbytes` bytes out of `places`, those of `tenant` first; return them by place.
    Emptied places are removed."""
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
