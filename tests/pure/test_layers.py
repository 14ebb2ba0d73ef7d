"""Layer sets and timing conditions, against a pipeline walked layer by layer."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations, pairwise
from math import floor, log2

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from benchmarks.bounds import smallest_gap, step_bound
from mirage.control.hiding import (
    AS_GOOD,
    HIDDEN,
    best_slots,
    break_even,
    hides,
    largest_hidden,
    most_hidden,
    most_hidden_at_best,
)
from mirage.control.step_times import nested_step, step_cost_bounds, step_time
from mirage.streaming.layer_sets import even, gaps, nested

pytestmark = pytest.mark.pure

depths = st.integers(1, 160)
times = st.integers(1, 24)
slot_counts = st.sampled_from([1, 2])
EXACT = 1e-12
"""Relative tolerance for rounding errors in step times."""


@st.composite
def streamed(draw: st.DrawFn, most: int = 24) -> tuple[int, int]:
    """Drawn pair (n, m): n layers in all, of which 1 <= m <= n are streamed."""
    n = draw(st.integers(1, most))
    return n, draw(st.integers(1, n))


@st.composite
def exact(draw: st.DrawFn, most: int = 24) -> tuple[int, int, int]:
    """Drawn (n, m, slots) for which `hides` is exact by construction: n is a multiple of m, or with
    two slots at least 2 m.
    """
    slots = draw(slot_counts)
    m = draw(st.integers(slots + 1, most))
    wide = range(2 * m, most + 1) if slots == 2 else ()
    return draw(st.sampled_from(sorted({*range(m, most + 1, m), *wide}))), m, slots


@st.composite
def hidden_by_one(draw: st.DrawFn, most: int = 24) -> tuple[int, int, int, int]:
    """Drawn (n, m, T_T, T_c) for which loads of m > 1 streamed layers of n hide with one slot."""
    n = draw(st.integers(3, most))
    m = draw(st.integers(2, n - 1))
    t_compute = draw(st.integers(-(-m // (n - m)), 24))
    return n, m, draw(st.integers(1, min(24, t_compute * (n - m) // m))), t_compute


# -- which layers -----------------------------------------------------------------------


@given(depths)
def test_nested_holds_every_layer_once(n: int) -> None:
    assert sorted(nested(n)) == list(range(n))


@pytest.mark.parametrize("n", [1, 2, 3, 12, 24, 32, 40, 48, 80, 126, 160])
def test_nested_stays_near_even_at_every_size(n: int) -> None:
    for m in range(1, n + 1):
        gap = smallest_gap(nested(n)[:m], n)
        assert gap >= max(1, floor(n * log2(2 * m / (2 * m - 1))))
        assert gap >= max(1, floor(0.72 * n / m))
        assert n // m - gap < 0.28 * n / m + 1


@given(streamed(160))
def test_even_sets_have_gaps_that_differ_by_one(size: tuple[int, int]) -> None:
    n, m = size
    assert len(set(even(n, m))) == m
    assert set(gaps(even(n, m), n)) <= {n // m, n // m + 1}


@pytest.mark.parametrize("n", range(1, 13))
def test_no_set_beats_even_spacing(n: int) -> None:
    """Evenly spaced set of m streamed layers of n: its smallest gap is the largest of all such
    sets, and for m = 2 and 3 its step with one slot is the shortest. All sets are tried.
    """
    for m in range(1, n + 1):
        sets = list(combinations(range(n), m))
        assert smallest_gap(even(n, m), n) == max(smallest_gap(s, n) for s in sets)
    for m in {2, 3} & set(range(n)):
        for t_load in (3, 10, 40):
            best = min(step_time(s, n, 1, t_load, 4) for s in combinations(range(n), m))
            assert step_time(even(n, m), n, 1, t_load, 4) == best


def test_gaps_go_around_the_circle() -> None:
    assert gaps([1, 3, 8], 12) == [2, 5, 5]
    assert gaps([5], 12) == [12]
    assert smallest_gap([], 12) == 12


# -- how many ---------------------------------------------------------------------------


@given(streamed(), slot_counts, times, times, st.randoms(use_true_random=False))
def test_without_the_condition_any_set_stalls(size, slots, t_load, t_compute, random) -> None:
    n, m = size
    assume(m > slots)
    layers = random.sample(range(n), m)
    step = step_time(layers, n, slots, t_load, t_compute)
    assert step >= step_bound(m - slots, slots, n, t_load, t_compute)
    if not hides(m - slots, slots, n, t_load, t_compute):
        assert step > n * t_compute


@given(exact(), times, times)
def test_with_the_condition_an_even_set_does_not_stall(case, t_load, t_compute) -> None:
    n, m, slots = case
    assert n % m == 0 or (slots == 2 and n >= 2 * m)
    stalls = step_time(even(n, m), n, slots, t_load, t_compute) > n * t_compute
    assert stalls != hides(m - slots, slots, n, t_load, t_compute)


@given(hidden_by_one())
def test_one_slot_waits_less_than_a_layer_for_each_where_gaps_differ(case) -> None:
    n, m, t_load, t_compute = case
    assert hides(m - 1, 1, n, t_load, t_compute)
    assert step_time(even(n, m), n, 1, t_load, t_compute) < (n + m) * t_compute


@given(streamed(), times, times, st.randoms(use_true_random=False))
def test_one_slot_is_decided_by_the_smallest_gap(size, t_load, t_compute, random) -> None:
    n, m = size
    assume(m > 1)
    layers = random.sample(range(n), m)
    stalls = step_time(layers, n, 1, t_load, t_compute) > n * t_compute
    assert stalls == (t_load > t_compute * (smallest_gap(layers, n) - 1))


def test_conditions_are_not_exact_where_gaps_are_uneven() -> None:
    """Two examples in which `hides` holds and the step is longer all the same: 5 layers of 12
    streamed with one slot, and 4 of 5 with two. They are those of its docstring.
    """
    assert hides(4, 1, 12, 1.4, 1)
    assert step_time(even(12, 5), 12, 1, 1.4, 1) > 12
    assert hides(2, 2, 5, 5, 4)
    assert step_time(even(5, 4), 5, 2, 5, 4) > 5 * 4


def test_conditions_cross_at_five_of_forty() -> None:
    """Largest T_T / T_c at which loads are hidden, for 40 layers: larger with one slot than with
    two while at most 4 layers are remapped, and smaller from 5 on.
    """
    for remapped in range(1, 39):
        one, two = (40 - remapped - 1) / (remapped + 1), 40 / (remapped + 2)
        assert (one < two) == (remapped >= 5)
        by_slots = [step_bound(remapped, slots, 40, (one + two) / 2, 1.0) for slots in (1, 2)]
        assert (by_slots[0] > 40) == (remapped >= 5) and (by_slots[1] > 40) == (remapped < 5)


def test_thirty_per_cent_of_opt_13b_hide_from_the_load_time_on() -> None:
    """30 % of 40 layers with two slots means 14 streamed layers, which take 17.7 ms to load in all.
    They hide behind steps of more than 17.7 ms, and not behind steps of 17.6 ms.
    """
    t_load = 17.7e-3 / 14
    assert not hides(12, 2, 40, t_load, 17.6e-3 / 40)
    assert hides(12, 2, 40, t_load, 17.71e-3 / 40)


@given(st.integers(1, 99), st.floats(1e-3, 9), st.floats(1e-3, 9), st.integers(-1, 99))
def test_one_look_finds_what_hides_with_either_number_of_slots(n, load, compute, most) -> None:
    most = min(most, n)
    either = max(most_hidden(slots, n, load, compute, most) for slots in (1, 2))
    assert most_hidden_at_best(n, load, compute, most) == max(0, either)


@given(st.integers(2, 60), times, times, st.sampled_from([(1,), (1, 2)]), st.integers(0, 60))
def test_largest_hidden_is_the_largest(n, t_load, t_compute, choice, limit) -> None:
    limit = min(limit, n)
    remapped, slots = largest_hidden(n, t_load, t_compute, choice, limit)
    assert remapped == 0 or remapped + slots <= limit

    def unfelt(a: int, b: int) -> bool:
        step = step_time(nested(n)[: a + b], n, b, t_load, t_compute)
        return hides(a, b, n, t_load, t_compute) and step <= HIDDEN * n * t_compute

    assert remapped == 0 or unfelt(remapped, slots)
    more = [(a, b) for a in range(remapped + 1, remapped + 3) for b in choice if a + b <= limit]
    assert not any(unfelt(a, b) for a, b in more)


@given(st.integers(2, 60), st.integers(1, 60), st.integers(0, 60))
def test_the_break_even_is_where_largest_hidden_changes(n, remapped, limit) -> None:
    limit = min(limit, n)
    ratio = break_even(remapped, n, most_streamed=limit)
    assert largest_hidden(n, ratio * (1 + 1e-9) + 1e-9, 1.0, most_streamed=limit)[0] < remapped
    if ratio:
        assert largest_hidden(n, ratio * (1 - 1e-9), 1.0, most_streamed=limit)[0] >= remapped


@given(st.integers(2, 60), times, times)
def test_best_slots_streams_least_of_the_shortest_steps(n, t_load, t_compute) -> None:
    for remapped in range(1, n - 1):
        slots = best_slots(remapped, n, t_load, t_compute)
        steps = {b: nested_step(remapped, b, n, t_load, t_compute) for b in (1, 2)}
        as_good = [b for b in (1, 2) if steps[b] <= AS_GOOD * min(steps.values())]
        assert slots == min(as_good)


@given(streamed(), slot_counts, times, times)
def test_a_nested_step_is_what_the_pipeline_takes(size, slots, t_load, t_compute) -> None:
    n, m = size
    assume(m > slots)
    walked = step_time(nested(n)[:m], n, slots, t_load, t_compute)
    assert nested_step(m - slots, slots, n, t_load, t_compute) == pytest.approx(float(walked))


@given(st.integers(3, 40), slot_counts, times, times)
def test_a_layer_more_in_a_nested_set_never_makes_a_step_shorter(
    n, slots, t_load, t_compute
) -> None:
    steps = [
        nested_step(remapped, slots, n, t_load, t_compute) for remapped in range(n - slots + 1)
    ]
    assert all(step <= after * (1 + EXACT) for step, after in pairwise(steps))


def test_where_nothing_hides_one_slot_can_be_the_faster() -> None:
    """A load takes 100 times as long as a layer's compute. With two slots four layers are streamed
    in each step, with one slot only three, so one slot gives the shorter step.
    """
    assert best_slots(2, 12, 100, 1) == 1
    assert step_time(even(12, 3), 12, 1, 100, 1) < step_time(even(12, 4), 12, 2, 100, 1)


def test_nothing_streamed_costs_nothing() -> None:
    assert step_time([], 12, 2, 5, 3) == step_time([4], 12, 1, 99, 3) == 12 * 3
    assert hides(0, 1, 12, 99, 1)


def test_inexact_times_settle_too() -> None:
    assert step_time(even(40, 10), 40, 2, 0.1, 0.03) == pytest.approx(40 * 0.03)
    assert step_time(even(40, 10), 40, 2, 0.3, 0.03) == pytest.approx(10 * 0.3)


@given(
    n=st.integers(1, 48),
    part=st.floats(0, 1),
    slots=st.sampled_from([1, 2]),
    t_load=st.fractions(Fraction(1, 50), 50, max_denominator=100),
    even_set=st.booleans(),
)
def test_a_step_is_the_longest_of_its_bounds(n, part, slots, t_load, even_set) -> None:
    """The time of a step, walked layer by layer, equals the largest of the bounds of
    `step_cost_bounds`, for any T_T and T_c and for evenly spaced and nested sets.
    """
    m = max(1, round(part * n))
    layers = even(n, m) if even_set else nested(n)[:m]
    walked = step_time(layers, n, slots, t_load, Fraction(1))
    assert walked == max(a * t_load + b for a, b in step_cost_bounds(layers, n, slots))


@given(st.sets(st.integers(0, 19), min_size=1), st.sampled_from([1, 2]), st.integers(1, 99))
def test_cost_bounds_hold_for_any_set(layers, slots, t_load) -> None:
    load = Fraction(t_load, 10)
    walked = step_time(layers, 20, slots, load, Fraction(1))
    assert walked == max(a * load + b for a, b in step_cost_bounds(layers, 20, slots))
