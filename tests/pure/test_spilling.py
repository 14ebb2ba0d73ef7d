"""In turns, KV of suspended requests goes below the device where streaming would cost more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from test_planner import REMAP, SHAPE, SHARE, tenant

from mirage.config import Config, Policy
from mirage.control.controller import Controller
from mirage.control.planner import covers, plan
from mirage.control.spilling import Turns, spillable
from mirage.control.targets import Target

pytestmark = pytest.mark.pure

MUCH = 1 << 30
SLOW = (9.0, 1.0)
"""T_T and T_c: the link carries 11 bytes a second, so 700 bytes down and up take 126 s."""


def targets(
    turns: Turns, *, used: int = 30, policy: Policy = Policy.MIRAGE, token_s: float = 0.0
) -> dict[str, Target]:
    """`a` has lost its turn with `used` extents, 10 of them its share; it is `b`'s now.

    Of the six layers that the others pay for, `a` can give two itself.
    """
    suspended = tenant("a", used, active=False, kv=used, percent=20, times=SLOW)
    awake = tenant("b", 1, alpha=9, kv=2, times=SLOW)
    awake = replace(awake, report=structs.replace(awake.report, token_s=token_s))
    return plan([suspended, awake], 2 * SHARE, 0, policy, REMAP, turns=turns)


def test_in_a_long_turn_the_layers_of_its_holder_come_back() -> None:
    found = targets(Turns(1e4, below_bytes=MUCH))
    assert found["a"].recall and found["a"].kv_extents >= 10
    assert found["b"].alpha < targets(Turns(1e4))["b"].alpha
    assert not found["b"].recall


def test_in_a_short_turn_they_are_streamed() -> None:
    assert targets(Turns(1.0, below_bytes=MUCH)) == targets(Turns(1.0))


def test_where_computing_takes_less_than_the_link_they_come_back_sooner() -> None:
    """An extent of 16 tokens crosses the link twice in 9 s."""
    turns = Turns(20.0, below_bytes=MUCH)
    assert not targets(turns)["a"].recall
    assert not targets(turns, token_s=1.0)["a"].recall
    assert targets(turns, token_s=1e-3)["a"].recall


def test_nobody_loses_more_than_what_is_beyond_its_share() -> None:
    for used in range(2, 35):
        found = targets(Turns(1e9, below_bytes=MUCH), used=used)["a"]
        assert found.kv_extents >= min(used, 10)
        assert found.recall == (found.kv_extents < used)


def test_no_more_goes_down_than_there_is_room_for() -> None:
    for room in (100, 250, 300):
        found = targets(Turns(1e9, below_bytes=room))["a"]
        assert found.recall and (30 - found.kv_extents) * SHAPE.extent_bytes <= room
    assert not targets(Turns(1e9, below_bytes=49))["a"].recall


@given(st.floats(1e-3, 1e9), st.integers(2, 34), st.sampled_from([Policy.POOLED, Policy.MIRAGE]))
def test_with_nothing_below_nobody_is_called_back_in_turns(
    turn_s: float, used: int, policy: Policy
) -> None:
    if policy is Policy.POOLED:
        used = min(used, 18)
    found = targets(Turns(turn_s), used=used, policy=policy)
    assert not any(target.recall for target in found.values())
    assert found["a"].kv_extents >= used


def test_a_turn_that_can_be_spilled_is_covered() -> None:
    suspended = tenant("a", 25, percent=20, active=False, times=(4.0, 1.0))
    upcoming = tenant("b", active=False, kv=2, times=(4.0, 0.4))
    both, device = [suspended, upcoming], 2 * SHARE
    assert not covers(both, "b", device, Policy.MIRAGE, REMAP)
    # 15 extents beyond the share are 750 bytes: 60 s with 25 bytes a second, down and up.
    assert spillable(both, "b", device, Turns(61.0, below_bytes=MUCH)) == 750
    assert spillable(both, "b", device, Turns(59.0, below_bytes=MUCH)) == 0
    assert spillable(both, "b", device, Turns(61.0)) == 0
    assert covers(both, "b", device + 750, Policy.MIRAGE, REMAP)


@pytest.mark.parametrize(
    ("extra", "below"),
    [
        ({}, 0),
        ({"tiers": {"host": {"bytes": "1GiB"}}}, 1 << 30),
        ({"tiers": {"host": {"bytes": "1GiB"}}, "policy": "static"}, 0),
    ],
)
def test_tiers_of_a_configuration_are_what_is_below(extra: dict[str, object], below: int) -> None:
    tenants = [{"name": n, "model": str(Path("/m")), "share": 50} for n in "ab"]
    sharing = {"mode": "temporal", "turn_s": 5.0}
    config = Config.model_validate(
        {"device": {"memory": "1GiB"}, "tenants": tenants, "sharing": sharing, **extra}
    )
    assert Controller.of(config)._turns == Turns(5.0, False, below)
