"""Way from the layers or experts given away now to others, as far as memory allows. Pure.

Engines, the simulator and the controller use the same function.
"""

from __future__ import annotations

from collections.abc import Callable

Given = tuple[int, int]
"""Number of layers given away, and of experts of each layer; at least one of both is 0."""


def affordable(cost: Callable[[int, int], int], now: Given, to: Given, spare: int) -> Given:
    """Return the state nearest to `to` that `spare` bytes beyond `cost(*now)` pay for.

    `cost` returns the bytes that a state holds: the more is given away, the fewer. `to` itself is
    returned if it costs no more than that. Otherwise it is a state with fewer layers, or experts,
    given away than now, or `now` if none is affordable. From experts given away now to layers
    there is no state in between.
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
