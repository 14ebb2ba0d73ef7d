"""Number of layers whose loads hide behind compute while they are streamed.

m = alpha + beta of n layers are streamed: they share beta slots, so the memory of alpha layers is
free for other use. T_T is the time to load one layer from host memory, T_c the compute time of one
layer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from itertools import zip_longest
from math import inf

from mirage.control.step_times import nested_step, step_cost_bounds
from mirage.streaming.layer_sets import nested

HIDDEN = Fraction(103, 100)
"""A step with streamed layers is this much longer than one without, at most, if they hide."""
AS_GOOD = 1.01
"""Steps that differ by less are alike."""


def hides(alpha: int, beta: int, n: int, t_load: float, t_compute: float) -> bool:
    """True if streaming alpha + beta layers hides behind compute (MIRAGE, arXiv 2507.11507).

        beta = 1:  T_T * (alpha + 1) <= T_c * (n - alpha - 1)
        beta = 2:  T_T * (alpha + 2) <= T_c * n

    Against the pipeline of `step_time`: always necessary, whatever the set. Exact for evenly spaced
    sets where m divides n, and for beta = 2 also where n >= 2m. Elsewhere gaps differ by one, and a
    step may wait less than T_c for each streamed layer.
    """
    if alpha == 0:
        return True
    loads, layers = _condition(alpha, beta, n)
    return t_load * loads <= t_compute * layers


def _condition(alpha: int, beta: int, n: int) -> tuple[int, int]:
    """The loads of a step, and the layers whose compute they can hide behind."""
    m = alpha + beta
    return (m, n - m) if beta == 1 else (m, n)


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
    most = {beta: most_hidden(beta, n, t_load, t_compute, limit) for beta in betas}
    alpha = max(most.values())
    if alpha <= 0:
        return 0, min(betas)
    unfelt = [beta for beta in betas if most[beta] == alpha]
    return alpha, best_beta(alpha, n, t_load, t_compute, unfelt)


def most_hidden(beta: int, n: int, t_load: float, t_compute: float, most_streamed: int) -> int:
    """The most layers that can be given away with `beta` slots; 0 or less if nothing hides."""
    ratio = -t_load / t_compute if t_compute else -inf
    return min(bisect_right(_bearable(n, beta), ratio), most_streamed - beta)


def most_hidden_at_best(n: int, t_load: float, t_compute: float, most_streamed: int) -> int:
    """The most of `most_hidden` with one slot or two; 0 if nothing hides."""
    return bisect_right(_bearable_at_best(n, most_streamed), -t_load / t_compute)


def break_even(
    alpha: int, n: int, betas: Sequence[int] = (1, 2), most_streamed: int | None = None
) -> float:
    """The largest T_T / T_c at which `largest_alpha` gives `alpha` (at least 1) layers.

    0 if so many cannot be streamed, or hide only if loading takes no time.
    """
    limit = n if most_streamed is None else most_streamed
    fitting = (beta for beta in betas if alpha + beta <= limit)
    return max((-_bearable(n, beta)[alpha - 1] for beta in fitting), default=0.0)


@cache
def _bearable(n: int, beta: int) -> tuple[float, ...]:
    """For alpha = 1 and more: the largest T_T / T_c at which it is hidden, negative to ascend."""
    bears = []
    for alpha in range(1, n - beta + 1):
        loads, layers = _condition(alpha, beta, n)
        bounds = step_cost_bounds(nested(n)[: alpha + beta], n, beta)
        own = [(HIDDEN * n - b) / a for a, b in bounds if a]
        bears.append(min(Fraction(layers, loads), *own))
    return tuple(-float(most) for most in bears)


@cache
def _bearable_at_best(n: int, most_streamed: int) -> tuple[float, ...]:
    """`_bearable` with the slots that bear more, where at most so many layers are streamed."""
    bears = [_bearable(n, beta)[: most_streamed - beta] for beta in (1, 2) if beta < most_streamed]
    return tuple(min(each) for each in zip_longest(*bears, fillvalue=inf))
