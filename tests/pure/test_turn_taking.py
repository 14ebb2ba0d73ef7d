"""Steps that an engine may still run after its turn was revoked."""

from __future__ import annotations

import pytest

from mirage.control.turn_taking import Admits, TurnTaking
from mirage.protocol import Turn

pytestmark = pytest.mark.pure


def test_spatial_sharing_never_waits_for_a_turn() -> None:
    assert TurnTaking(temporal=False).may_step(begun=0)


def test_a_turn_is_granted_first() -> None:
    turn = TurnTaking(temporal=True)
    assert not turn.may_step(begun=0)
    turn.told(Turn(True))
    assert turn.may_step(begun=0)


@pytest.mark.parametrize(("drain", "running", "steps"), [(False, 3, 0), (True, 3, 1), (True, 0, 0)])
def test_after_a_revocation_only_draining_goes_on(drain: bool, running: int, steps: int) -> None:
    turn = TurnTaking(temporal=True)
    turn.told(Turn(True))
    turn.told(Turn(False, drain=drain))
    assert turn.may_step(running) == bool(steps)


def test_draining_is_over_when_the_server_says_so() -> None:
    turn = TurnTaking(temporal=True)
    for message in (Turn(True), Turn(False, drain=True), Turn(False)):
        turn.told(message)
    assert not turn.may_step(3)


class Requests:
    """Stand-in for an engine's running requests, each of which has two KV blocks."""

    preempted = 0

    def __init__(self, begun: int) -> None:
        self.begun = begun

    @property
    def used_blocks(self) -> int:
        return 2 * self.begun

    def give_up_newest(self) -> bool:
        self.begun -= self.begun > 0
        return self.begun > 0


@pytest.mark.parametrize("temporal", [False, True])
def test_an_engine_that_rests_steps_in_no_turn_and_gives_up_everything(temporal: bool) -> None:
    turn, requests = TurnTaking(temporal=temporal), Requests(3)
    turn.told(Turn(True))
    assert turn.spill(requests, 1) == 0
    turn.rest(True)
    assert not turn.may_step(3) and turn.admits(requests) is Admits.NONE
    turn.spill(requests, 1)
    assert requests.begun == 0
    turn.rest(False)
    assert turn.may_step(0) and turn.admits(requests) is Admits.ALL


def test_a_turn_that_drains_when_the_engine_falls_asleep_is_over_for_good() -> None:
    turn = TurnTaking(temporal=True)
    turn.told(Turn(True))
    turn.told(Turn(False, drain=True))
    assert turn.holds(3, executing=False)
    turn.rest(True)
    assert not turn.holds(3, executing=False), "others may have been given it since"
    turn.told(Turn(False, drain=True))
    turn.rest(False)
    assert not turn.may_step(3) and not turn.holds(3, executing=False)


def test_a_turn_that_comes_while_the_engine_sleeps_is_taken_when_it_wakes() -> None:
    turn = TurnTaking(temporal=True)
    turn.rest(True)
    turn.told(Turn(True))
    assert not turn.may_step(1)
    turn.rest(False)
    assert turn.may_step(1)


def test_a_step_that_executes_still_holds_the_turn() -> None:
    turn = TurnTaking(temporal=True)
    assert turn.holds(1, executing=True)
    assert not turn.holds(1, executing=False)
