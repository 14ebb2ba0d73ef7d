"""Time of a step of which some layers are streamed.

Of n layers m = `layers_remapped` + `stream_slots` are streamed. They share the slots. T_T is the
time to load one layer from host memory, T_c the compute time of one layer. Times may be of any
numeric type and unit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import cache

from mirage.streaming.layer_sets import gaps, nested

MOST_LAPS = 4096


def nested_step(remapped: int, slots: int, n: int, t_load: float, t_compute: float) -> float:
    """Return `step_time` of the streamed set that an engine uses: the first `remapped` + `slots`
    layers of `nested`, or none if `remapped` is 0.

    Where gaps between its layers differ, it is longer than that of evenly spaced layers: by up to
    10 % where the loads just hide.
    """
    if remapped == 0:
        return n * t_compute
    return max(a * t_load + b * t_compute for a, b in _nested_bounds(n, remapped + slots, slots))


@cache
def _nested_bounds(n: int, m: int, slots: int) -> tuple[tuple[float, float], ...]:
    bounds = step_cost_bounds(nested(n)[:m], n, slots)
    return tuple((float(a), float(b)) for a, b in bounds)


def step_time(
    layers: Iterable[int],
    n: int,
    slots: int,
    t_load: float,
    t_compute: float,
    most_laps: int = MOST_LAPS,
) -> float:
    """Return the time of one step in the steady state, simulated layer by layer around the circle.
    `layers` are the numbers of the streamed ones among `n`. If they are no more than `slots`,
    they stay loaded.

    Loads happen one at a time in layer order. A load may start when a slot is free, that is, when
    the streamed layer `slots` places earlier has run; a streamed layer runs when it is loaded. The
    simulation goes on until its state repeats (at most `most_laps` laps, enough for exact numbers
    of a test's size) and returns the mean time of the laps that repeat.
    """
    ring = gaps(layers, n)
    if len(ring) <= slots:
        return n * t_compute
    elapsed, laps = _walked(ring, slots, t_load, t_compute, most_laps)
    return elapsed / laps


def _walked(
    ring: Sequence[int], slots: int, t_load: float, t_compute: float, most_laps: int
) -> tuple[float, int]:
    """Return the total time of the laps that repeat, and their number."""
    clock = loaded = 0 * t_load
    ran = deque([clock] * slots, maxlen=slots)
    seen: dict[tuple[float, ...], tuple[int, float]] = {}
    for lap in range(most_laps):
        state = (clock - loaded, *(clock - end for end in ran))
        if state in seen or lap == most_laps - 1:
            first, then = seen.get(state, (0, 0 * t_load))
            return clock - then, lap - first
        seen[state] = lap, clock
        for gap in ring:
            loaded = max(loaded, ran[0]) + t_load
            clock = max(clock + (gap - 1) * t_compute, loaded) + t_compute
            ran.append(clock)
    raise AssertionError("unreachable: the last lap returns")


def step_cost_bounds(
    layers: Iterable[int], n: int, slots: int
) -> tuple[tuple[Fraction, Fraction], ...]:
    """Return pairs (a, b) such that `step_time` is the maximum of a T_T + b T_c over them, for any
    T_T and T_c.

    One slot: a load follows the run of the streamed layer before it, so each gap g takes the longer
    of T_T and (g - 1) T_c, and then T_c. Two slots: the envelope is searched.
    """
    ring = gaps(layers, n)
    if len(ring) <= slots:
        return ((Fraction(0), Fraction(n)),)
    if slots == 1:
        return _one_slot(ring)
    found = _between(ring, (Fraction(len(ring)), Fraction(0)), (Fraction(0), Fraction(n)))
    return tuple(sorted(found, reverse=True))


def _one_slot(ring: Sequence[int]) -> tuple[tuple[Fraction, Fraction], ...]:
    m = len(ring)
    longest = sorted(ring, reverse=True)
    pairs = {}
    for hiding in range(m + 1):
        computes = m + sum(gap - 1 for gap in longest[:hiding])
        pairs[hiding] = Fraction(m - hiding), Fraction(computes)
    # Between gaps of one length no number of hiding ones is ever the maximum.
    ends = [h for h in pairs if h in (0, m) or longest[h] != longest[h - 1]]
    return tuple(pairs[h] for h in ends)


Line = tuple[Fraction, Fraction]
NEARLY = Fraction(1, 10**7)
"""Relative distance from a point at which another point lies on the same line of the envelope."""


def _between(ring: Sequence[int], left: Line, right: Line) -> set[Line]:
    """Return the lines of the envelope of two slots from `left`, for small T_c, to `right`; T_T is
    1.

    The envelope is convex: if it passes through the point where both lines meet, no line is between
    them; if it lies above that point, a third line passes there. Of eight layers the first three
    are streamed:

    >>> ring = gaps((0, 1, 2), 8)  # 3 for the loads alone, 8 x for the compute alone
    >>> str(_two_slots(ring, Fraction(3, 8)))  # where they meet, both say 3
    '29/8'
    >>> ends = (Fraction(3), Fraction(0)), (Fraction(0), Fraction(8))
    >>> [(int(a), int(b)) for a, b in sorted(_between(ring, *ends))]  # so 1 + 7 x as well
    [(0, 8), (1, 7), (3, 0)]
    """
    if left == right:
        return {left}
    x = (left[0] - right[0]) / (right[1] - left[1])
    if _two_slots(ring, x) <= left[0] + left[1] * x:
        return {left, right}
    below, above = _line_at(ring, x, -NEARLY), _line_at(ring, x, NEARLY)
    return _between(ring, left, below) | _between(ring, above, right)


def _line_at(ring: Sequence[int], x: Fraction, towards: Fraction) -> Line:
    """Return the line of the envelope just beside x, on the side of `towards`, through two points
    near x.

    >>> ring = gaps((0, 1, 2), 8)  # 1 + 7 x up to x = 1, and 8 x from there on
    >>> [tuple(map(int, _line_at(ring, Fraction(1), side))) for side in (-NEARLY, NEARLY)]
    [(1, 7), (0, 8)]
    """
    near, nearer = x * (1 + 2 * towards), x * (1 + towards)
    slope = (_two_slots(ring, near) - _two_slots(ring, nearer)) / (near - nearer)
    slope = slope.limit_denominator(64)
    return _two_slots(ring, nearer) - slope * nearer, slope


def _two_slots(ring: Sequence[int], t_compute: Fraction) -> Fraction:
    """Return `step_time` with two slots and T_T = 1, computed in whole numbers."""
    unit = t_compute.denominator
    elapsed, laps = _walked(ring, 2, unit, t_compute.numerator, MOST_LAPS)
    return Fraction(int(elapsed), laps * unit)
