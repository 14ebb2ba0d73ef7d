"""Which layers are streamed, and how many of them hide behind compute.

A model has n layers that run in a circle, step after step. m = alpha + beta of them are
streamed: they share beta slots, so the memory of alpha layers is free for other use. T_T is
the time to load one layer from host memory, T_c the compute time of one layer; any numeric
type will do, and only their ratio matters.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import cache
from itertools import count
from math import floor, inf, log2

MOST_LAPS = 4096
HIDDEN = Fraction(103, 100)
"""A step with streamed layers is this much longer than one without, at most, if they hide."""
AS_GOOD = 1.01
"""Steps that differ by less are alike."""


def even(n: int, m: int) -> tuple[int, ...]:
    """m of n layers, as evenly spaced as can be: gaps of floor(n/m) or one more.

    No set of m has a larger smallest gap (MIRAGE, arXiv 2507.11507).
    """
    return tuple(i * n // m for i in range(m))


def nested(n: int) -> tuple[int, ...]:
    """All n layers in such an order that its first m are the streamed set of size m.

    Growing the set by one adds a layer and moves none. The k-th layer (from 0) stands at the
    fraction log2(2k + 1) mod 1 of the circle, after de Bruijn and Erdős (1949), who showed
    that no endless sequence keeps larger gaps at every size. The gaps of the first m points
    are log2(1 + 1/j) for j = m .. 2m - 1, hence the bound that the tests assert:

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
    """Distances from each layer to the next one on the circle of n, in layer order."""
    ring = sorted(layers)
    nexts = ring[1:] + ring[:1]
    return [(after - here - 1) % n + 1 for here, after in zip(ring, nexts, strict=True)]


def smallest_gap(layers: Iterable[int], n: int) -> int:
    """The least distance between two of `layers` on the circle; n for one layer or none."""
    return min(gaps(layers, n), default=n)


def step_bound(alpha: int, beta: int, n: int, t_load: float, t_compute: float) -> float:
    """The least time one step can take: compute, or the transfers that it waits for.

    With one slot a layer can only be loaded while resident layers run, so the m streamed
    ones each take T_T + T_c in sequence. With two slots, loads run back to back.
    """
    if alpha == 0:
        return n * t_compute
    per_layer = t_load + t_compute if beta == 1 else t_load
    return max(n * t_compute, (alpha + beta) * per_layer)


def hides(alpha: int, beta: int, n: int, t_load: float, t_compute: float) -> bool:
    """Whether streaming alpha + beta layers hides behind compute (MIRAGE, arXiv 2507.11507).

        beta = 1:  T_T * (alpha + 1) <= T_c * (n - alpha - 1)
        beta = 2:  T_T * (alpha + 2) <= T_c * n

    Against the pipeline of `step_time`: always necessary, whatever the set. Exact for evenly
    spaced sets where m divides n, and for beta = 2 also where n >= 2m. Elsewhere gaps differ
    by one, and a step may wait less than T_c for each streamed layer.
    """
    if alpha == 0:
        return True
    loads, layers = _condition(alpha, beta, n)
    return t_load * loads <= t_compute * layers


def _condition(alpha: int, beta: int, n: int) -> tuple[int, int]:
    """The loads of a step, and the layers whose compute they can hide behind."""
    m = alpha + beta
    return (m, n - m) if beta == 1 else (m, n)


def nested_step(alpha: int, beta: int, n: int, t_load: float, t_compute: float) -> float:
    """`step_time` of the streamed set that an engine uses: of `nested`, the first alpha + beta.

    Never under `step_bound`, and over it where gaps differ: by up to 10 % where it just hides.
    """
    if alpha == 0:
        return n * t_compute
    return max(a * t_load + b * t_compute for a, b in _nested_forms(n, alpha + beta, beta))


@cache
def _nested_forms(n: int, m: int, beta: int) -> tuple[tuple[float, float], ...]:
    forms = step_forms(nested(n)[:m], n, beta)
    return tuple((float(a), float(b)) for a, b in forms)


def best_beta(
    alpha: int, n: int, t_load: float, t_compute: float, betas: Sequence[int] = (1, 2)
) -> int:
    """The fewest slots whose step is as good as the shortest, since those stream least.

    So 1 where that hides, else 2 where that does. Where neither does, transfers are the step,
    and one slot can be the better: it streams one layer less.
    """
    steps = {beta: nested_step(alpha, beta, n, t_load, t_compute) for beta in betas}
    shortest = min(steps.values())
    return min(beta for beta, step in steps.items() if step <= AS_GOOD * shortest)


def largest_alpha(
    n: int,
    t_load: float,
    t_compute: float,
    betas: Sequence[int] = (1, 2),
    most_streamed: int | None = None,
) -> tuple[int, int]:
    """The most layers that can be given away with streaming hidden, and the beta to do it.

    That `hides`, and a step of the nested set takes at most `HIDDEN` times its compute.
    `most_streamed` bounds alpha + beta (default n). (0, fewest slots) if nothing hides.
    """
    limit = n if most_streamed is None else most_streamed
    ratio = -t_load / t_compute if t_compute else -inf

    def most(beta: int) -> int:
        return min(bisect_right(_bearable(n, beta), ratio), limit - beta)

    alpha = max(most(beta) for beta in betas)
    if alpha <= 0:
        return 0, min(betas)
    unfelt = [beta for beta in betas if most(beta) == alpha]
    return alpha, best_beta(alpha, n, t_load, t_compute, unfelt)


@cache
def _bearable(n: int, beta: int) -> tuple[float, ...]:
    """For alpha = 1 and more: the largest T_T / T_c at which it is hidden, negative to ascend."""
    bears = []
    for alpha in range(1, n - beta + 1):
        loads, layers = _condition(alpha, beta, n)
        forms = step_forms(nested(n)[: alpha + beta], n, beta)
        own = [(HIDDEN * n - b) / a for a, b in forms if a]
        bears.append(min(Fraction(layers, loads), *own))
    return tuple(-float(most) for most in bears)


def step_time(
    layers: Iterable[int],
    n: int,
    beta: int,
    t_load: float,
    t_compute: float,
    most_laps: int = MOST_LAPS,
) -> float:
    """Time of one step in the steady state, walked layer by layer around the circle.

    Loads happen one at a time in layer order. One may start when a slot is free, that is,
    when the streamed layer beta places earlier has run; a streamed layer runs when it is
    loaded. Walks laps until the state repeats (at most `most_laps`, enough for exact numbers
    of a test's size) and returns the mean time of the laps that repeat.
    """
    ring = gaps(layers, n)
    if len(ring) <= beta:
        return n * t_compute
    elapsed, laps = _walked(ring, beta, t_load, t_compute, most_laps)
    return elapsed / laps


def _walked(
    ring: Sequence[int], beta: int, t_load: float, t_compute: float, most_laps: int
) -> tuple[float, int]:
    """The time of the laps that repeat, and their number."""
    clock = loaded = 0 * t_load
    ran = deque([clock] * beta, maxlen=beta)
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


def step_forms(layers: Iterable[int], n: int, beta: int) -> tuple[tuple[Fraction, Fraction], ...]:
    """`step_time` as a maximum: of a T_T + b T_c over the pairs (a, b), for any T_T and T_c.

    One slot: a load follows the run of the streamed layer before it, so each gap g takes the
    longer of T_T and (g - 1) T_c, and then T_c. Two slots: the envelope is searched.
    """
    ring = gaps(layers, n)
    if len(ring) <= beta:
        return ((Fraction(0), Fraction(n)),)
    if beta == 1:
        return _one_slot(ring)
    found = _between(ring, n, (Fraction(len(ring)), Fraction(0)), (Fraction(0), Fraction(n)))
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
"""So near beside a point the step is on the same line, and no nearer than numbers tell."""


def _between(ring: Sequence[int], n: int, left: Line, right: Line) -> set[Line]:
    """Lines of the envelope of two slots from `left`, for small T_c, to `right`; T_T is 1."""
    if left == right:
        return {left}
    x = (left[0] - right[0]) / (right[1] - left[1])
    if _two_slots(ring, x) <= left[0] + left[1] * x:
        return {left, right}
    below, above = _line_at(ring, x, -NEARLY), _line_at(ring, x, NEARLY)
    return _between(ring, n, left, below) | _between(ring, n, above, right)


def _line_at(ring: Sequence[int], x: Fraction, towards: Fraction) -> Line:
    """The line of the envelope just beside x."""
    near, nearer = x * (1 + 2 * towards), x * (1 + towards)
    slope = (_two_slots(ring, near) - _two_slots(ring, nearer)) / (near - nearer)
    slope = slope.limit_denominator(64)
    return _two_slots(ring, nearer) - slope * nearer, slope


def _two_slots(ring: Sequence[int], t_compute: Fraction) -> Fraction:
    """`step_time` with T_T = 1, in whole numbers."""
    unit = t_compute.denominator
    elapsed, laps = _walked(ring, 2, unit, t_compute.numerator, MOST_LAPS)
    return Fraction(int(elapsed), laps * unit)
