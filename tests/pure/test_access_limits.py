"""Limits of keys and tenants: never more than a limit, and never a refusal below it."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.serve.access.limiter import (
    LimitedEntry,
    LimitedParty,
    Limiter,
    OverLimit,
)
from mirage.serve.access.rates import RateLimits
from mirage.serve.access.window import RateWindow
from tests.examples import examples

pytestmark = pytest.mark.pure

QUARTER_S = 0.25
"""Seconds; all times of these tests are multiples of it, and so exact."""
STEPS = st.lists(
    st.tuples(
        st.integers(0, 200),  # quarters of a second until it comes
        st.sampled_from(["enter", "enter", "enter", "leave"]),
        st.integers(0, 40),  # tokens it asks for, or took
        st.sampled_from("ab"),
    ),
    max_size=60,
)
LIMITS = st.builds(
    RateLimits,
    st.none() | st.integers(1, 5),
    st.none() | st.integers(1, 50),
    st.none() | st.integers(1, 4),
)


class Counted(NamedTuple):
    """Amount (requests or tokens) booked for one key or tenant, and the times between which it
    counts against the limit.
    """

    party: str
    amount: int
    since: float
    until: float


class Reference:
    """Simple model of the limits: it keeps all bookings and looks through them each time."""

    def __init__(self) -> None:
        self.requests: list[Counted] = []
        self.tokens: list[list[object]] = []
        self.running: list[str] = []

    def within(self, party: LimitedParty, tokens: int, now: float) -> bool:
        limits = party.limits
        requests = sum(one.until > now for one in self.requests if one.party == party.name)
        taken = sum(one[1] for one in self.tokens if one[0] == party.name and one[2] > now)  # type: ignore[misc,operator]
        return not (
            (limits.in_flight and self.running.count(party.name) >= limits.in_flight)
            or (limits.requests_per_minute and requests >= limits.requests_per_minute)
            or (
                limits.tokens_per_minute
                and taken + min(tokens, limits.tokens_per_minute) > limits.tokens_per_minute
            )
        )


@given(STEPS, LIMITS, LIMITS)
@examples(400)
def test_a_request_is_refused_if_and_only_if_a_limit_is_reached(
    steps: list[tuple[int, str, int, str]], of_key: RateLimits, of_model: RateLimits
) -> None:
    """Requests of two keys with equal limits for one tenant come and end at random. The limiter
    admits and refuses as `Reference` does.
    """
    limiter, reference = Limiter(), Reference()
    running: list[tuple[list[LimitedEntry], list[LimitedParty], list[list[object]]]] = []
    now = 1000.0
    for quarters, what, tokens, name in steps:
        now += quarters * QUARTER_S
        if what == "leave":
            if running:
                entries, parties, booked = running.pop(0)
                limiter.leave(entries, tokens, now)
                _leave(reference, parties, booked, tokens, now)
            continue
        parties = [LimitedParty("model", "m", of_model), LimitedParty("key", name, of_key)]
        expected = all(reference.within(party, tokens, now) for party in parties)
        found = limiter.enter(parties, tokens, now)
        assert expected is not isinstance(found, OverLimit)
        if not isinstance(found, OverLimit):
            running.append((found, parties, _enter(reference, parties, tokens, now)))


def _enter(
    reference: Reference, parties: list[LimitedParty], tokens: int, now: float
) -> list[list[object]]:
    booked: list[list[object]] = []
    for party in parties:
        reference.running.append(party.name)
        reference.requests.append(Counted(party.name, 1, now, now + 60))
        if (most := party.limits.tokens_per_minute) is not None:
            booked.append([party.name, min(tokens, most), now + 60, most])
    reference.tokens += booked
    return booked


def _leave(
    reference: Reference,
    parties: list[LimitedParty],
    booked: list[list[object]],
    tokens: int,
    now: float,
) -> None:
    for party in parties:
        reference.running.remove(party.name)
    for one in booked:
        name, amount, _, most = one
        assert isinstance(amount, int) and isinstance(most, int)
        if tokens <= amount:
            one[1] = tokens
        else:
            beyond = tokens - amount
            reference.tokens.append([name, beyond, now + 60 * max(1, beyond / most), most])


@given(st.lists(st.integers(0, 120), max_size=80), st.integers(1, 6))
@examples(200)
def test_no_minute_has_more_requests_than_the_limit(gaps: list[int], limit: int) -> None:
    limiter, now, passed = Limiter(), 0.0, []
    for quarters in gaps:
        now += quarters * QUARTER_S
        parties = [LimitedParty("key", "a", RateLimits(limit))]
        if not isinstance(limiter.enter(parties, 1, now), OverLimit):
            passed.append(now)
    for begin in passed:
        assert sum(begin <= time < begin + 60 for time in passed) <= limit


@given(st.lists(st.tuples(st.integers(0, 80), st.integers(1, 30)), min_size=1, max_size=50))
@examples(200)
def test_what_is_told_to_wait_is_true_to_the_moment(calls: list[tuple[int, int]]) -> None:
    """A request that was told to wait passes after exactly that time, and not a moment earlier."""
    window, now, limit = RateWindow(), 0.0, 30
    for quarters, amount in calls:
        now += quarters * QUARTER_S
        if wait_s := window.wait_s(amount, limit, now):
            at = now + wait_s
            assert window.wait_s(amount, limit, at - QUARTER_S / 2) > 0
            assert window.wait_s(amount, limit, at) == 0
            now = at
        window.book(amount, now)


def entered(limiter: Limiter, limits: RateLimits, tokens: int, now: float) -> list[LimitedEntry]:
    found = limiter.enter([LimitedParty("key", "a", limits)], tokens, now)
    assert not isinstance(found, OverLimit)
    return found


def refused(limiter: Limiter, limits: RateLimits, tokens: int, now: float) -> OverLimit:
    found = limiter.enter([LimitedParty("key", "a", limits)], tokens, now)
    assert isinstance(found, OverLimit)
    return found


def test_what_a_request_did_not_take_is_given_back_at_its_end() -> None:
    limiter, limits = Limiter(), RateLimits(tokens_per_minute=100)
    first = entered(limiter, limits, 90, 0.0)
    assert refused(limiter, limits, 20, 1.0).wait_s == 59.0
    limiter.leave(first, 10, 2.0)
    entered(limiter, limits, 90, 3.0)


def test_a_booking_that_counts_no_more_gives_nothing_back() -> None:
    limiter, limits = Limiter(), RateLimits(tokens_per_minute=100)
    limiter.leave(entered(limiter, limits, 90, 0.0), 10, 61.0)
    entered(limiter, limits, 100, 62.0)
    refused(limiter, limits, 1, 63.0)


def test_what_it_took_beyond_counts_for_as_many_minutes_as_it_is_limits() -> None:
    limiter, limits = Limiter(), RateLimits(tokens_per_minute=100)
    limiter.leave(entered(limiter, limits, 5, 0.0), 305, 600.0)
    over = refused(limiter, limits, 1, 601.0)
    assert (over.field, over.limit, over.wait_s) == ("tokens_per_minute", 100, 179.0)
    entered(limiter, limits, 100, 780.0)


def test_a_request_that_asks_for_more_than_a_limit_waits_until_nothing_else_counts() -> None:
    """A request for 5,000 tokens under a limit of 100 a minute waits until nothing else counts, and
    passes then. Its cost is an estimate, so it must not be refused for ever.
    """
    limiter, limits = Limiter(), RateLimits(tokens_per_minute=100)
    limiter.leave(entered(limiter, limits, 1, 0.0), 1, 0.0)
    assert refused(limiter, limits, 5000, 1.0).wait_s == 59.0
    entered(limiter, limits, 5000, 60.0)


def test_of_several_limits_the_one_is_told_that_lasts_longest() -> None:
    limiter, limits = Limiter(), RateLimits(1, 100, 1)
    entered(limiter, limits, 100, 0.0)
    over = refused(limiter, limits, 1, 20.0)
    assert (over.field, over.wait_s) == ("requests_per_minute", 40.0)


def test_a_refused_request_takes_nothing_of_any_limit() -> None:
    limiter = Limiter()
    key, model = RateLimits(), RateLimits(requests_per_minute=1)
    parties = [LimitedParty("key", "a", key), LimitedParty("model", "m", model)]
    assert not isinstance(limiter.enter(parties, 1, 0.0), OverLimit)
    only_key = [LimitedParty("key", "a", RateLimits(in_flight=2))]
    for _ in range(5):
        assert isinstance(limiter.enter(parties, 1, 1.0), OverLimit)
    assert not isinstance(limiter.enter(only_key, 1, 2.0), OverLimit)


def test_a_party_that_is_gone_is_forgotten_once_nothing_of_it_runs() -> None:
    limiter, limits = Limiter(), RateLimits(requests_per_minute=1)
    running = entered(limiter, limits, 1, 0.0)
    limiter.keep("key", ())
    assert refused(limiter, limits, 1, 1.0)
    limiter.leave(running, 1, 2.0)
    limiter.keep("key", ())
    entered(limiter, limits, 1, 3.0)
