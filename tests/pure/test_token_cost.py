"""Time per additional token, found from steps of different sizes with any fixed time besides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.control.compute_time import MOST_PENDING
from mirage.control.token_cost import TokenCost

pytestmark = pytest.mark.pure


def of(steps: list[tuple[int, float]]) -> TokenCost:
    cost = TokenCost()
    for tokens, seconds in steps:
        cost.begin(tokens)
        cost.end(seconds)
    return cost


@given(
    sizes=st.lists(st.integers(1, 4096), min_size=2, max_size=300),
    base=st.floats(0, 1),
    token=st.floats(1e-6, 1e-2),
)
def test_the_slope_is_found(sizes: list[int], base: float, token: float) -> None:
    cost = of([(size, base + token * size) for size in sizes]).token_s
    if len(set(sizes)) > 1 and max(sizes) > 2 * min(sizes):
        assert cost == pytest.approx(token, rel=0.01, abs=1e-6)
    else:
        assert cost >= 0


def test_steps_that_do_not_differ_say_nothing() -> None:
    assert TokenCost().token_s == 0.0
    assert of([(8, 0.1), (8, 0.2), (8, 0.1)]).token_s == 0.0


def test_more_tokens_never_save_time() -> None:
    assert of([(1, 0.5), (100, 0.1)]).token_s == 0.0


def test_times_belong_to_the_steps_that_began_first() -> None:
    late = TokenCost()
    for tokens in (1, 100, 50):
        late.begin(tokens)
    late.fail()
    late.end(0.1)
    late.end(1.09)
    late.end(5.0)  # of no step
    assert late.token_s == pytest.approx(0.01)


def test_steps_whose_time_is_never_told_are_forgotten() -> None:
    cost = TokenCost()
    for tokens in range(1, MOST_PENDING + 11):
        cost.begin(tokens)
    for tokens in range(11, MOST_PENDING + 11):
        cost.end(0.002 * tokens)
    assert cost.token_s == pytest.approx(0.002)


def test_old_steps_fade() -> None:
    before = [(10 + i % 90, 0.1 * (10 + i % 90)) for i in range(500)]
    after = [(10 + i % 90, 0.001 * (10 + i % 90)) for i in range(3000)]
    assert of(before + after).token_s == pytest.approx(0.001, rel=0.05)
