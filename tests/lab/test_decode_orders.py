"""Eviction by frequency of use, an order that only the laboratory has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.decode.orders import Frequency
from mirage.tiers.policies import LRU, EvictionPolicy

pytestmark = pytest.mark.lab

steps = st.lists(
    st.tuples(st.sampled_from(["want", "use", "evict", "drop"]), st.integers(0, 11)), max_size=80
)


def want(policy: EvictionPolicy, name: object, held: set[object], capacity: int) -> bool:
    """Access a block in a cache of fixed size that uses the policy; True for a hit."""
    if name in held:
        policy.use(name)
        return True
    if len(held) == capacity:
        victim = next(policy.victims())
        policy.evict(victim)
        held.remove(victim)
    policy.add(name)
    held.add(name)
    return False


@given(steps=steps)
def test_victims_are_all_that_is_held_each_once(steps: list[tuple[str, int]]) -> None:
    policy, held = Frequency(), set()
    for what, name in steps:
        if what == "want":
            want(policy, name, held, 6)
        else:
            getattr(policy, what)(name)
            held -= {name} if what != "use" else set()
        order = list(policy.victims())
        assert len(order) == len(policy) == len(held)
        assert set(order) == held


def test_a_scan_does_not_clear_what_was_seen_twice() -> None:
    asked = list(range(8)) * 6 + list(range(100, 116)) + list(range(8))
    found = []
    for policy in (LRU(), Frequency()):
        held: set[object] = set()
        found.append(sum(want(policy, name, held, 12) for name in asked))
    assert found == [40, 48]


def test_old_counts_age() -> None:
    policy, held = Frequency(), set()
    for _ in range(5):
        want(policy, 1, held, 2)
    for name in range(10, 30):
        want(policy, name, held, 2)
    assert 1 not in held
