"""Seconds until a tenant that is not served comes back, as clients are told them."""

import pytest

from mirage.control.roster.states import LifeState
from mirage.serve.api.openai import ApiError
from mirage.serve.ends.comeback import LOOK_AGAIN_S, STARTS, Comeback
from mirage.serve.routed.table import RoutedRow, RouterTable

pytestmark = pytest.mark.pure


def started(*seconds: float) -> Comeback:
    """Record of a tenant whose past starts took these seconds each."""
    made = Comeback()
    for number, took in enumerate(seconds):
        made.starts(1000.0 * number)
        made.serves(1000.0 * number + took)
    return made


def test_a_first_start_is_looked_at_again() -> None:
    made = Comeback()
    made.starts(0.0)
    assert made.times.wait_s(0.0) == made.times.wait_s(99.0) == LOOK_AGAIN_S


def test_in_a_pause_it_takes_the_rest_of_it_and_a_start() -> None:
    made = started(20.0, 30.0)
    made.pauses(5000.0, 4.0)
    assert made.times.wait_s(5001.0) == 3.0 + 30.0
    assert made.times.wait_s(5009.0) == 30.0, "it waits for memory"
    made.starts(5010.0)
    assert made.times.wait_s(5018.0) == 22.0
    assert made.times.wait_s(5060.0) == LOOK_AGAIN_S, "it takes longer than it did"


def test_one_that_never_started_is_away_until_it_is_tried_again() -> None:
    made = Comeback()
    made.starts(0.0)
    made.pauses(10.0, 600.0)
    assert made.times.wait_s(110.0) == 500.0


def test_only_the_last_starts_count() -> None:
    made = started(99.0, *[10.0] * STARTS)
    made.starts(9000.0)
    assert made.times.wait_s(9000.0) == 10.0


def test_one_that_ends_at_the_moment_is_away_for_a_start() -> None:
    """The engine was sent SIGKILL, and the pause before its next start is not known. Clients are
    told to wait for as long as the slowest start took.
    """
    comeback = started(20.0, 30.0)
    row = RoutedRow("a", "a", 1, LifeState.DOWN, comeback=comeback.times)
    assert row.wait_s(5000.0) == 30.0


@pytest.mark.parametrize(
    ("state", "wait_s"), [(LifeState.DOWN, LOOK_AGAIN_S), (LifeState.FAILED, None)]
)
def test_one_that_is_not_tried_again_is_not_said_to_come_back(
    state: LifeState, wait_s: float | None
) -> None:
    assert RoutedRow("a", "a", 1, state).wait_s(0.0) == wait_s


@pytest.mark.parametrize(("wait_s", "said"), [(None, None), (0.2, "1"), (33.2, "34")])
def test_seconds_are_whole_and_never_none(wait_s: float | None, said: str | None) -> None:
    answer = ApiError(503, "down", wait_s=wait_s).response()
    assert answer.headers.get("Retry-After") == said


def test_a_router_whose_clock_is_ahead_tells_the_same() -> None:
    comeback = started(20.0, 30.0)
    comeback.pauses(5000.0, 4.0)
    pauses = RoutedRow("a", "a", 1, LifeState.STOPPED, comeback=comeback.times)
    comeback.starts(5000.0)
    starts = RoutedRow("b", "b", 1, LifeState.STARTING, comeback=comeback.times)
    away = RoutedRow("c", "c", 1, LifeState.DOWN)
    table = RouterTable((pauses, starts, away))
    told = [row.wait_s(5001.0) for row in table.tenants]
    assert told == [33.0, 29.0, LOOK_AGAIN_S]
    assert [row.wait_s(8001.0) for row in table.shifted(3000.0).tenants] == told
