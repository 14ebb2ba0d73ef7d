"""KV memory that suspended requests give up at the end of a turn, where that pays."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from test_planner import REMAP, SHAPE, SHARE, plan, tenant

from mirage.config import Config, Policy
from mirage.control.controller import Controller
from mirage.control.spilling import TurnLengths, worth_spilling
from mirage.control.turn_taking import TurnTaking
from mirage.protocol import Turn

pytestmark = pytest.mark.pure

MUCH = 1 << 30
SLOW = (9.0, 1.0)
"""T_T and T_c, in seconds."""
FAST = (1e-3, 1.0)


def spilled(
    used: int, kv: int, turns: TurnLengths, times: tuple[float, float] = FAST, unknown: bool = False
) -> int:
    """Bytes that a tenant gives up which holds `kv` extents and uses `used`; with `unknown`, its
    load time is not known.
    """
    suspended = tenant("a", used, kv=kv, times=times)
    if unknown:
        report = structs.replace(suspended.report, layer_load_s=0.0)
        suspended = structs.replace(suspended, report=report)
    return worth_spilling(suspended, turns)


def test_what_a_turn_loads_many_times_is_given_up() -> None:
    assert spilled(20, 20, TurnLengths(1e4, below_bytes=MUCH)) == 20 * SHAPE.extent_bytes


def test_what_takes_most_of_a_turn_to_bring_back_is_kept() -> None:
    assert spilled(20, 20, TurnLengths(1.0, below_bytes=MUCH), SLOW) == 0


def test_while_nobody_knows_how_fast_the_link_is_all_is_kept() -> None:
    assert spilled(20, 20, TurnLengths(1e4, below_bytes=MUCH), unknown=True) == 0


@given(
    used=st.integers(0, 30),
    kv=st.integers(0, 30),
    turn_s=st.floats(1e-3, 1e6),
    below=st.integers(0, 3000),
    load_s=st.floats(1e-4, 1e3),
)
def test_no_more_is_given_up_than_is_used_and_there_is_room_for(
    used: int, kv: int, turn_s: float, below: int, load_s: float
) -> None:
    def found(below: int = below, load_s: float = load_s, turn_s: float = turn_s) -> int:
        return spilled(used, kv, TurnLengths(turn_s, below_bytes=below), (load_s, 1.0))

    assert 0 <= found() <= min(used * SHAPE.extent_bytes, below)
    assert found(below=0) == 0
    assert found() <= found(load_s=load_s / 2)
    assert found() <= found(turn_s=2 * turn_s)


@given(st.floats(1e-3, 1e9), st.integers(2, 34), st.sampled_from([Policy.POOLED, Policy.MIRAGE]))
def test_in_turns_nobody_is_called_back(turn_s: float, used: int, policy: Policy) -> None:
    """`a` has lost its turn to `b`, and its suspended requests use more extents than its share of
    10. No plan recalls them or takes the memory that they use.
    """
    if policy is Policy.POOLED:
        used = min(used, 18)
    suspended = tenant("a", used, active=False, kv=used, percent=20, times=SLOW)
    awake = tenant("b", 1, layers_remapped=9, kv=2, times=SLOW)
    turns = TurnLengths(turn_s, below_bytes=MUCH)
    found = plan([suspended, awake], 2 * SHARE, 0, policy, REMAP, turns=turns).targets
    assert not any(target.recall for target in found.values())
    assert found["a"].kv_extents >= used


class Stopped:
    """Suspended requests, the newest last, by their numbers of blocks; blocks of the last one may
    still be `coming` from a tier.
    """

    def __init__(self, *blocks: int) -> None:
        self.blocks, self.coming = list(blocks), False

    @property
    def begun(self) -> int:
        return len(self.blocks)

    @property
    def used_blocks(self) -> int:
        return sum(self.blocks)

    def give_up_newest(self) -> bool:
        if self.coming or not self.blocks:
            return False
        self.blocks.pop()
        return True


def test_one_that_has_stopped_gives_up_as_much_as_it_was_told() -> None:
    turn, requests = TurnTaking(temporal=True), Stopped(5, 5, 6, 6)
    turn.told(Turn(True))
    assert turn.spill(requests, 10) == 0
    turn.told(Turn(False, spill_bytes=100))
    assert turn.spill(requests, 10) == 2
    assert requests.blocks == [5, 5], "no more than was said, in whole requests"
    assert turn.spill(requests, 10) == 0


def test_what_is_still_coming_is_given_up_once_it_is_there() -> None:
    turn, requests = TurnTaking(temporal=True), Stopped(5, 5, 6)
    turn.told(Turn(False, spill_bytes=100))
    requests.coming = True
    assert turn.spill(requests, 10) == 0
    requests.coming = False
    assert turn.spill(requests, 10) == 2
    assert turn.spill(Stopped(), 10) == 0


def test_one_that_drains_gives_up_nothing_before_it_has_stopped() -> None:
    turn, requests = TurnTaking(temporal=True), Stopped(5, 5)
    turn.told(Turn(False, drain=True, spill_bytes=100))
    assert turn.spill(requests, 10) == 0
    turn.told(Turn(False, spill_bytes=100))
    assert turn.spill(requests, 10) == 2
    turn.told(Turn(True))
    assert turn.spill(Stopped(5), 10) == 0


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
    assert Controller.of(config)._turns == TurnLengths(5.0, False, below)
