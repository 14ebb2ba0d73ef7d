"""The amount of memory whose lending pays in turns."""

from __future__ import annotations

from math import inf, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.control.lending import (
    CALLED_IN,
    LEAST_GAIN,
    LEAST_LOSS,
    MOST_PART,
    PARAMETERS_PART,
    RECOMPUTED_PART,
    WAY_BACK_PART,
    pays_after,
    rest_enough,
    worth_keeping,
    worth_lending,
    worth_sparing,
)

pytestmark = pytest.mark.pure

GIB = 1 << 30
pools = st.integers(1, 200 * GIB)
ratios = st.floats(0, 1e4)


def tokens(x: float, ratio: float, p: float = PARAMETERS_PART) -> float:
    """Tokens per second with `x` times the KV pool lent, over those with nothing lent. `ratio` is
    the bytes that the link loads in a turn over the pool; `p` is the part of a step that does not
    grow with the batch.
    """
    return (1 + x) / (p + (1 - p) * (1 + x)) * 2.718281828459045 ** (-x / ratio)


@given(st.integers(GIB, 200 * GIB), st.floats(8, 1e3))
def test_neither_more_nor_less_would_pay_better(pool: int, ratio: float) -> None:
    best = worth_lending(pool, ratio * pool) / pool
    for other in (best * 0.9, best * 1.1):
        assert tokens(other, ratio) <= tokens(best, ratio) * (1 + 1e-9)


@given(pools, st.floats(0, 4.9))
def test_nothing_pays_where_a_turn_loads_less_than_five_times_the_kv(pool: int, r: float) -> None:
    assert worth_lending(pool, r * pool) == 0


@given(st.integers(GIB, 200 * GIB), st.floats(0, 1e3))
def test_what_is_lent_brings_clearly_more_tokens(pool: int, ratio: float) -> None:
    lent = worth_lending(pool, ratio * pool) / pool
    assert lent == 0 or tokens(lent, ratio) > 1 + LEAST_GAIN


@given(pools, ratios, st.floats(0.01, 1), st.floats(0.01, 1))
def test_the_less_of_a_step_stays_the_less_is_lent(
    pool: int, ratio: float, one: float, other: float
) -> None:
    less, more = sorted((one, other))
    assert worth_lending(pool, ratio * pool, less) <= worth_lending(pool, ratio * pool, more)


@given(pools, ratios, st.floats(1, 10))
def test_a_faster_link_or_a_longer_turn_lends_no_less(pool: int, r: float, times: float) -> None:
    assert worth_lending(pool, r * pool) <= worth_lending(pool, times * r * pool)


@given(pools, ratios)
def test_the_way_back_never_takes_more_than_an_eighth_of_a_turn(pool: int, ratio: float) -> None:
    assert worth_lending(pool, ratio * pool) <= ratio * pool / 8


def test_no_memory_or_no_link_lends_nothing() -> None:
    assert worth_lending(0, 1e9) == worth_lending(-5, 1e9) == worth_lending(GIB, 0.0) == 0


def test_a_part_that_brings_too_little_is_not_lent_either() -> None:
    """The others can cover only a part of the best amount. That part brings less than the least
    gain that lending must bring, so nothing is lent.
    """
    whole = worth_lending(10 * GIB, 400 * GIB)
    assert worth_lending(10 * GIB, 400 * GIB, most=whole / 2) == whole // 2
    assert worth_lending(10 * GIB, 400 * GIB, most=whole / 50) == 0
    assert worth_lending(10 * GIB, 400 * GIB, most=whole / 20, least=0.05) == 0


def test_what_is_lent_is_not_called_back_for_a_small_change() -> None:
    pays = [r for r in range(30, 100) if worth_lending(GIB, r / 10 * GIB)]
    goes_on = [r for r in range(30, 100) if worth_lending(GIB, r / 10 * GIB, lending=True)]
    assert goes_on[0] < pays[0]
    assert set(pays) < set(goes_on)


KEPT = st.integers(GIB, 200 * GIB), st.floats(0.1, 1e3), st.floats(0.01, 1), st.floats(0, 5)


@given(*KEPT, st.floats(0, 5))
def test_what_stays_lent_costs_little_and_is_no_more_than_is_best_or_than_what_runs(
    pool: int, ratio: float, part: float, most: float, running: float
) -> None:
    best = worth_lending(pool, ratio * pool, 1, most=most * pool, lending=True)
    wants = int(running * pool)
    kept = worth_keeping(pool, ratio * pool, part, most=most * pool, running_bytes=wants)
    assert 0 <= kept <= min(most * pool, max(best, wants))
    cost = tokens(kept / pool, ratio, min(part, MOST_PART))
    assert cost >= (1 - LEAST_GAIN) * (1 - 1e-4)


@given(*KEPT)
def test_what_has_begun_to_pay_stays_lent(
    pool: int, ratio: float, part: float, most: float
) -> None:
    lent = worth_lending(pool, ratio * pool, part, most=most * pool)
    kept = worth_keeping(pool, ratio * pool, part, most=most * pool, running_bytes=0)
    assert kept >= lent * (1 - 1e-4)


def test_what_stays_lent_is_no_less_for_a_part_that_was_measured_too_high_at_first() -> None:
    """A later measurement of the fixed part of a step is lower, so nothing new would be lent. What
    is lent already stays, as long as it costs little.
    """
    pool, turn = GIB, 4.0 * GIB
    early, late = worth_lending(pool, turn, 0.5), worth_lending(pool, turn, 0.38)
    assert (early > 0, late) == (True, 0)
    assert worth_keeping(pool, turn, 0.38, most=2.0 * pool, running_bytes=0) > 0.9 * early
    assert worth_keeping(pool, turn, 0.1, most=2.0 * pool, running_bytes=2 * pool) < early / 4
    assert worth_keeping(0, turn, 0.5, most=GIB, running_bytes=GIB) == 0


@given(*KEPT, st.floats(0, 2), st.floats(0, 2), st.floats(0.1, 1))
def test_to_spare_preemptions_a_part_of_their_time_is_given_beyond_what_pays_best(
    pool: int, ratio: float, part: float, most: float, one: float, other: float, gaining: float
) -> None:
    """`one` and `other` are parts of the time in which tokens are computed again."""
    less, more = sorted((one, other))
    p = min(part, MOST_PART)

    def lent(recomputed: float) -> int:
        times = {"recomputed_part": recomputed, "gaining": gaining}
        return worth_sparing(pool, ratio * pool, part, most=most * pool, **times)

    def gain(x: float) -> float:
        return gaining * log((1 + x) / (p + (1 - p) * (1 + x))) - x / ratio if x else 0.0

    assert 0 <= lent(less) <= lent(more) <= most * pool
    best = worth_lending(pool, ratio * pool, part, least=0, gaining=gaining) / pool
    loss = min(LEAST_GAIN, RECOMPUTED_PART * more)
    if loss < LEAST_LOSS:
        assert lent(more) == 0
    else:
        assert gain(lent(more) / pool) >= min(gain(best), gain(most)) - loss - 1e-4
        assert lent(more) >= min(best, most) * pool * (1 - 1e-4) - 1


def test_no_more_is_lent_to_spare_few_preemptions() -> None:
    """Lending that does not pay by larger batches begins once enough of the time goes into tokens
    that are computed again, and ends when half of that does.
    """
    pool, turn = GIB, 2.0 * GIB
    assert worth_lending(pool, turn, 0.5) == 0

    def lends(part: float, lending: bool) -> bool:
        found = worth_sparing(pool, turn, 0.5, most=inf, recomputed_part=part, lending=lending)
        return found > 0

    begins = LEAST_LOSS / RECOMPUTED_PART
    assert [lends(begins * x, False) for x in (0, 0.99, 1.01)] == [False, False, True]
    assert [lends(begins * x, True) for x in (0, 0.49, 0.51)] == [False, False, True]
    assert worth_sparing(0, turn, 0.5, most=GIB, recomputed_part=0.1) == 0
    assert worth_sparing(pool, 0.0, 0.5, most=GIB, recomputed_part=0.1) == 0


@given(st.floats(0, 100), st.floats(0, 1e3), st.floats(0, 1e3))
def test_a_rest_is_long_beside_its_way_back_and_beside_all_pauses_or_the_longest(
    way_back: float, pause: float, most: float
) -> None:
    rest = rest_enough(way_back, pause, most)
    assert rest <= most
    if way_back and rest < most:
        assert way_back <= WAY_BACK_PART * rest * (1 + 1e-9)
        assert rest >= 2 * pause
    assert rest_enough(0.0, pause, most) == rest_enough(0.0, pause, most, pays_after_s=1.0) == most


@given(st.floats(0.01, 100), st.floats(0, 1e3), st.floats(0, 1e3), st.floats(1, 1e3))
def test_while_others_wait_it_rests_for_its_way_back_its_pauses_or_until_lending_pays(
    way_back: float, pause: float, most: float, times: float
) -> None:
    rest = rest_enough(way_back, pause, most, pays_after_s=times * way_back)
    assert min(most, way_back) <= rest <= min(most, times * way_back)
    if rest < min(most, times * way_back):
        assert rest == max(way_back, 2 * pause)


@given(st.floats(1e-3, 10), st.floats(0.01, 1), st.floats(0, 100), st.floats(0, 100))
def test_lending_has_paid_when_larger_batches_have_brought_what_is_computed_anew(
    lent: float, part: float, way_back: float, anew: float
) -> None:
    pays = pays_after(lent, part, way_back, anew)
    brought = log(tokens(lent, inf, min(part, MOST_PART))) * (pays - way_back)
    assert brought == pytest.approx(CALLED_IN * anew, abs=1e-6)
    assert pays_after(0.0, part, way_back, anew) == inf
