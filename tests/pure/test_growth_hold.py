"""Hold of a request that lacks KV blocks until the control server answers, and the refusals and
timeouts after which preemption is allowed.
"""

from __future__ import annotations

import pytest

from mirage.control.growth_hold import LONGEST_S, SILENT_S, GrowthHold

pytestmark = pytest.mark.pure


def lacking(blocks: int = 2, hold_s: float = 1e6) -> GrowthHold:
    """A `GrowthHold` after one step in which `blocks` KV blocks were missing."""
    hold = GrowthHold(hold_s, lambda: 0.0)
    step(hold, blocks)
    return hold


def step(hold: GrowthHold, blocks: int) -> bool:
    hold.begin_step()
    if blocks:
        hold.lacks(blocks, 0)
    return hold.end_step()


def test_a_request_that_lacks_blocks_is_held() -> None:
    assert lacking().may_hold()


def test_a_refusal_lets_it_be_preempted_until_an_allotment_comes() -> None:
    hold = lacking()
    hold.refused()
    assert not hold.may_hold()
    hold.answered()
    step(hold, 1)
    assert hold.may_hold()


def test_patience_ends() -> None:
    assert not lacking(hold_s=0.0).may_hold()


def test_a_late_refusal_says_nothing_of_the_next_shortage() -> None:
    hold = lacking()
    step(hold, 0)
    hold.refused()
    step(hold, 1)
    assert hold.may_hold()


def test_only_a_change_is_worth_a_report() -> None:
    hold = GrowthHold(1.0, lambda: 0.0)
    assert [step(hold, blocks) for blocks in (0, 2, 2, 3, 0)] == [False, True, False, True, True]


def test_what_is_due_is_known_until_a_step_lacks_nothing() -> None:
    hold = GrowthHold(1.0, lambda: 0.0)
    hold.begin_step()
    hold.lacks(3, free=2)
    hold.end_step()
    assert hold.due == 5, "whatever has come since"
    step(hold, 0)
    assert hold.due == 0


class Clock:
    """Clock that the test sets: the time `now`, and the time at which the control server was last
    heard.
    """

    def __init__(self) -> None:
        self.now, self.heard = 100.0, 0.0

    def hold(self, hold_s: float = 1.0) -> GrowthHold:
        hold = GrowthHold(hold_s, lambda: self.now, lambda: self.heard)
        step(hold, 2)
        return hold


def test_a_late_answer_is_waited_for_while_the_server_lives() -> None:
    clock = Clock()
    hold = clock.hold()
    for tenths in range(int(LONGEST_S * 10)):
        clock.now = 100.0 + tenths / 10
        clock.heard = clock.now - SILENT_S + 0.1
        assert hold.may_hold()
    clock.now = clock.heard = 100.0 + LONGEST_S
    assert not hold.may_hold(), "whatever is heard"


def test_a_server_that_fell_silent_is_waited_for_no_longer() -> None:
    clock = Clock()
    clock.heard = 100.5
    hold = clock.hold()
    clock.now = clock.heard + SILENT_S - 0.1
    assert hold.may_hold()
    clock.now = clock.heard + SILENT_S
    assert not hold.may_hold()


def test_a_server_that_was_silent_before_gets_its_usual_time() -> None:
    clock = Clock()
    hold = clock.hold()
    clock.now += 0.9
    assert hold.may_hold()
    clock.now += 0.2
    assert not hold.may_hold()


def test_without_its_turn_an_engine_waits_as_long_as_it_ever_did() -> None:
    clock = Clock()
    hold = clock.hold()
    clock.now = clock.heard = 101.1
    assert hold.may_hold() and not hold.may_hold(answerable=False)


def test_a_refusal_ends_it_however_alive_the_server_is() -> None:
    clock = Clock()
    hold = clock.hold()
    clock.heard = clock.now
    hold.refused()
    assert not hold.may_hold()
