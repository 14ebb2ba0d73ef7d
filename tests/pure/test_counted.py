"""Log lines about repeated events: at most one a second, whose counts add up to all events."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.serve.logs.repeated import EVERY_S, Repeated

pytestmark = pytest.mark.pure


class Clock:
    """Replacement of an event loop's clock and timers; `forward` advances the time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, Callable[[], None]]] = []

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        self._due.append((self.now + delay_s, call))

    def forward(self, to: float) -> None:
        while due := [one for one in self._due if one[0] <= to]:
            first = min(due, key=lambda one: one[0])
            self._due.remove(first)
            self.now = first[0]
            first[1]()
        self.now = to

    @property
    def rests(self) -> bool:
        return not self._due


@given(st.lists(st.integers(0, 80), max_size=50))
def test_lines_are_a_second_apart_and_count_every_event(eighths: list[int]) -> None:
    clock, lines = Clock(), list[tuple[float, int, str]]()
    counted = Repeated(lambda count, last: lines.append((clock.now, count, last)), clock.later)
    times = sorted(eighth / 8 for eighth in eighths)
    for number, at in enumerate(times):
        clock.forward(at)
        counted.note(f"event {number}")
    clock.forward(20)
    assert sum(count for _, count, _ in lines) == len(times)
    assert all(b[0] - a[0] >= EVERY_S for a, b in pairwise(lines))
    assert [last for *_, last in lines[-1:]] == [f"event {len(times) - 1}"] * bool(times)
    assert clock.rests


def test_the_first_is_told_at_once() -> None:
    clock, lines = Clock(), list[tuple[int, str]]()
    counted = Repeated(lambda count, last: lines.append((count, last)), clock.later)
    counted.note("a")
    counted.note("b")
    counted.note("c")
    assert lines == [(1, "a")]
    clock.forward(1.0)
    assert lines == [(1, "a"), (2, "c")]
