"""What a request that lacks memory waits for, and when it may be preempted."""

from __future__ import annotations

import pytest

from mirage.control.growth_hold import Wish

pytestmark = pytest.mark.pure


def lacking(blocks: int = 2, hold_s: float = 1e6) -> Wish:
    """A wish after one step in which `blocks` were missing."""
    wish = Wish(hold_s, lambda: 0.0)
    step(wish, blocks)
    return wish


def step(wish: Wish, blocks: int) -> bool:
    wish.begin_step()
    if blocks:
        wish.lacks(blocks, 0)
    return wish.end_step()


def test_a_request_that_lacks_blocks_is_held() -> None:
    assert lacking().may_hold()


def test_a_refusal_lets_it_be_preempted_until_an_allotment_comes() -> None:
    wish = lacking()
    wish.refused()
    assert not wish.may_hold()
    wish.answered()
    step(wish, 1)
    assert wish.may_hold()


def test_patience_ends() -> None:
    assert not lacking(hold_s=0.0).may_hold()


def test_a_late_refusal_says_nothing_of_the_next_wish() -> None:
    wish = lacking()
    step(wish, 0)
    wish.refused()
    step(wish, 1)
    assert wish.may_hold()


def test_only_a_change_is_worth_a_report() -> None:
    wish = Wish(1.0, lambda: 0.0)
    assert [step(wish, blocks) for blocks in (0, 2, 2, 3, 0)] == [False, True, False, True, True]


def test_what_is_due_is_known_until_a_step_lacks_nothing() -> None:
    wish = Wish(1.0, lambda: 0.0)
    wish.begin_step()
    wish.lacks(3, free=2)
    wish.end_step()
    assert wish.due == 5, "whatever has come since"
    step(wish, 0)
    assert wish.due == 0
