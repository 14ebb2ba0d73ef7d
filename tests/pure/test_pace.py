"""The amount of memory that one round of an engine may move."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.control.engine.pace import Pace

pytestmark = pytest.mark.pure


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def move(pace: Pace, clock: Clock, kind: str, wanted: int, each_s: float) -> int:
    """Let `pace` say how many of `wanted` things the round may move, and move them; each takes
    `each_s`.
    """
    count = pace.most(kind, wanted)  # type: ignore[arg-type]
    if count:
        pace.ordered(kind, count)  # type: ignore[arg-type]
        clock.now += count * each_s
        pace.took(kind, count, count * each_s)  # type: ignore[arg-type]
    return count


def test_without_a_bound_or_without_requests_all_moves_at_once() -> None:
    for pace in (Pace(None, lambda: True), Pace(0.01, lambda: False)):
        pace.begin()
        assert pace.most("layer", 30) == 30
        assert pace.most("layer", -3) == 0


def test_the_first_move_is_a_single_one_and_then_as_many_as_fit() -> None:
    clock = Clock()
    pace = Pace(0.02, lambda: True)
    moved = []
    for _ in range(4):
        pace.begin()
        moved.append(move(pace, clock, "layer", 9, 0.005))
    assert moved == [1, 4, 4, 4]


def test_a_round_that_is_bounded_by_itself_is_so_without_requests_too() -> None:
    clock, pace = Clock(), Pace(None, lambda: False)
    pace.begin()
    assert move(pace, clock, "extent", 2, 0.005) == 2
    pace.begin(0.02)
    assert move(pace, clock, "extent", 9, 0.005) == 4
    pace.begin()
    assert pace.most("extent", 9) == 9


def test_what_takes_longer_than_a_round_still_moves_one_by_one_and_alone() -> None:
    clock = Clock()
    pace = Pace(0.02, lambda: True)
    for _ in range(3):
        pace.begin()
        assert move(pace, clock, "layer", 9, 0.05) == 1
        assert pace.most("layer", 8) == 0, "nothing more in this round"
    pace.begin()
    assert pace.most("extent", 5) == 1, "of what was never moved, one"


@given(
    st.lists(st.tuples(st.sampled_from(["layer", "extent"]), st.integers(0, 40)), max_size=30),
    st.floats(1e-4, 0.05),
)
def test_a_round_takes_little_more_than_it_may(moves: list[tuple[str, int]], each_s: float) -> None:
    """If each move takes equally long, a round takes at most its bound of 20 ms, or the time of a
    single move if that is longer.
    """
    clock, pace = Clock(), Pace(0.02, lambda: True)
    for kind in ("layer", "extent"):
        pace.begin()
        move(pace, clock, kind, 1, each_s)
    pace.begin()
    begun = clock.now
    for kind, wanted in moves:
        move(pace, clock, kind, wanted, each_s)
    assert clock.now - begun <= max(0.02, each_s) * (1 + 1e-9)


def test_the_first_of_another_kind_waits_for_a_round_with_time_left() -> None:
    clock = Clock()
    pace = Pace(0.02, lambda: True)
    pace.begin()
    assert move(pace, clock, "layer", 1, 0.03) == 1
    assert pace.most("extent", 4) == 0, "the round is over"
    pace.begin()
    assert pace.most("extent", 4) == 1, "what it takes is not known"
