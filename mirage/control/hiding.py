"""Number of layers whose loads hide behind compute while they are streamed.

Of n layers m = `layers_remapped` + `stream_slots` are streamed. They share the slots, so the memory
of `layers_remapped` layers is free for other use. T_T is the time to load one layer from host
memory, T_c the compute time of one layer.
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
"""Largest ratio of a step with streamed layers to one without at which the loads count as
hidden."""
AS_GOOD = 1.01
"""Ratio up to which two step times count as equal."""


def hides(remapped: int, slots: int, n: int, t_load: float, t_compute: float) -> bool:
    """True if streaming hides behind compute (MIRAGE, arXiv 2507.11507, section 5).

    In the paper's letters alpha is `remapped` and beta is `slots`:

        beta = 1:  T_T * (alpha + 1) <= T_c * (n - alpha - 1)
        beta = 2:  T_T * (alpha + 2) <= T_c * n

    For the pipeline of `step_time` the condition is always necessary, whatever the set. It is exact
    for evenly spaced sets where m divides n, with two slots also where n >= 2m. Elsewhere gaps
    differ by one layer, and a step may wait less than T_c for each streamed layer.
    """
    if remapped == 0:
        return True
    loads, layers = _condition(remapped, slots, n)
    return t_load * loads <= t_compute * layers


def _condition(remapped: int, slots: int, n: int) -> tuple[int, int]:
    """Return the number of loads in a step, and of layers whose compute can hide them."""
    m = remapped + slots
    return (m, n - m) if slots == 1 else (m, n)


def best_slots(
    remapped: int, n: int, t_load: float, t_compute: float, slot_counts: Sequence[int] = (1, 2)
) -> int:
    """Return the fewest of `slot_counts` slots whose step is as good as the shortest one, because
    fewer slots stream fewer layers.

    That is 1 if one slot hides the loads, else 2 if two do. If neither does, transfers bound the
    step, and one slot can be better because it streams one layer less.
    """
    steps = {slots: nested_step(remapped, slots, n, t_load, t_compute) for slots in slot_counts}
    shortest = min(steps.values())
    return min(slots for slots, step in steps.items() if step <= AS_GOOD * shortest)


def largest_hidden(
    n: int,
    t_load: float,
    t_compute: float,
    slot_counts: Sequence[int] = (1, 2),
    most_streamed: int | None = None,
) -> tuple[int, int]:
    """Return the most layers that can be given away with their loads hidden, and the number of
    slots, one of `slot_counts`, that they then stream through.

    Loads are hidden if `hides` is true and a step in which the first layers of the order
    `layer_sets.nested` stream takes at most `HIDDEN` times its compute. At most `most_streamed`
    layers stream (None: n). Returns 0 layers and the fewest slots if nothing hides.
    """
    limit = n if most_streamed is None else most_streamed
    most = {slots: most_hidden(slots, n, t_load, t_compute, limit) for slots in slot_counts}
    remapped = max(most.values())
    if remapped <= 0:
        return 0, min(slot_counts)
    unfelt = [slots for slots in slot_counts if most[slots] == remapped]
    return remapped, best_slots(remapped, n, t_load, t_compute, unfelt)


def most_hidden(slots: int, n: int, t_load: float, t_compute: float, most_streamed: int) -> int:
    """Return the most layers that can be given away with `slots` slots; 0 or less if none hides."""
    ratio = -t_load / t_compute if t_compute else -inf
    return min(bisect_right(_bearable(n, slots), ratio), most_streamed - slots)


def most_hidden_at_best(n: int, t_load: float, t_compute: float, most_streamed: int) -> int:
    """Return the larger result of `most_hidden` with one slot and with two; 0 if nothing hides."""
    return bisect_right(_bearable_at_best(n, most_streamed), -t_load / t_compute)


def break_even(
    remapped: int, n: int, slot_counts: Sequence[int] = (1, 2), most_streamed: int | None = None
) -> float:
    """Return the largest T_T / T_c at which `largest_hidden` gives `remapped` layers (at least 1),
    with the same limits `slot_counts` and `most_streamed`.

    0 if so many layers cannot be streamed, or hide only if loading takes no time.
    """
    limit = n if most_streamed is None else most_streamed
    fitting = (slots for slots in slot_counts if remapped + slots <= limit)
    return max((-_bearable(n, slots)[remapped - 1] for slots in fitting), default=0.0)


@cache
def _bearable(n: int, slots: int) -> tuple[float, ...]:
    """Return, for 1, 2, ... remapped layers, the largest T_T / T_c at which they hide, negated so
    that the tuple ascends."""
    bears = []
    for remapped in range(1, n - slots + 1):
        loads, layers = _condition(remapped, slots, n)
        bounds = step_cost_bounds(nested(n)[: remapped + slots], n, slots)
        own = [(HIDDEN * n - b) / a for a, b in bounds if a]
        bears.append(min(Fraction(layers, loads), *own))
    return tuple(-float(most) for most in bears)


@cache
def _bearable_at_best(n: int, most_streamed: int) -> tuple[float, ...]:
    """Return `_bearable` with the better number of slots for each count, where at most
    `most_streamed` layers are streamed."""
    bears = [
        _bearable(n, slots)[: most_streamed - slots] for slots in (1, 2) if slots < most_streamed
    ]
    return tuple(min(each) for each in zip_longest(*bears, fillvalue=inf))
