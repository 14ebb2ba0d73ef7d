"""Sets of streamed layers: m of n layers on a circle, since steps run all layers again and
again."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from math import floor, log2


def even(n: int, m: int) -> tuple[int, ...]:
    """Return m of n layers, as evenly spaced as possible: gaps of floor(n/m) or one more.

    No set of m has a larger smallest gap (MIRAGE, arXiv 2507.11507).
    """
    return tuple(i * n // m for i in range(m))


def nested(n: int) -> tuple[int, ...]:
    """Return all n layers in an order whose first m are the streamed set of size m.

    Growing the set by one adds a layer and moves none. Point k (from 0) stands at the fraction
    log2(2k + 1) mod 1 of the circle, after de Bruijn and Erdős (1949), who showed that no endless
    sequence keeps larger gaps at every size. Each point gives the layer in which it falls; a point
    in a layer that is already taken is skipped. The gaps of the first m points are log2(1 + 1/j)
    for j = m .. 2m - 1, as fractions of the circle, hence the bound in layers that the tests
    assert:

        smallest gap >= max(1, floor(n * log2(2m / (2m - 1)))) >= floor(0.72 * n / m)

    so it falls short of the ideal floor(n/m) by less than 0.28 * n/m + 1 layers.
    """
    order: dict[int, None] = {}
    for k in count():
        if len(order) == n:
            break
        # Points that fall into a layer already taken are skipped; all layers are reached.
        order.setdefault(floor(n * (log2(2 * k + 1) % 1)))
    return tuple(order)


def gaps(layers: Iterable[int], n: int) -> list[int]:
    """Return the distance from each layer to the next one on the circle of n, in layer order."""
    ring = sorted(layers)
    nexts = ring[1:] + ring[:1]
    return [(after - here - 1) % n + 1 for here, after in zip(ring, nexts, strict=True)]
