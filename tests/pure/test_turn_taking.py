"""When a revoked engine may still step."""

from __future__ import annotations

import pytest

from mirage.control.turn_taking import TurnTaking
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


def test_a_step_that_executes_still_holds_the_turn() -> None:
    turn = TurnTaking(temporal=True)
    assert turn.holds(1, executing=True)
    assert not turn.holds(1, executing=False)
