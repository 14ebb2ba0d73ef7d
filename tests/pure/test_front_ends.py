"""Simulated front ends reading bursts of requests, on idle cores, beside engines and each other."""

from __future__ import annotations

import doctest
from operator import itemgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import front_ends
from benchmarks.front_ends import DONE, FrontEnds

pytestmark = pytest.mark.pure

Fronts = FrontEnds[int]


def ended(fronts: Fronts) -> list[tuple[int, str, int]]:
    """Time, front end and number of each request as it has been read, until none is left."""
    found = []
    while (end := fronts.next_end()) is not None:
        found += [(end, name, number) for name, number in fronts.through(end)]
    return found


def burst(fronts: Fronts, name: str, requests: int, now: int = 0) -> None:
    for number in range(requests):
        fronts.take(name, number, work_ps=10, now=now)


@pytest.mark.parametrize(
    ("cores", "engines", "others", "ends"),
    [
        pytest.param(2, 0, 0.0, 50, id="idle cores"),
        pytest.param(2, 1, 0.0, 50, id="a core each"),
        pytest.param(2, 2, 0.0, 75, id="three on two cores"),
        pytest.param(2, 3, 0.0, 100, id="four on two cores"),
        pytest.param(1, 3, 0.0, 200, id="four on one core"),
        pytest.param(2, 2, 1.0, 100, id="beside something else"),
        pytest.param(8, 3, 0.0, 50, id="one process has one core at most"),
    ],
)
def test_a_burst_gets_through_together(cores: int, engines: int, others: float, ends: int) -> None:
    fronts = Fronts(cores, others)
    fronts.beside(engines, now=0)
    burst(fronts, "a", 5)
    assert fronts.reading == 1
    assert ended(fronts) == [(ends, "a", number) for number in range(5)]
    assert fronts.reading == 0


def test_the_example_is_true() -> None:
    done = doctest.testmod(front_ends)
    assert done.attempted > 3 and not done.failed


def test_a_newcomer_has_its_part_at_once() -> None:
    """On one core a front end has 10 units of work: it does 6 alone, then has half of the core. A
    second one, which comes then, has the other half.
    """
    fronts = Fronts(cores=1)
    fronts.take("a", 0, work_ps=10, now=0)
    fronts.take("a", 1, work_ps=10, now=6)
    assert ended(fronts) == [(14, "a", 0), (20, "a", 1)]


def test_front_ends_share_cores_with_each_other() -> None:
    """Three front ends on two cores have two thirds of a core each, until the one with a single
    request has read it; then the other two have one each.
    """
    fronts = Fronts(cores=2)
    burst(fronts, "a", 1)
    burst(fronts, "b", 2)
    burst(fronts, "c", 2)
    assert ended(fronts) == [(15, "a", 0), (25, "b", 0), (25, "b", 1), (25, "c", 0), (25, "c", 1)]


def test_an_engine_that_begins_meanwhile_takes_its_part_from_then_on() -> None:
    fronts = Fronts(cores=1)
    burst(fronts, "a", 2)
    fronts.beside(1, now=10)
    assert fronts.next_end() == 30
    fronts.beside(0, now=20)
    assert fronts.next_end() == 25


@given(
    st.lists(st.tuples(st.integers(0, 400), st.sampled_from("abc")), min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 4)), max_size=6),
    st.integers(1, 3),
)
def test_cores_give_just_the_work_that_there_is(
    comes: list[tuple[int, str]], engines: list[tuple[int, int]], cores: int
) -> None:
    """Bursts and steps of engines begin and end at random. The processor time that front ends get
    is that of the requests read, apart from rounding up to whole picoseconds.
    """
    fronts, computing, now, spent, through = Fronts(cores), 0, 0, 0.0, 0

    def pass_until(time: int) -> None:
        nonlocal now, spent, through
        while (end := fronts.next_end()) is not None and end <= time:
            pass_to(end)
            through += len(fronts.through(end))
        pass_to(time)

    def pass_to(time: int) -> None:
        nonlocal now, spent
        if reading := fronts.reading:
            spent += (time - now) * min(reading, cores * reading / (reading + computing))
        now = time

    for time, what in sorted([*comes, *engines], key=itemgetter(0)):
        pass_until(time)
        if isinstance(what, int):
            computing = what
            fronts.beside(computing, time)
        else:
            fronts.take(what, 0, work_ps=100, now=time)
    pass_until(1 << 40)
    assert through == len(comes) and fronts.reading == 0
    assert -DONE * through <= spent - 100 * through <= 3 * through
