"""The order in which tenants give layers."""

from __future__ import annotations

from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.victims import Candidate, order

pytestmark = pytest.mark.pure

ROUND = [
    Candidate("ran-long-ago", active=False, priority=0, last_busy=1.0),
    Candidate("ran-just-now", active=False, priority=0, last_busy=9.0),
    Candidate("runs", active=True, priority=0, last_busy=9.5),
    Candidate("never-ran", active=False, priority=0, last_busy=-inf),
]

candidates = st.lists(
    st.builds(
        Candidate,
        name=st.text("abcdefgh", min_size=1, max_size=4),
        active=st.booleans(),
        priority=st.integers(-2, 2),
        last_busy=st.sampled_from([-inf, 0.0, 1.0, 2.0]),
    ),
    unique_by=lambda c: c.name,
)
rules = st.sampled_from(["mru", "lru"])


def test_most_recently_used_gives_first() -> None:
    assert order(ROUND, "mru") == ["ran-just-now", "ran-long-ago", "never-ran", "runs"]


def test_least_recently_used_gives_first() -> None:
    assert order(ROUND, "lru") == ["never-ran", "ran-long-ago", "ran-just-now", "runs"]


def test_a_low_priority_gives_before_a_recently_used_one() -> None:
    low = Candidate("low", active=False, priority=-1, last_busy=0.0)
    assert order([*ROUND, low], "mru")[0] == "low"


@given(candidates, rules)
def test_active_after_idle_then_priority_then_the_rule(several, rule) -> None:
    by_name = {c.name: c for c in several}
    ordered = [by_name[name] for name in order(several, rule)]
    assert sorted(by_name) == sorted(c.name for c in ordered)
    for first, then in pairwise(ordered):
        assert (first.active, first.priority) <= (then.active, then.priority)
        if (first.active, first.priority) == (then.active, then.priority):
            later, earlier = (first, then) if rule == "mru" else (then, first)
            assert later.last_busy >= earlier.last_busy


@given(candidates, rules, st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter(several, rule, random) -> None:
    shuffled = random.sample(several, len(several))
    assert order(shuffled, rule) == order(several, rule)
