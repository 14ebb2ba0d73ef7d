"""The order in which policies evict blocks."""

from __future__ import annotations

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.tiers.policies import ARC, LRU, POLICIES

pytestmark = pytest.mark.pure

CAPACITY = 6
names = st.integers(0, 11)
steps = st.lists(st.tuples(st.sampled_from(["want", "use", "evict", "drop"]), names), max_size=80)


def want(policy, name, held: set, capacity: int) -> bool:
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


@pytest.mark.parametrize("kind", POLICIES)
@given(steps=steps)
def test_victims_are_all_that_is_held_each_once(kind: str, steps: list[tuple[str, int]]) -> None:
    policy, held = POLICIES[kind](), set()
    for what, name in steps:
        if what == "want":
            want(policy, name, held, CAPACITY)
        else:
            getattr(policy, what)(name)
            held -= {name} if what != "use" else set()
        order = list(policy.victims())
        assert len(order) == len(policy) == len(held)
        assert set(order) == held


@given(steps=steps)
def test_lru_goes_by_the_last_use(steps: list[tuple[str, int]]) -> None:
    policy, held, model = LRU(), set(), OrderedDict()
    for what, name in steps:
        if what == "want":
            want(policy, name, held, CAPACITY)
            model[name] = None
            model.move_to_end(name)
        elif what == "use":
            policy.use(name)
            if name in held:
                model.move_to_end(name)
        else:
            getattr(policy, what)(name)
            held.discard(name)
        for gone in [n for n in model if n not in held]:
            del model[gone]
        assert list(policy.victims()) == list(model)


@given(steps=steps)
def test_arc_keeps_its_invariants(steps: list[tuple[str, int]]) -> None:
    policy, held = ARC(), set()
    for what, name in steps:
        if what == "want":
            want(policy, name, held, CAPACITY)
        else:
            getattr(policy, what)(name)
            held -= {name} if what != "use" else set()
        t1, t2 = policy.once, policy.again
        b1, b2 = policy.once_ghosts, policy.again_ghosts
        size = len(t1) + len(t2)
        assert len({*t1, *t2, *b1, *b2}) == size + len(b1) + len(b2)
        assert len(t1) + len(b1) <= size
        assert size + len(b1) + len(b2) <= 2 * size
        assert 0 <= policy.target <= size


def hits(policy, asked: list[int], capacity: int) -> int:
    held: set[int] = set()
    return sum(want(policy, name, held, capacity) for name in asked)


def test_a_scan_does_not_clear_what_arc_saw_twice() -> None:
    hot, scan = list(range(8)) * 6, list(range(100, 116))
    asked = hot + scan + list(range(8))
    assert (hits(LRU(), asked, 12), hits(ARC(), asked, 12)) == (40, 48)


def test_arc_learns_from_ghosts() -> None:
    policy, held = ARC(), set()
    for name in (1, 2, 1, 2, 3, 4):
        want(policy, name, held, 4)
    want(policy, 5, held, 4)
    assert 3 in policy.once_ghosts
    before = policy.target
    want(policy, 3, held, 4)
    assert policy.target > before
    assert 3 in policy.again
