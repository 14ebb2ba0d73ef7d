"""When an engine is started again: limits for it, pauses for what requests did."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.serve.restarts import (
    BACKOFF_S,
    FORGIVEN_AFTER_S,
    LONGEST_BACKOFF_S,
    LONGEST_REST_S,
    REST_S,
    RESTARTS,
    Pause,
    Restarts,
)

pytestmark = pytest.mark.pure


def test_pauses_double_and_then_it_rests() -> None:
    made = Restarts()
    pauses = [made.ended(1.0, excused=False) for _ in range(RESTARTS + 2)]
    assert pauses == [Pause(1.0), Pause(2.0), Pause(4.0), Pause(REST_S, True), Pause(1200.0, True)]


def test_one_that_cannot_start_at_all_rests_at_once_and_after_each_attempt() -> None:
    made = Restarts()
    assert made.rest() == Pause(REST_S, failed=True)
    assert made.ended(1.0, excused=False) == Pause(2 * REST_S, failed=True)


def test_long_service_clears_the_record() -> None:
    made = Restarts()
    for _ in range(RESTARTS):
        made.ended(1.0, excused=False)
    assert made.ended(FORGIVEN_AFTER_S + 1, excused=False) == Pause(BACKOFF_S)


@given(st.lists(st.floats(0, 2 * FORGIVEN_AFTER_S), max_size=200))
def test_requests_alone_never_make_a_tenant_fail(served: list[float]) -> None:
    made = Restarts()
    for seconds in served:
        pause = made.ended(seconds, excused=True)
        assert not pause.failed
        assert BACKOFF_S <= pause.seconds <= LONGEST_BACKOFF_S


@given(st.lists(st.tuples(st.floats(0, 2 * FORGIVEN_AFTER_S), st.booleans()), max_size=100))
def test_it_fails_only_after_so_many_ends_of_its_own_and_is_always_tried_again(
    ends: list[tuple[float, bool]],
) -> None:
    made, own = Restarts(), 0
    for seconds, excused in ends:
        own = (0 if seconds > FORGIVEN_AFTER_S else own) + (not excused)
        pause = made.ended(seconds, excused=excused)
        assert pause.failed == (own > RESTARTS)
        assert 0 < pause.seconds <= LONGEST_REST_S
        own = min(own, RESTARTS)
