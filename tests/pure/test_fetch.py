"""Fetch of a request's KV blocks from a tier: each state with each event."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.engine.tiers.fetch import (
    ASKS,
    CLOSED,
    HELD,
    NOT_ASKED,
    UNDER_WAY,
    Fetch,
    FetchEvent,
    FetchState,
)

pytestmark = pytest.mark.pure

TABLE = """
           SOUGHT    REACHED   DELAYED   LOADS     ADMITTED  FAILED    ENDED     STARTED   FINISHED
IDLE       SEEKING   -         -         -         -         -         -         -         GONE
SEEKING    -         -         WAITING   LOADING   IDLE      -         -         -         GONE
WAITING    -         SEEKING   -         LOADING   IDLE      -         -         -         GONE
LOADING    -         -         -         -         -         FAILING   DONE      -         ABANDONED
FAILING    -         -         -         -         -         -         COMPUTE   -         ABANDONED
DONE       SEEKING   -         -         -         -         -         -         IDLE      GONE
COMPUTE    -         -         -         -         -         -         -         -         GONE
ABANDONED  -         -         -         -         -         -         GONE      -         -
GONE       -         -         -         -         -         -         -         -         -
"""
_, HEAD, *ROWS = TABLE.rstrip().split("\n")
CASES = [
    (row.split()[0], event, row.split()[0] if then == "-" else then)
    for row in ROWS
    for event, then in zip(HEAD.split(), row.split()[1:], strict=True)
]


def test_the_table_has_every_state_and_every_event() -> None:
    assert {state for state, _, _ in CASES} == set(FetchState.__members__)
    assert {event for _, event, _ in CASES} == set(FetchEvent.__members__)
    assert len(CASES) == len(FetchState) * len(FetchEvent)


@pytest.mark.parametrize(("state", "event", "then"), CASES)
def test_an_event_leads_from_a_state_to_another(state: str, event: str, then: str) -> None:
    before, after = FetchState[state], FetchState[then]
    fetch = Fetch(before, mark=3, asked_s=1.0, late=True, put_off_s=0.5, tokens=32)
    left = fetch.on(FetchEvent[event])
    assert fetch.state is after
    assert left == (before in HELD and after not in HELD), "said once, when the pool lets go"
    search = (fetch.mark, fetch.asked_s, fetch.late)
    assert search == ((NOT_ASKED, None, False) if left else (3, 1.0, True))
    assert (fetch.put_off_s, fetch.tokens) == (0.5, 32)


def test_what_each_state_means() -> None:
    assert ASKS < HELD and UNDER_WAY < HELD
    assert not CLOSED & ASKS
    assert set(FetchState) - HELD == {
        FetchState.IDLE,
        FetchState.DONE,
        FetchState.COMPUTE,
        FetchState.GONE,
    }
    waits = {state for state in FetchState if Fetch(state).waits_itself}
    assert waits == UNDER_WAY | {FetchState.WAITING}


events = st.sampled_from([event for event in FetchEvent if event is not FetchEvent.FINISHED])


@given(st.lists(events))
def test_the_pool_is_left_once_for_each_time_it_was_asked(happens) -> None:
    fetch, asked, left = Fetch(), 0, 0
    for event in happens:
        asked += event is FetchEvent.SOUGHT and not fetch.held and fetch.state not in CLOSED
        left += fetch.on(event)
        assert asked - left == fetch.held
    left += fetch.on(FetchEvent.FINISHED)
    left += fetch.on(FetchEvent.ENDED)
    assert asked == left and fetch.state is FetchState.GONE
