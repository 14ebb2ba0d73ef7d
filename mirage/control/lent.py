"""Lent memory in a plan: the lender, the borrower, the kind and the reason. Pure.

The moves of a plan lead from all layers in place and no KV memory to its targets. So the memory
that they give a tenant beyond what its share pays for is lent to it for as long as the plan holds:

- *layers and experts* of another tenant, or its own, as the moves say, less what was returned;
- *idle KV memory*: free memory that the tenant has beyond its share. The tenants that have less of
  it than their shares are its lenders, in proportion to the bytes that they lack;
- *free memory* that no tenant lacks: it is in no share, or in that of a tenant that sleeps.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mirage.control.moves import Kind, Move, Place, Reason

STREAMED = frozenset({Kind.LAYERS, Kind.EXPERTS})
"""Kinds that their owner streams from host memory as long as they are lent."""
CACHE = frozenset({Kind.KV, Kind.PREFIXES})
NOBODY = ""


class Lending(NamedTuple):
    """Memory of `lender` that `borrower` has; both are the same for a tenant's own layers.

    The lender of free memory is `NOBODY`.
    """

    lender: str
    borrower: str
    kind: Kind
    nbytes: int
    reason: Reason
    """Reason for the largest part of the bytes."""


def lendings(moves: Iterable[Move], shares: Mapping[str, int]) -> list[Lending]:
    """Return the loans by the `moves` of a plan; `shares` has, by tenant, the bytes of KV memory
    that its share pays for beside all its layers."""
    plan = _Flows(moves)
    streamed = list(_kept(plan.streamed(), plan.cache))
    free = Counter(plan.cache)
    for one in streamed:
        free[one.borrower] -= one.nbytes
    return [*streamed, *_idle(free, shares, plan)]


class _Flows:
    """Sums of the moves of a plan."""

    def __init__(self, moves: Iterable[Move]) -> None:
        self.cache: Counter[str] = Counter()
        """Bytes of KV memory and cached prefixes of each tenant."""
        self._given: Counter[Place] = Counter()
        """Bytes of layers and experts that are away, by place."""
        self._paid: dict[tuple[Place, str], Counter[Reason]] = defaultdict(Counter)
        """Bytes by reason that a place of layers or experts gave to a tenant's cache, less those
        returned."""
        self._filled: dict[str, list[tuple[Reason, int]]] = defaultdict(list)
        """Bytes that entered a tenant's cache, with their reasons, in order."""
        for move in moves:
            self._add(move)

    def _add(self, move: Move) -> None:
        source, to, nbytes = move.source, move.to, move.nbytes
        for place, change in ((source, -nbytes), (to, nbytes)):
            if place.kind in CACHE:
                self.cache[place.tenant] += change
            elif place.kind in STREAMED:
                self._given[place] -= change
        if to.kind in CACHE:
            if source.kind in STREAMED:
                self._paid[source, to.tenant][move.reason] += nbytes
            if source.kind not in CACHE or source.tenant != to.tenant:
                self._filled[to.tenant].append((move.reason, nbytes))
        elif to.kind in STREAMED and source.kind in CACHE:
            self._paid[to, source.tenant][move.reason] -= nbytes

    def streamed(self) -> Iterable[Lending]:
        """Yield the loans of layers and experts that are away. Bytes that these got back out of
        free memory, and so from no borrower, are taken off all borrowers in proportion."""
        paid = {names: reasons.total() for names, reasons in self._paid.items()}
        wholes: Counter[Place] = Counter()
        for (place, _), nbytes in paid.items():
            wholes[place] += max(0, nbytes)
        for (place, borrower), nbytes in paid.items():
            part = min(1.0, max(0, self._given[place]) / (wholes[place] or 1))
            if (left := int(max(0, nbytes) * part)) > 0:
                reason = self._paid[place, borrower].most_common(1)[0][0]
                yield Lending(place.tenant, borrower, place.kind, left, reason)

    def beyond(self, tenant: str, share: int) -> Reason:
        """Return the reason for most of the bytes that entered a tenant's cache after its `share`
        was full."""
        reasons: Counter[Reason] = Counter()
        for reason, nbytes in self._filled[tenant]:
            over = min(nbytes, max(0, nbytes - share))
            share -= nbytes - over
            reasons[reason] += over
        return reasons.most_common(1)[0][0]


def _kept(streamed: Iterable[Lending], cache: Mapping[str, int]) -> Iterable[Lending]:
    """Yield loans of layers and experts, less what later moves took from the borrower's cache.
    `cache` has, by tenant, the bytes that the moves leave; loans are reduced in proportion."""
    loans = list(streamed)
    lent: Counter[str] = Counter()
    for one in loans:
        lent[one.borrower] += one.nbytes
    for one in loans:
        left = one.nbytes * min(lent[one.borrower], cache[one.borrower]) // lent[one.borrower]
        if left > 0:
            yield one._replace(nbytes=left)


def _idle(free: Mapping[str, int], shares: Mapping[str, int], plan: _Flows) -> Iterable[Lending]:
    """Yield the loans of idle KV memory and of free memory; `free` has, by tenant, the bytes of its
    KV memory and cached prefixes that no layers or experts pay for."""
    over = {name: free[name] - share for name, share in shares.items() if free[name] > share}
    lacks = {name: share - free[name] for name, share in shares.items() if free[name] < share}
    whole = max(sum(over.values()), sum(lacks.values()))
    for borrower, surplus in over.items():
        reason = plan.beyond(borrower, shares[borrower])
        for lender, lacking in lacks.items():
            if nbytes := surplus * lacking // whole:
                yield Lending(lender, borrower, Kind.KV, nbytes, reason)
        if nbytes := surplus * (whole - sum(lacks.values())) // whole:
            yield Lending(NOBODY, borrower, Kind.FREE, nbytes, reason)
