"""Times from an engine's request for memory to usable memory, as Prometheus is told them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from test_arbiter import alone, arbiter, report
from world import SHAPE

from mirage.control.growth_waits import GrowthWaits
from mirage.control.time_counts import TimeCounts
from mirage.protocol import PROTOCOL_VERSION, Hello

pytestmark = pytest.mark.pure

IDLE = report(True)


def asks(extents: int, usable: int) -> object:
    return replace(IDLE, growth_extents=extents, kv_usable_extents=usable, running=1)


def waits(*told: tuple[float, int, int]) -> tuple[int, float]:
    """Number and sum (seconds) of the waits for memory that the book counts, for reports of (time,
    wanted extents, usable extents).
    """
    book = GrowthWaits()
    for now, extents, usable in told:
        book.reported("a", asks(extents, usable), now)  # type: ignore[arg-type]
    return book.counts["a"].count, book.counts["a"].total_s


@pytest.mark.parametrize(
    ("told", "count", "total_s"),
    [
        ([(0, 5, 10)], 0, 0),
        ([(0, 12, 10), (3, 12, 12)], 1, 3),
        ([(0, 12, 10), (1, 12, 11), (3, 12, 14)], 1, 3),
        ([(0, 12, 10), (1, 9, 10), (9, 12, 12)], 0, 0),
        ([(0, 12, 10), (1, 16, 12), (3, 16, 16)], 2, 3),
        ([(0, 16, 10), (1, 12, 10), (3, 12, 12)], 1, 3),
        ([(0, 12, 10), (1, 16, 10), (3, 16, 13), (4, 16, 16)], 2, 4),
    ],
    ids=["none", "one", "in parts", "no more needed", "two", "less needed", "more needed"],
)
def test_from_asked_to_usable(
    told: list[tuple[float, int, int]], count: int, total_s: float
) -> None:
    assert waits(*told) == (count, total_s)


def test_an_engine_that_is_lost_asks_for_nothing() -> None:
    book = GrowthWaits()
    book.reported("a", asks(12, 10), 0.0)  # type: ignore[arg-type]
    book.rests("a")
    book.reported("a", asks(12, 12), 5.0)  # type: ignore[arg-type]
    assert book.counts["a"].count == 0


def test_buckets_are_cumulative_and_bounds_belong_below() -> None:
    counts = TimeCounts((0.5, 1.0))
    for seconds in (0.1, 0.5, 0.7, 3.0):
        counts.add(seconds)
    assert counts.buckets() == [("0.5", 2.0), ("1.0", 3.0), ("+Inf", 4.0)]
    assert (counts.count, counts.total_s) == (4, pytest.approx(4.3))


def test_decisions_are_counted_by_what_they_follow() -> None:
    made = arbiter("spatial")
    counts = made.decisions.counts
    assert counts == {("a", "first"): 1, ("b", "first"): 1}
    for name in "ab":
        made.reported(name, report(True), 0.0)
    made.reported("a", report(True, running=1, growth=5), 1.0)
    told = {name for name, _ in made.decide(1.0)}
    found = {reason for name, reason in counts if name in told} - {"first"}
    assert found and all(counts[name, "first"] == 1 for name in "ab")
    assert found <= {move.reason for name in told for move in made.controller.why(name)}
    before = dict(counts)
    assert made.decide(1.0) == [] and dict(counts) == before


def test_refusals_and_sleep_are_decisions_and_what_is_removed_is_forgotten() -> None:
    made = arbiter("spatial")
    for name in "ab":
        made.reported(name, report(True, running=1, growth=100), 0.0)
    made.decide(0.0)
    made.decide(made.controller.patience_s + 1.0)
    counts = made.decisions.counts
    assert {name for name, reason in counts if reason == "refused"}
    made.sleeps("b", 20.0)
    assert counts["b", "sleep"] == 1
    made.lost("b", 21.0)
    made.removed("b")
    assert not [name for name, _ in counts if name == "b"]


def test_growth_is_heard_from_reports() -> None:
    made = alone("spatial")
    made.joined(Hello(PROTOCOL_VERSION, "a", 1, SHAPE, 0), 0.0)
    made.decide(0.0)
    made.reported("a", report(True, running=1, growth=2), 1.0)
    made.reported("a", replace(report(True, running=1), kv_usable_extents=12), 1.25)
    assert made.growth.counts["a"].total_s == 0.25
