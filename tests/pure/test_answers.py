"""Length of answers, and the growth that is to be expected of the running ones."""

from __future__ import annotations

import random
from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.control.answers import LATELY, Answered, AnswerLengths, growth_to_come

pytestmark = pytest.mark.pure


def test_answers_under_way_count_before_any_has_ended() -> None:
    lengths = AnswerLengths()
    assert lengths.mean(Answered()) == 0
    assert lengths.mean(Answered(300, 0)) == 300
    assert lengths.mean(Answered(900, 2)) == 300


@pytest.mark.parametrize(("before", "after"), [(50, 1000), (1000, 50)])
def test_answers_of_another_length_are_learnt(before: int, after: int) -> None:
    lengths, tokens = AnswerLengths(), 0
    for ended in range(5 * LATELY):
        tokens += before
        assert lengths.mean(Answered(tokens, ended)) <= before
    for ended in range(5 * LATELY, 15 * LATELY):
        tokens += after
        mean = lengths.mean(Answered(tokens, ended))
    assert mean == pytest.approx(after, rel=0.1)


def test_requests_that_began_together_grow_and_those_of_mean_length_do_not() -> None:
    assert growth_to_come(0, 1000) == int(1000 * exp(-1))
    assert growth_to_come(500, 1000) == int(1000 * exp(-0.5)) - 500
    assert growth_to_come(1000, 1000) == growth_to_come(2000, 1000) == 0
    assert growth_to_come(0, 0) == 0


@given(st.integers(0, 3000), st.integers(0, 3000))
def test_as_memory_fills_no_more_is_open_to_newcomers(used: int, answers: int) -> None:
    """One block more in use never leaves more room for new requests, so a request cannot begin
    within the steps that the simulator skips.
    """
    growth = growth_to_come(used, answers)
    assert 0 <= growth <= max(0, answers - used)
    assert used + 1 + growth_to_come(used + 1, answers) >= used + growth
    assert growth_to_come(used, answers + 1) >= growth


def test_requests_that_end_at_random_use_as_much_as_is_expected_at_most() -> None:
    rng, requests, mean, prompt = random.Random(0), 4000, 300, 100
    lengths = [round(rng.expovariate(1 / mean)) for _ in range(requests)]
    used = [sum(prompt + step for length in lengths if length > step) for step in range(0, 600, 20)]
    expected = requests * prompt + growth_to_come(requests * prompt, requests * mean)
    assert max(used) == pytest.approx(expected, rel=0.03)
