"""Bounds of a step, and treatment of a request that lacks blocks in it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mirage.control.engine.fence import Fence
from mirage.control.growth_hold import GrowthHold
from mirage.control.turn_taking import Admits, TurnTaking
from mirage.engine.step_bounds import StepBounds
from mirage.engine.step_hold import StepHold
from mirage.engine.turn import EngineTurn
from mirage.protocol import Turn

pytestmark = pytest.mark.pure


class Requests:
    """Stand-in for an engine's requests: how many run, and how many were preempted."""

    def __init__(self, running: int = 0, preempted: int = 0) -> None:
        self.running, self.preempted = running, preempted

    @property
    def begun(self) -> int:
        return self.running + self.preempted


@pytest.mark.parametrize(
    ("granted", "drain", "running", "preempted", "admits"),
    [
        (True, False, 0, 0, Admits.ALL),
        (True, False, 2, 1, Admits.ALL),
        (False, False, 2, 1, Admits.NONE),
        (False, True, 2, 0, Admits.RUNNING),
        (False, True, 2, 1, Admits.PREEMPTED),
        (False, True, 0, 1, Admits.PREEMPTED),
        (False, True, 0, 0, Admits.NONE),
    ],
)
def test_a_turn_admits(
    granted: bool, drain: bool, running: int, preempted: int, admits: Admits
) -> None:
    turn = TurnTaking(temporal=True)
    turn.told(Turn(True))
    turn.told(Turn(granted, drain=drain))
    assert turn.admits(Requests(running, preempted)) is admits


def test_bounds_are_lifted_when_the_step_is_scheduled_and_when_that_fails() -> None:
    bounds = StepBounds()
    with bounds.of_step(Admits.RUNNING):
        bounds.held = True
        assert bounds.admits is Admits.RUNNING
    assert (bounds.admits, bounds.held) == (Admits.ALL, False)
    with pytest.raises(ZeroDivisionError), bounds.of_step(Admits.NONE):
        bounds.held = True
        raise ZeroDivisionError
    assert (bounds.admits, bounds.held) == (Admits.ALL, False)


class Engine:
    """Stand-in for an engine with a `StepHold`; it keeps the messages that this sends."""

    def __init__(self, *, answerable: bool = True, running: int = 1) -> None:
        self.now_s = 0.0
        self.growth_hold = GrowthHold(1.0, lambda: self.now_s, lambda: self.now_s)
        self.bounds = StepBounds()
        self.requests: Any = Requests(running)
        self.turn = EngineTurn(self.requests, Fence(), temporal=True)
        self.turn.told(Turn(True))
        nothing: Any = SimpleNamespace(recalls=lambda: False, copied=lambda: False)
        self.hold = StepHold(
            self.growth_hold,
            self.bounds,
            answerable=answerable,
            turn=self.turn,
            queues=self.requests,
            kv=nothing,
            tiers=nothing,
        )

    def step(self, lacks: int = 0) -> bool:
        """Run one step that lacks so many blocks; returns the result of `end_step`."""
        self.hold.begin_step()
        with self.bounds.of_step(self.turn.admits()):
            if lacks:
                self.hold.lacks(lacks, 3)
            assert self.bounds.held == self.hold.held
        return self.hold.end_step()


def test_a_request_is_held_and_its_want_is_said_once() -> None:
    engine = Engine()
    assert engine.step(lacks=2)
    assert (engine.hold.held, engine.hold.blocked) == (True, False)
    assert not engine.step(lacks=2), "the same is missing"
    assert engine.growth_hold.due == 5
    assert engine.step(), "nothing is missing any more"
    assert not engine.hold.held


def test_after_a_refusal_it_is_not_held_and_an_allotment_ends_that() -> None:
    engine = Engine()
    engine.step(lacks=2)
    engine.hold.refused()
    engine.step(lacks=2)
    assert not engine.hold.held
    engine.hold.answered()
    engine.step(lacks=2)
    assert engine.hold.held


def test_without_its_turn_an_engine_waits_no_longer_than_it_must() -> None:
    engine = Engine()
    engine.turn.told(Turn(False, drain=True))
    engine.step(lacks=2)
    engine.now_s = 1.5
    engine.step(lacks=2)
    assert not engine.hold.held, "nobody answers who has no turn"
    engine.turn.told(Turn(True))
    engine.step(lacks=2)
    assert engine.hold.held


@pytest.mark.parametrize("running", [0, 1])
def test_without_a_server_nothing_is_held(running: int) -> None:
    engine = Engine(answerable=False, running=running)
    engine.step(lacks=2)
    assert not engine.hold.held
    assert engine.hold.blocked == (not running), "who loaded last makes way if nothing runs"


def test_a_turn_is_held_until_the_step_in_flight_was_processed() -> None:
    requests: Any = Requests(running=1)
    fence = Fence()
    turn = EngineTurn(requests, fence, temporal=True)
    assert turn.stopped and not turn.held
    turn.told(Turn(True))
    fence.scheduled += 1
    turn.told(Turn(False))
    assert (turn.may_step, turn.stopped, turn.held) == (False, False, True)
    fence.processed += 1
    assert (turn.stopped, turn.held) == (True, False)
