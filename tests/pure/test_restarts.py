"""Restarts of an engine that ended: their number, and pauses that grow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.serve.ends.restarts import (
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
    pauses = [made.ended(1.0) for _ in range(RESTARTS + 2)]
    assert pauses == [Pause(1.0), Pause(2.0), Pause(4.0), Pause(REST_S, True), Pause(1200.0, True)]


def test_one_that_cannot_start_at_all_rests_at_once_and_after_each_attempt() -> None:
    made = Restarts()
    assert made.rest() == Pause(REST_S, failed=True)
    assert made.ended(1.0) == Pause(2 * REST_S, failed=True)


def test_long_service_clears_the_record() -> None:
    made = Restarts()
    for _ in range(RESTARTS):
        made.ended(1.0)
    assert made.ended(FORGIVEN_AFTER_S + 1) == Pause(BACKOFF_S)


def test_service_of_engines_that_were_stopped_counts_as_well() -> None:
    """Time in which an engine served before it was stopped on purpose counts as service, after
    which earlier ends are forgiven. A tenant that starts on request serves for some minutes at a
    time.
    """
    made = Restarts()
    for _ in range(RESTARTS):
        made.ended(1.0)
    for _ in range(3):
        made.stopped(FORGIVEN_AFTER_S / 3)
    assert made.ended(1.0) == Pause(BACKOFF_S)
    for _ in range(RESTARTS - 1):
        made.stopped(FORGIVEN_AFTER_S / 3)
        made.ended(1.0)
    assert made.ended(1.0).failed, "service before the last end does not count"


def test_a_request_that_comes_again_and_again_is_counted_once() -> None:
    made = Restarts()
    for _ in range(10):
        assert not made.ended(1.0, {"bad"}).failed
        assert made.counted == 1
    assert not made.ended(1.0, {"bad", "worse"}).failed
    assert not made.counts
    made.ended(1.0, {"other"})
    assert made.counts and made.counted == 2


def test_ends_over_other_requests_each_time_make_a_tenant_fail() -> None:
    made = Restarts()
    failed = [made.ended(1.0, {f"chat {number}"}).failed for number in range(RESTARTS + 1)]
    assert failed == [False] * RESTARTS + [True]


@given(st.lists(st.floats(0, 2 * FORGIVEN_AFTER_S), max_size=200))
def test_one_bad_request_alone_never_makes_a_tenant_fail(served: list[float]) -> None:
    made = Restarts()
    for seconds in served:
        pause = made.ended(seconds, {"bad"})
        assert not pause.failed
        assert BACKOFF_S <= pause.seconds <= LONGEST_BACKOFF_S


@given(
    st.lists(
        st.tuples(st.floats(0, 2 * FORGIVEN_AFTER_S), st.frozensets(st.sampled_from("abc"))),
        max_size=100,
    )
)
def test_it_fails_only_after_so_many_counted_ends_and_is_always_tried_again(
    ends: list[tuple[float, frozenset[str]]],
) -> None:
    made, counted = Restarts(), 0
    known: set[str] = set()
    for seconds, bodies in ends:
        if seconds > FORGIVEN_AFTER_S:
            counted, known = 0, set()
        counted += not known & bodies
        known |= bodies
        pause = made.ended(seconds, bodies)
        assert pause.failed == (counted > RESTARTS)
        assert 0 < pause.seconds <= LONGEST_REST_S
        counted = min(counted, RESTARTS)
