"""Replicas as the router knows them: what each state means to a request, and how fast each is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mirage.control.roster.states import LifeState
from mirage.control.routes.pace import HALF_S, LEAST, ReplicaPace
from mirage.control.routes.quarantine import ReplicaQuarantine
from mirage.control.routes.routing import RouteAsk, RouteRefused, Routes
from mirage.serve.ends.comeback import LOOK_AGAIN_S, ComebackTimes
from mirage.serve.ends.ending import Ending
from mirage.serve.ends.suspects import RequestFacts, Suspects
from mirage.serve.routed.replicas import replica_of
from mirage.serve.routed.table import RoutedRow
from mirage.serve.routed.tenants import RoutedTenant, RoutedTenants

pytestmark = pytest.mark.pure
S = LifeState
ASK = RouteAsk("a", "body")
FACTS = RequestFacts("/v1/completions", "a", "body", 4)


def tenant(device: str, state: LifeState = S.READY, in_flight: int = 0, **keys: Any) -> Any:
    row = RoutedRow("a", f"/{device}", 256, state, **({"at_once": state is S.READY} | keys))
    return RoutedTenant(row, device, in_flight=in_flight)


def chosen(*tenants: RoutedTenant, away: str = "") -> tuple[str, bool]:
    """Device to which a request goes, and True if it has to wake its tenant there. The device
    `away` has not been heard of lately.
    """
    replicas = [replica_of(one, 100.0, heard=one.device != away) for one in tenants]
    choice = Routes().choose(ASK, replicas, 100.0)
    assert choice.replica is not None, choice
    return choice.replica.device, choice.wakes


def test_who_is_awake_comes_before_who_sleeps() -> None:
    asleep = tenant("asleep", S.SLEEPING, wake_s=0.1)
    assert chosen(asleep, tenant("busy", in_flight=90)) == ("busy", False)
    stopped = tenant("stopped", S.STOPPED, comeback=ComebackTimes(9.0))
    assert chosen(asleep, stopped) == ("asleep", True)


def test_requests_wait_for_the_one_that_was_asked_to_wake() -> None:
    """Both replicas sleep by the router's table, and one has been sent a request already. The next
    request goes there too and need not wake it.
    """
    one, other = tenant("one", S.SLEEPING, wake_s=0.3), tenant("two", S.SLEEPING, wake_s=0.3)
    other.in_flight = 1
    assert chosen(one, other) == ("two", False)


def test_an_engine_that_is_about_to_end_is_the_last_choice_but_one() -> None:
    ends = tenant("ends", at_once=False)
    assert chosen(ends, tenant("busy", in_flight=90)) == ("busy", False)
    assert chosen(ends, tenant("asleep", S.SLEEPING, wake_s=1.0)) == ("asleep", True)
    failed = replica_of(tenant("failed", S.FAILED), 100.0, heard=True)
    assert Routes().choose(ASK, [failed], 100.0).refused is RouteRefused.NO_REPLICA


def test_where_nobody_hears_only_who_is_awake_serves() -> None:
    awake, asleep = tenant("awake", in_flight=9), tenant("asleep", S.SLEEPING, wake_s=0.1)
    assert chosen(awake, asleep, away="awake") == ("awake", False)
    other = tenant("other", S.STOPPED)
    assert chosen(asleep, other, away="asleep") == ("other", True)


@pytest.mark.parametrize(
    ("row", "seconds"),
    [
        ({"state": S.READY}, 0.0),
        ({"state": S.WAKING, "at_once": False, "wake_s": 0.4}, 0.4),
        ({"state": S.STARTING, "comeback": ComebackTimes(20.0, begun=95.0)}, 15.0),
        ({"state": S.DOWN, "comeback": ComebackTimes(20.0, again=103.0)}, 23.0),
        ({"state": S.STOPPED, "comeback": ComebackTimes(20.0)}, 20.0),
        ({"state": S.STOPPED}, LOOK_AGAIN_S),
    ],
)
def test_time_until_a_replica_is_there(row: dict[str, Any], seconds: float) -> None:
    told = RoutedRow("a", "/a", 256, **({"at_once": row["state"] is S.READY} | row))
    assert told.comes_s(100.0) == seconds


# -- pace -------------------------------------------------------------------------------


def served(pace: ReplicaPace, begin: float, count: int, each_s: float) -> float:
    """Send `count` requests one after the other, each for `each_s`; return the time at which the
    last one ends.
    """
    now = begin
    for _ in range(count):
        pace.begins(now)
        now += each_s
        pace.ends(now, well=True)
    return now


def test_a_rate_is_of_the_time_in_which_there_was_something_to_do() -> None:
    pace = ReplicaPace()
    now = served(pace, 10.0, LEAST - 1, 0.5)
    assert pace.rate(now) == 0.0, "too few"
    now = served(pace, now + 1000.0, LEAST, 0.5)
    assert pace.rate(now) == pytest.approx(2.0, rel=0.05)
    assert pace.rate(now + 1e6) == pace.rate(now), "nothing is forgotten while nothing happens"


def test_what_runs_side_by_side_counts_together() -> None:
    pace = ReplicaPace()
    for _ in range(10):
        pace.begins(0.0)
    for _ in range(10):
        pace.ends(5.0, well=True)
    assert pace.rate(5.0) == pytest.approx(2.0)


def test_one_that_is_stuck_becomes_slower_and_slower() -> None:
    pace = ReplicaPace()
    now = served(pace, 0.0, 100, 0.1)
    first = pace.rate(now)
    pace.begins(now)
    assert 0 < pace.rate(now + 10 * HALF_S) < first / 100


def test_failures_are_no_answers() -> None:
    pace = ReplicaPace()
    now = served(pace, 0.0, LEAST, 1.0)
    for _ in range(50):
        pace.begins(now)
        now += 0.01
        pace.ends(now, well=False)
    assert pace.rate(now) < 1.0


def test_the_expected_wait_is_by_the_rates_that_were_seen() -> None:
    slow, fast = replace(tenant("a-slow"), pace=ReplicaPace()), tenant("b-fast")
    served(slow.pace, 0.0, LEAST, 1.0)
    served(fast.pace, 0.0, LEAST, 0.1)
    slow.in_flight, fast.in_flight = 1, 5
    assert chosen(slow, fast) == ("b-fast", False)
    fast.in_flight = 11
    assert chosen(slow, fast) == ("a-slow", False)


# -- quarantine over replicas -----------------------------------------------------------


def replicas() -> tuple[RoutedTenant, RoutedTenant]:
    """Two replicas of a tenant with one common quarantine of request bodies."""
    quarantine = ReplicaQuarantine()
    one, two = (replace(tenant(name), quarantine=quarantine) for name in ("one", "two"))
    return one, two


FAULT = Ending(status=-11)


def test_a_culprit_of_one_is_refused_by_the_other() -> None:
    one, two = replicas()
    one.begins(FACTS, 1.0)
    one.breaks("body", 1.0)
    refused = two.refuses("body", 1.0)
    assert refused is not None and not refused.known, "until the end is judged"
    blame = one.ended(FAULT, 2.0)
    assert blame.culprit is not None
    refused = two.refuses("body", 3.0)
    assert refused is not None and refused.known
    assert two.refuses("other", 3.0) is None


def test_a_suspect_of_one_is_the_culprit_at_the_other() -> None:
    """A body ran beside another one when an engine ended, and beside a third when the other
    replica's engine ended. Each end alone leaves two suspects; both together name it the culprit.
    """
    one, two = replicas()
    for body in ("body", "beside"):
        one.begins(FACTS._replace(body_digest=body), 1.0)
    assert one.ended(FAULT, 2.0).culprit is None
    for body in ("body", "beside"):
        one.ends(0, body, 2.0, well=False)
    assert two.refuses("body", 3.0) is None
    for body in ("body", "third"):
        two.begins(FACTS._replace(body_digest=body), 3.0)
    blame = two.ended(FAULT, 4.0)
    assert blame.culprit is not None and blame.culprit.body_digest == "body"


def test_what_an_earlier_router_has_learned_holds_on_all_devices() -> None:
    quarantine = ReplicaQuarantine()
    one, two = RoutedTenants("one", quarantine), RoutedTenants("two", quarantine)
    first = Suspects()
    first.remember({"culprit": 90.0}, {"suspect": 90.0})
    row = RoutedRow("a", "/a", 256, S.READY)
    known = RoutedTenant(row, suspects=first)
    one.begin(9.0, {"a": known.memory})
    for tenants in (one, two):
        tenants.holds(type(one.table)((row,)))
    refused = two["a"].refuses("culprit", 50.0)
    assert refused is not None and refused.known and refused.wait_s == 40.0
    assert quarantine.suspects("a", "suspect", 50.0)
    assert two["a"].refuses("culprit", 91.0) is None


def test_one_device_has_its_suspects_alone() -> None:
    (row,) = (RoutedRow("a", "/a", 256, S.READY),)
    alone = RoutedTenant(row)
    alone.begins(FACTS, 1.0)
    alone.breaks("body", 1.0)
    assert alone.refuses("body", 1.0) is None
    alone.ended(FAULT, 2.0)
    refused = alone.refuses("body", 3.0)
    assert refused is not None and refused.known


@pytest.mark.parametrize(
    ("ending", "outside"),
    [
        (Ending(status=-9), True),
        (Ending(stopped=True), True),
        (Ending(status=-9, oom_kills=1), False),
        (Ending(), False),
        (Ending(hang="silent"), False),
        (Ending(status=-11), False),
        (Ending(error="ValueError"), False),
    ],
)
def test_ends_that_no_request_can_have_caused(ending: Ending, outside: bool) -> None:
    assert ending.from_outside is outside
