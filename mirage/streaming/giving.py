"""Layers or experts given away: the way from one to the other, as memory allows. Pure.

Engines, the simulator and the controller take the same way.
"""

from __future__ import annotations

from collections.abc import Callable

Given = tuple[int, int]
"""Layers given away, and experts of each layer; one of both is 0."""


def affordable(cost: Callable[[int, int], int], now: Given, to: Given, spare: int) -> Given:
    """As far from `now` towards `to` as `spare` beside `cost(*now)` pays for.

    What costs no more is there at once. Else the way leads over what `now` is made of, layers or
    experts: fewer and fewer of them, as far as they are affordable.
    """
    if now == to:
        return to
    room = cost(*now) + spare
    if cost(*to) <= room:
        return to
    remapped, experts = now
    if experts:
        way = [(0, e) for e in range(to[1], experts)] if not to[0] else []
    else:
        way = [(a, 0) for a in range(max(to[0], 1 if to[1] else 0), remapped)]
    return next((given for given in way if cost(*given) <= room), now)
