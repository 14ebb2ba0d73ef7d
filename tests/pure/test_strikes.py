"""A key whose requests ended a tenant's engine three times is refused there for a while."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.serve.ends.ending import Ending
from mirage.serve.ends.strikes import MOST_STRIKES, STRIKES_S, STRUCK_S, KeyStrikes
from mirage.serve.ends.suspects import RequestFacts
from mirage.serve.routed.table import RoutedRow
from mirage.serve.routed.tenants import RoutedTenant

pytestmark = pytest.mark.pure

FAULT = Ending(status=-11)


def test_the_third_strike_within_ten_minutes_counts() -> None:
    strikes = KeyStrikes()
    assert not strikes.strike("k", 0) and not strikes.strike("k", 1)
    assert strikes.wait_s("k", 1) is None
    assert strikes.strike("k", STRIKES_S - 1)
    assert strikes.wait_s("k", STRIKES_S) == STRUCK_S - 1
    assert strikes.wait_s("other", STRIKES_S) is None
    over = STRIKES_S - 1 + STRUCK_S
    assert strikes.wait_s("k", over) is None
    assert not strikes.strike("k", over), "it begins anew"


def test_strikes_that_are_far_apart_do_not_add_up() -> None:
    strikes = KeyStrikes()
    assert not any(strikes.strike("k", at * STRIKES_S / 2) for at in range(20))


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 500))))
def test_keys_are_struck_as_a_plain_list_says(steps: list[tuple[str, float]]) -> None:
    strikes, now = KeyStrikes(), 0.0
    told: dict[str, list[float]] = {"a": [], "b": []}
    until = {"a": -1.0, "b": -1.0}
    for key, later in steps:
        now += later
        recent = [at for at in told[key] if at + STRIKES_S > now] + [now]
        expected = len(recent) == MOST_STRIKES
        told[key] = [] if expected else recent
        if expected:
            until[key] = now + STRUCK_S
        assert strikes.strike(key, now) is expected
        for name, end in until.items():
            assert strikes.wait_s(name, now) == (end - now if end > now else None)


def ended_by(tenant: RoutedTenant, key: str, body: str, ending: Ending, now: float) -> None:
    facts = RequestFacts("/v1/completions", "a", body, 10, key=key)
    tenant.suspects.begins(facts)
    tenant.ended(ending, now)


def test_a_tenants_engine_ends_are_strikes_of_the_culprits_key(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Three different requests of the key "ci" end an engine, so the key is refused for 600 s. Ends
    by a signal, and those of requests without a key, count against no key.
    """
    tenant = RoutedTenant(RoutedRow("a", "/run/a.sock", 256))
    for at in range(MOST_STRIKES):
        ended_by(tenant, "ci", f"body{at}", FAULT, float(at))
        ended_by(tenant, "kept", f"other{at}", Ending(status=-9), float(at))
        ended_by(tenant, "", f"open{at}", FAULT, float(at))
    assert tenant.strikes.wait_s("ci", 2.0) == STRUCK_S
    assert tenant.strikes.wait_s("kept", 2.0) is None is tenant.strikes.wait_s("", 2.0)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == "key 'ci' ended the engine of 'a' 3 times: it is refused there for 600 s"
