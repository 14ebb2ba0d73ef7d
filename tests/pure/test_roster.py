"""Decisions of the roster: the tenants that start, wake, sleep and stop, in single cases and under
random sequences of events.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from roster_world import EPSILON, RosterWorld

from mirage.control.roster.needs import NeverServedError, StateBytes, SwitchTimes
from mirage.control.roster.orders import RosterVerb
from mirage.control.roster.roster import NoSuchMemberError, Roster
from mirage.control.roster.rules import RosterRules
from mirage.control.roster.specs import TenantSpec
from mirage.control.roster.states import Life, LifeEvent, LifeState, UnexpectedEventError
from tests.examples import examples

pytestmark = pytest.mark.pure
OWN = StateBytes(awake=40, least=20, asleep=4, start=40, loaded=36)
TIMES = SwitchTimes(sleep_s=0.1, wake_s=0.9, stop_s=1.0, warm_s=4.0, cold_s=9.0)
SLOW = RosterRules(busy_s=5.0, busy_worth=0.0, patience_s=2.0, drain_s=10.0)
ENDLESS = {"wait_s": inf, "queued": 1000}


def world(device: int, names: str, rules: RosterRules | None = None, **spec: Any) -> RosterWorld:
    """A device with equal tenants that are not started; requests wait for as long as it takes.
    `spec` sets fields of each tenant.
    """
    made = RosterWorld(device, rules or SLOW)
    for name in names:
        asked = {"start": "on_request", **ENDLESS, **spec}
        made.apply(TenantSpec(name, **asked), OWN, TIMES)
    return made


def served(made: RosterWorld, name: str) -> None:
    """Send one request, and return once it has been served."""
    made.ask(name)
    made.advance(10)
    made.end(name)


def said(made: RosterWorld) -> list[str]:
    """Orders of the roster since the last call, such as "start a"."""
    found = [f"{order.verb} {order.tenant}" for _, order in made.log]
    made.log.clear()
    return found


def states(made: RosterWorld) -> str:
    return " ".join(f"{name}:{m.state}" for name, m in made.roster.members.items())


# -- coming -----------------------------------------------------------------------------


def test_twenty_requests_are_one_start_and_one_wake() -> None:
    made = world(100, "a")
    assert {made.ask("a") for _ in range(20)} == {"waits"}
    assert said(made) == ["start a"]
    made.advance(9)
    assert made.engines["a"].running == 20
    for _ in range(20):
        made.end("a")
    made.wish("a", LifeState.SLEEPING)
    made.advance(1)
    assert {made.ask("a") for _ in range(20)} == {"waits"}
    assert said(made) == ["sleep a", "wake a"]
    made.advance(1)
    assert made.engines["a"].running == 20 and said(made) == []


def test_an_idle_one_sleeps_for_who_is_asked() -> None:
    made = world(50, "ab")
    served(made, "a")
    said(made)
    made.ask("b")
    assert said(made) == ["sleep a"]
    made.advance(0.1)
    assert said(made) == ["start b"]
    assert states(made) == "a:sleeping b:starting"


def test_the_most_recently_used_of_the_idle_sleeps_and_low_priorities_before() -> None:
    made = world(90, "abc")
    served(made, "a")
    served(made, "b")
    said(made)
    made.ask("c")
    assert said(made)[0] == "sleep b"
    made = world(90, "abc")
    made.apply(TenantSpec("b", priority=1, **ENDLESS), OWN, TIMES)
    served(made, "a")
    served(made, "b")
    said(made)
    made.ask("c")
    assert said(made)[0] == "sleep a"


def test_who_runs_drains_first_and_only_for_one_that_has_waited() -> None:
    made = world(50, "ab")
    made.ask("a")
    made.advance(20)
    said(made)
    made.ask("b")
    assert said(made) == []
    made.advance(1.99)
    assert said(made) == []
    made.advance(0.01)
    assert said(made) == ["drain a"]
    assert made.ask("a") == "waits"
    made.end("a")
    assert said(made) == ["sleep a"]


def test_an_operator_says_how_long_what_runs_has_and_his_newest_word_counts() -> None:
    made = world(50, "a")
    made.ask("a")
    made.advance(20)
    made.wish("a", LifeState.STOPPED, 60.0)
    said(made)
    made.advance(59.9)
    assert said(made) == []
    made.wish("a", LifeState.STOPPED, 30.0)
    made.advance(29.9)
    assert said(made) == []
    made.wish("a", LifeState.STOPPED)
    made.advance(9.9)
    assert said(made) == []
    made.advance(0.2)
    assert said(made) == ["stop a"]


def test_it_says_when_its_own_times_end_its_state() -> None:
    made = world(50, "ab", keep_alive_s=30.0, stop_after_s=100.0)
    one = made.roster.members["a"]
    assert one.yields_at == inf
    made.ask("a")
    made.advance(20)
    assert one.yields_at == inf, "a request runs"
    made.end("a")
    assert one.yields_at == made.now + 30
    made.advance(31)
    assert one.state is LifeState.SLEEPING and one.yields_at == one.since + 100


def test_a_drain_ends_and_what_still_runs_waits_until_it_is_awake_again() -> None:
    made = world(50, "ab")
    made.ask("a")
    made.advance(20)
    made.ask("b")
    said(made)
    made.advance(2 + 9.99)
    assert said(made) == ["drain a"]
    made.advance(0.02)
    assert said(made) == ["sleep a"]
    made.advance(0.1)
    assert said(made) == ["start b"]
    made.advance(9)
    assert states(made) == "a:sleeping b:ready" and made.engines["a"].inside == 1
    made.end("b")
    made.advance(2.1)
    assert said(made) == ["sleep b", "wake a"]
    made.advance(2)
    assert made.engines["a"].running == 1


@pytest.mark.parametrize("asleep_s", [0.0, 5.0])
def test_one_that_falls_asleep_or_sleeps_is_restarted_and_not_only_woken(asleep_s: float) -> None:
    made = world(50, "a")
    served(made, "a")
    made.wish("a", LifeState.SLEEPING)
    made.advance(asleep_s)
    said(made)
    made.restart("a")
    made.advance(20)
    assert said(made) == ["stop a", "start a"]
    assert made.state("a") is LifeState.READY


@pytest.mark.parametrize("after_s", [0.0, 5.0, 20.0])
def test_one_that_is_asked_for_is_restarted_at_once_from_any_state(after_s: float) -> None:
    made = world(50, "a")
    if after_s:
        made.ask("a")
    made.advance(after_s)
    said(made)
    made.restart("a")
    made.advance(SLOW.drain_s + 15)
    assert said(made)[-2:] == (["stop a", "start a"] if after_s else ["start a"])
    assert made.state("a") is LifeState.READY


def test_an_engine_that_does_not_sleep_when_told_is_stopped_and_its_place_is_had() -> None:
    made = world(50, "ab", replace(SLOW, obey_s=30.0))
    served(made, "a")
    made.engines["a"].deaf = True
    said(made)
    made.ask("b")
    made.roster.drained("a", made.now)
    made.advance(29.9)
    assert said(made) == ["sleep a"]
    made.advance(0.2)
    ((_, order),) = made.log
    assert said(made) == ["stop a"] and order.why == "it was told to sleep and does not in 30 s"
    made.advance(1)
    assert said(made) == ["start b"]


def test_nobody_yields_before_its_way_out_and_back_was_worth_it() -> None:
    made = world(50, "ab")
    for name in "ab":
        served(made, name)
    made.ask("a")
    made.advance(1.1)
    made.end("a")
    said(made)
    made.ask("b")
    assert states(made) == "a:ready b:sleeping" and said(made) == []
    ready_at = made.roster.members["a"].ready_at
    made.advance(ready_at + 1.0 - made.now - 0.001)
    assert said(made) == []
    made.advance(0.002)
    assert said(made) == ["sleep a"]


def test_a_pinned_one_never_yields() -> None:
    made = world(50, "ab", pinned=False)
    made.apply(
        TenantSpec("c", start="on_request", **ENDLESS), replace(OWN, start=10, awake=10), TIMES
    )
    made.apply(
        TenantSpec("a", pinned=True, **ENDLESS),
        replace(OWN, awake=10, start=10),
        TIMES,
    )
    served(made, "a")
    served(made, "c")
    said(made)
    made.ask("b")
    made.advance(50)
    assert made.state("a") is LifeState.READY and made.state("b") is LifeState.READY


def test_a_pinned_one_sleeps_by_its_own_times() -> None:
    made = world(50, "a", pinned=True, keep_alive_s=30.0)
    served(made, "a")
    said(made)
    made.advance(29)
    assert said(made) == []
    made.advance(1)
    assert said(made) == ["sleep a"]


def test_all_or_nothing_a_sleep_that_brings_no_wake_is_not_asked_for() -> None:
    made = world(90, "ab")
    made.apply(
        TenantSpec("c", start="on_request", **ENDLESS), replace(OWN, awake=80, start=80), TIMES
    )
    served(made, "a")
    made.ask("b")
    made.advance(9)
    said(made)
    made.ask("c")
    assert said(made) == []
    made.end("b")
    made.advance(1)
    assert sorted(said(made))[:2] == ["sleep a", "sleep b"]


def test_sleeping_ones_stop_only_where_sleeping_alone_is_not_enough() -> None:
    made = world(48, "abc", RosterRules(asleep_part=1.0))
    for name in "abc":
        served(made, name)
    said(made)
    assert states(made) == "a:sleeping b:sleeping c:ready"
    own = replace(OWN, awake=42, start=42)
    made.apply(TenantSpec("d", start="on_request", **ENDLESS), own, TIMES)
    made.ask("d")
    made.advance(20)
    assert said(made) == ["stop a", "stop b", "sleep c", "start d"]


def test_who_slept_for_long_stops_before_one_that_runs_yields() -> None:
    made = world(50, "abc", replace(SLOW, rest_worth=4.0, asleep_part=1.0))
    for name in "abc":
        served(made, name)
    small = replace(OWN, awake=8, start=8)
    made.apply(TenantSpec("d", start="on_request", **ENDLESS), small, TIMES)
    made.ask("c")
    made.advance(30)
    said(made)
    assert states(made) == "a:sleeping b:sleeping c:ready d:stopped"
    made.ask("d")
    assert said(made) == ["stop a", "stop b"], "and not: drain c"
    made.advance(10)
    assert states(made) == "a:stopped b:stopped c:ready d:ready"


def test_who_comes_to_have_slept_for_long_stops_then() -> None:
    made = world(50, "abc", replace(SLOW, rest_worth=4.0, asleep_part=1.0, busy_s=1e3))
    for name in "abc":
        served(made, name)
    small = replace(OWN, awake=8, start=8)
    made.apply(TenantSpec("d", start="on_request", **ENDLESS), small, TIMES)
    made.ask("c")
    said(made)
    made.ask("d")
    assert said(made) == [] and states(made).startswith("a:sleeping b:sleeping c:ready")
    made.advance(40)
    assert states(made) == "a:stopped b:stopped c:ready d:ready"


@pytest.mark.parametrize(("busy_worth", "drained_at"), [(0.0, 5.0), (2.0, 22.0)])
def test_who_runs_is_awake_for_as_long_as_its_way_and_its_drain_are_worth(
    busy_worth: float, drained_at: float
) -> None:
    made = world(50, "ab", replace(SLOW, busy_worth=busy_worth))
    made.ask("a")
    made.advance(9)
    made.ask("b")
    said(made)
    made.advance(drained_at - 0.01)
    assert said(made) == []
    made.advance(0.02)
    assert said(made) == ["drain a"]


@pytest.mark.parametrize(
    ("requests", "spare_part", "asleep"), [(2, 0.1, 2), (1, 0.1, 1), (2, 0.0, 1), (2, 0.9, 1)]
)
def test_who_comes_leaves_memory_to_those_that_run_if_it_can_be_had(
    requests: int, spare_part: float, asleep: int
) -> None:
    """`d` comes while `c` has `requests` requests. One idle tenant sleeps for it. With two
    requests, a second one sleeps too, so that `c` has the spare part of memory for its second
    request, unless that part could not be had anyway.
    """
    made = world(132, "abcd", replace(SLOW, spare_part=spare_part))
    for name in "abc":
        served(made, name)
    made.advance(20)
    for _ in range(requests):
        made.ask("c")
    said(made)
    made.ask("d")
    assert sum(made.state(name) is not LifeState.READY for name in "ab") == asleep
    made.advance(10)
    assert made.state("c") is made.state("d") is LifeState.READY


def test_where_all_can_be_awake_nobody_yields_for_memory_to_spare() -> None:
    made = world(160, "abcd", replace(SLOW, spare_part=0.1))
    for name in "abc":
        served(made, name)
    made.advance(20)
    made.ask("c")
    made.ask("c")
    said(made)
    made.ask("d")
    assert said(made) == ["start d"]
    assert all(made.state(name) is LifeState.READY for name in "abc")


def big_before_small(big: int) -> RosterWorld:
    """A device of 100 bytes, 80 of which two busy tenants have. A tenant of `big` bytes was
    requested, and after it one of 10 bytes.
    """
    made = world(100, "ab")
    for name, nbytes in (("big", big), ("small", 10)):
        own = replace(OWN, awake=nbytes, start=nbytes)
        made.apply(TenantSpec(name, start="on_request", **ENDLESS), own, TIMES)
    made.ask("a")
    made.ask("b")
    made.advance(9)
    said(made)
    made.ask("big")
    made.ask("small")
    return made


def test_a_small_one_passes_for_bytes_that_the_first_does_not_need() -> None:
    made = big_before_small(45)
    assert said(made) == ["start small"]
    made.end("a")
    made.advance(2)
    assert said(made) == ["sleep a", "start big"]


def test_but_not_for_bytes_that_the_first_waits_for() -> None:
    made = big_before_small(90)
    assert said(made) == []


# -- by themselves ----------------------------------------------------------------------


def test_it_sleeps_after_keep_alive_and_stops_after_stop_after() -> None:
    made = world(100, "a", keep_alive_s=30.0, stop_after_s=100.0)
    made.ask("a")
    made.advance(60)
    assert said(made) == ["start a"], "not while a request runs"
    made.end("a")
    made.advance(29)
    made.ask("a")
    made.end("a")
    made.advance(29)
    assert said(made) == []
    made.advance(1)
    assert said(made) == ["sleep a"]
    made.advance(101)
    assert said(made) == ["stop a"]
    made.advance(1)
    assert (states(made), made.roster.members["a"].life.place) == ("a:stopped", "host")


def test_a_hollow_start_needs_no_place_and_keeps_its_own_in_the_line() -> None:
    made = world(50, "a")
    hollow = replace(OWN, start=OWN.asleep)
    for name in "bc":
        made.apply(TenantSpec(name, start="on_request", **ENDLESS), hollow, TIMES)
    made.ask("a")
    made.advance(9)
    made.ask("b")
    made.ask("c")
    assert said(made) == ["start a", "start b", "start c"]
    made.end("a")
    made.advance(10)
    assert said(made) == ["sleep a", "wake b"]
    assert [m.name for m in made.roster.line] == ["c"]


def test_eager_ones_start_and_sleep_for_one_another_until_they_are_too_many() -> None:
    made = world(55, "abcd", RosterRules(asleep_part=0.25), start="eager")
    made.advance(100)
    assert said(made) == [
        "start a",
        "sleep a",
        "start b",
        "sleep b",
        "start c",
        "sleep c",
        "start d",
    ]


def test_an_eager_start_never_drains_anybody() -> None:
    made = world(50, "a")
    made.ask("a")
    made.advance(9)
    made.apply(TenantSpec("b", **ENDLESS), OWN, TIMES)
    made.advance(100)
    assert states(made) == "a:ready b:stopped"
    made.end("a")
    assert said(made)[-1] == "sleep a"


def test_a_start_borrows_what_its_share_does_not_hold() -> None:
    made = world(60, "")
    own = replace(OWN, awake=20, start=50)
    for name in "ab":
        made.apply(TenantSpec(name, start="on_request", **ENDLESS), own, TIMES)
    made.ask("a")
    made.ask("b")
    (_, order), *_ = made.log
    assert (order.verb, order.nbytes, order.least) == (RosterVerb.START, 50, 20)
    assert states(made) == "a:starting b:stopped"
    made.advance(9)
    assert made.roster.room.free == 40, "it has given it back"


# -- refusing ---------------------------------------------------------------------------


def test_a_full_queue_refuses_with_the_predicted_time() -> None:
    made = world(100, "a", queued=2)
    assert [made.ask("a") for _ in range(3)] == ["waits", "waits", "refused"]
    made.advance(4)
    assert made.roster.asked("a", made.now).retry_s == pytest.approx(5.0)


def test_who_cannot_come_in_time_is_refused_and_comes_all_the_same() -> None:
    made = world(100, "a", wait_s=5.0)
    assert made.ask("a") == "refused"
    assert said(made) == ["start a"]
    made.advance(9)
    assert made.ask("a") == "passed on"


def test_one_that_is_overdue_is_expected_after_as_long_again() -> None:
    made = world(50, "a", queued=1)
    made.ask("a")
    roster = made.roster
    assert roster.asked("a", 8.0).retry_s == pytest.approx(1.0)
    assert roster.asked("a", 9.0).retry_s == roster.asked("a", 30.0).retry_s == pytest.approx(9.0)


def test_the_prediction_tells_who_must_yield_first() -> None:
    made = world(50, "ab")
    served(made, "a")
    assert made.roster.predicted_s("b", made.now) == pytest.approx(0.1 + 9.0)
    made.ask("a")
    assert made.roster.predicted_s("b", made.now) == pytest.approx(4.0 + 10 + 0.1 + 9, abs=4.1)


@pytest.mark.parametrize(("sleeps", "leaves_s"), [(True, 0.1), (False, 1.0)])
def test_the_prediction_has_the_time_in_which_another_gives_its_memory_back(
    sleeps: bool, leaves_s: float
) -> None:
    """`a` has long been idle, and yields once `b` is asked for. It sleeps under policy mirage, and
    stops under any other.
    """
    made = world(50, "ab", replace(SLOW, sleeps=sleeps))
    served(made, "a")
    made.advance(100)
    assert made.roster.predicted_s("b", made.now) == pytest.approx(leaves_s + 9.0)
    said(made)
    asked_at = made.now
    made.ask("b")
    assert said(made) == ["sleep a" if sleeps else "stop a"]
    made.advance(leaves_s + 9.0)
    assert made.state("b") is LifeState.READY
    assert made.roster.members["b"].ready_at - asked_at == pytest.approx(leaves_s + 9.0, abs=0.01)


def test_a_request_that_has_waited_as_long_as_it_may_is_refused() -> None:
    made = world(50, "a")
    made.apply(TenantSpec("b", start="on_request", wait_s=30.0), OWN, TIMES)
    made.ask("a")
    made.advance(9)
    assert made.ask("b") == "waits"
    made.advance(17)
    made.crash("b", retry_s=100.0)
    made.advance(12.9)
    assert "refuse b" not in said(made)
    made.advance(0.2)
    assert said(made) == ["refuse b"]


def test_who_waits_for_one_that_is_given_up_is_refused_at_once_if_its_rest_is_too_long() -> None:
    made = world(50, "a", wait_s=100.0)
    made.ask("a")
    made.advance(9)
    made.crash("a", retry_s=3.0)
    assert made.ask("a") == "waits"
    made.advance(3)
    assert made.ask("a") == "waits" and made.state("a") is LifeState.STARTING
    made.log.clear()
    made.crash("a", retry_s=95.0)
    assert made.log == [], "it is not given up"
    made.give_up("a", retry_s=95.0)
    [(at, refusal)] = made.log
    assert (at, refusal.verb, refusal.requests) == (12.0, RosterVerb.REFUSE, 1), "the older one"
    assert refusal.seconds == 95.0 + TIMES.warm_s
    made.advance(95 + TIMES.warm_s)
    assert made.state("a") is LifeState.READY and made.engines["a"].running == 1


# -- engines that end -------------------------------------------------------------------


def test_one_that_ended_comes_again_after_its_pause_and_behind_the_others() -> None:
    made = world(50, "ab")
    made.ask("a")
    made.advance(9)
    made.ask("b")
    made.crash("a", retry_s=3.0)
    assert said(made) == ["start a", "start b"]
    made.advance(9)
    made.end("b")
    made.advance(9)
    assert said(made) == ["sleep b", "start a"]


@pytest.mark.parametrize("failed", [False, True])
@pytest.mark.parametrize("act", ["wake", "restart"])
def test_one_that_broke_rests_no_longer_once_its_operator_wants_it(act: str, failed: bool) -> None:
    made = world(50, "a")
    made.ask("a")
    made.advance(9)
    made.crash("a", retry_s=600.0)
    if failed:
        made.give_up("a", 600.0)
    made.advance(10)
    said(made)
    assert made.ask("a") == "waits" and said(made) == []
    made.wish("a", LifeState.READY) if act == "wake" else made.restart("a")
    assert said(made) == ["start a"]
    made.advance(9)
    assert made.state("a") is LifeState.READY


def test_one_that_its_operator_woke_is_started_until_it_is_given_up() -> None:
    made = world(50, "a")
    made.wish("a", LifeState.READY)
    for _ in range(3):
        assert said(made) == ["start a"]
        made.crash("a", retry_s=3.0)
        made.advance(3)
    assert said(made) == ["start a"]
    made.crash("a", retry_s=3.0)
    made.give_up("a", 600.0)
    made.advance(601)
    assert said(made) == ["start a"], "once more, after the rest"
    made.crash("a", retry_s=3.0)
    made.advance(601)
    assert said(made) == [] and made.state("a") is LifeState.STOPPED


def test_what_cannot_be_is_an_error() -> None:
    made = world(50, "a")
    with pytest.raises(UnexpectedEventError):
        made.roster.heard("a", LifeEvent.WOKE, 0.0)
    with pytest.raises(UnexpectedEventError, match="an order"):
        made.roster.heard("a", LifeEvent.START, 0.0)
    for call in (made.roster.asked, lambda n, t: made.roster.heard(n, LifeEvent.WOKE, t)):
        with pytest.raises(NoSuchMemberError):
            call("z", 0.0)


def test_who_is_removed_drains_stops_and_is_forgotten() -> None:
    made = world(50, "ab")
    made.ask("a")
    made.advance(9)
    made.remove("a")
    assert said(made) == ["start a", "drain a"]
    with pytest.raises(NoSuchMemberError):
        made.roster.asked("a", made.now)
    made.end("a")
    made.advance(1)
    assert states(made) == "b:stopped" and made.roster.room.free == 50


def test_who_is_declared_again_while_it_goes_comes_back_for_what_waits_in_it() -> None:
    made = world(50, "ab")
    made.ask("a")
    made.advance(20)
    made.ask("b")
    made.advance(15)  # it drained, and sleeps with its request
    assert made.engines["a"].inside == 1
    made.roster.removed("a")
    made.decide()
    made.apply(TenantSpec("a", start="on_request", **ENDLESS), OWN, TIMES)
    made.roster.check()


def test_what_can_never_be_served_is_refused_and_changes_nothing() -> None:
    roster = Roster(100)
    big = replace(OWN, awake=101, start=101)
    with pytest.raises(NeverServedError, match="1 are missing"):
        roster.applied(TenantSpec("a"), big, TIMES, 0.0)
    assert not roster.members
    roster.applied(TenantSpec("a", pinned=True), OWN, TIMES, 0.0)
    with pytest.raises(NeverServedError, match=r"beside 40 .* 1 are missing"):
        roster.applied(TenantSpec("b"), replace(OWN, awake=41, start=61), TIMES, 0.0)
    roster.applied(TenantSpec("b"), replace(OWN, start=60, awake=60), TIMES, 0.0)
    with pytest.raises(NeverServedError, match=r"'b'.*beside 41"):
        roster.applied(TenantSpec("a", pinned=True), replace(OWN, awake=41), TIMES, 0.0)
    assert roster.members["a"].own is OWN


def test_a_pinned_one_with_more_bytes_than_declared_anew_yields_until_its_next_process() -> None:
    """`a` is awake with 40 of 60 bytes, and is declared anew with 10, and pinned. `b` was checked
    beside these 10. It is served, and `a` comes back with 10 bytes and stays.
    """
    made = world(60, "a")
    made.ask("a")
    made.advance(9)
    made.end("a")
    small = StateBytes(10, 6, 5, 10, 5)
    made.apply(TenantSpec("a", start="on_request", pinned=True, **ENDLESS), small, TIMES)
    made.apply(TenantSpec("b", start="on_request", **ENDLESS), OWN, TIMES)
    assert made.ask("b") == "waits"
    made.advance(60)
    assert made.state("b") is LifeState.READY
    made.ask("a")
    made.end("b")
    made.advance(60)
    assert made.state("a") is LifeState.READY


def test_one_that_is_there_already_is_adopted() -> None:
    roster = Roster(100)
    roster.applied(TenantSpec("a"), OWN, TIMES, 0.0)
    roster.adopted("a", Life(LifeState.SLEEPING), 0.0)
    assert (roster.room.free, roster.decide(0.0)) == (96, [])


# -- any sequence of events -------------------------------------------------------------

SIZES = st.tuples(st.integers(0, 12), st.integers(1, 50), st.integers(0, 20))
SECONDS = st.sampled_from([0.01, 0.3, 1.0, 2.5, 8.0, 40.0])
RULES = st.builds(
    RosterRules,
    victims=st.sampled_from(["mru", "lru"]),
    worth=st.sampled_from([0.5, 1.0, 3.0]),
    busy_s=st.sampled_from([0.0, 5.0]),
    busy_worth=st.sampled_from([0.0, 2.0]),
    rest_worth=st.sampled_from([0.0, 4.0]),
    patience_s=st.sampled_from([0.0, 2.0]),
    drain_s=st.sampled_from([0.0, 4.0]),
    sleeps=st.sampled_from([True, True, False]),
    asleep_part=st.sampled_from([0.1, 0.5, 1.0]),
    spare_part=st.sampled_from([0.0, 0.1, 0.4]),
)


class RosterMachine(RuleBasedStateMachine):
    """Tenants that come, leave, fail and get requests, in any order, in a `RosterWorld`."""

    @initialize(rules=RULES, device=st.integers(60, 160), part=st.sampled_from([0.3, 1.0]))
    def begin(self, rules: RosterRules, device: int, part: float) -> None:
        self.world = RosterWorld(device, rules, part)

    @rule(
        name=st.sampled_from("abcdef"),
        sizes=SIZES,
        times=st.tuples(SECONDS, SECONDS, SECONDS),
        spec=st.fixed_dictionaries(
            {
                "start": st.sampled_from(["eager", "on_request"]),
                "keep_alive_s": st.sampled_from([0.0, 5.0, inf, inf]),
                "stop_after_s": st.sampled_from([0.0, 20.0, inf]),
                "keep_weights": st.sampled_from(["host", "none"]),
                "priority": st.integers(0, 1),
                "pinned": st.sampled_from([False, False, False, True]),
                "queued": st.integers(0, 5),
                "wait_s": st.sampled_from([0.0, 10.0, 60.0, inf]),
            }
        ),
    )
    def apply(self, name: str, sizes: Any, times: Any, spec: dict[str, Any]) -> None:
        asleep, more, borrowed = sizes
        # Without any bytes borrowed it starts hollow.
        start = asleep + more + borrowed if borrowed else asleep
        own = StateBytes(asleep + more, asleep + 1, asleep, start, more)
        sleep_s, wake_s, start_s = times
        switch = SwitchTimes(sleep_s, wake_s, sleep_s, wake_s + start_s, wake_s + 2 * start_s)
        self.world.calm = False
        try:
            self.world.apply(TenantSpec(name, **spec), own, switch)
        except NeverServedError:
            return

    def some(self, number: int) -> str | None:
        names = [n for n, m in self.world.roster.members.items() if not m.removed]
        return names[number % len(names)] if names else None

    @rule(number=st.integers(0, 5), times=st.integers(1, 8))
    def ask(self, number: int, times: int) -> None:
        for _ in range(times):
            if name := self.some(number):
                self.world.ask(name)

    @rule(number=st.integers(0, 5))
    def end(self, number: int) -> None:
        if name := self.some(number):
            self.world.end(name)

    @rule(number=st.integers(0, 5))
    def leave(self, number: int) -> None:
        if name := self.some(number):
            self.world.leave(name)

    @rule(number=st.integers(0, 5), retry_s=st.sampled_from([0.0, 1.0, 30.0]), often=st.booleans())
    def crash(self, number: int, retry_s: float, often: bool) -> None:
        if name := self.some(number):
            self.world.crash(name, retry_s)
            if often and self.world.state(name) is LifeState.DOWN:
                self.world.give_up(name, 10 * retry_s)

    @precondition(lambda self: len(self.world.roster.members) > 2)
    @rule(number=st.integers(0, 5))
    def remove(self, number: int) -> None:
        if name := self.some(number):
            self.world.remove(name)

    @rule(
        number=st.integers(0, 5),
        wish=st.sampled_from([LifeState.READY, LifeState.SLEEPING, LifeState.STOPPED]),
    )
    def wish(self, number: int, wish: LifeState) -> None:
        if name := self.some(number):
            self.world.wish(name, wish)

    @rule(number=st.integers(0, 5))
    def restart(self, number: int) -> None:
        if name := self.some(number):
            self.world.restart(name)

    @rule(seconds=SECONDS)
    def wait(self, seconds: float) -> None:
        self.world.advance(seconds)

    def teardown(self) -> None:
        """At the end all running requests end and none comes: all waiting requests are served or
        refused.
        """
        if not hasattr(self, "world"):
            return
        for name in [*self.world.engines]:
            while self.world.engines[name].running:
                self.world.end(name)
        for _ in range(200):
            self.world.advance(20)
            for name in [*self.world.engines]:
                while name in self.world.engines and self.world.engines[name].running:
                    self.world.end(name)
        assert not any(e.waiting or e.inside for e in self.world.engines.values())


RosterMachine.TestCase.settings = examples(
    200, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow]
)
TestRosterMachine = RosterMachine.TestCase


@st.composite
def pressed(draw: st.DrawFn) -> RosterWorld:
    """Drawn world of up to six tenants that rarely fit together, equal or not, none pinned;
    requests wait for as long as it takes.
    """
    device = draw(st.integers(60, 120))
    made = RosterWorld(device, draw(RULES), 1.0)
    for name in "abcdef"[: draw(st.integers(2, 6))]:
        asleep, more = draw(st.tuples(st.integers(0, 10), st.integers(20, 50)))
        start = draw(st.sampled_from([asleep, asleep + more]))
        own = StateBytes(asleep + more, asleep, asleep, start, more)
        wake_s, start_s = draw(
            st.tuples(st.sampled_from([0.1, 1.0, 3.0]), st.sampled_from([2, 20]))
        )
        times = SwitchTimes(0.1, wake_s, 0.5, wake_s + start_s, wake_s + 2 * start_s)
        made.apply(TenantSpec(name, start="on_request", **ENDLESS), own, times)
    return made


@pytest.mark.slow
@given(pressed(), st.integers(0, 2**32), st.floats(0, 1))
@examples(60)
def test_under_any_pressure_nobody_waits_beyond_the_bound_and_nothing_flaps(
    made: RosterWorld, seed: int, busy: float
) -> None:
    """Random requests for more tenants than fit. Each tenant is ready within the bound, which
    `RosterWorld.check` checks at every event, and none sleeps again before its least time awake.
    """
    rng = Random(seed)
    names = [*made.engines]
    for _ in range(60):
        for name in names:
            if rng.random() < 0.7:
                made.ask(name)
            if rng.random() > busy:
                while made.engines[name].running:
                    made.end(name)
        made.advance(rng.choice([0.1, 1.0, 5.0]))
    made.advance(made.longest_wait_s())
    ready: dict[str, float] = {}
    for time, order in made.log:
        member = made.roster.members[order.tenant]
        if order.verb in (RosterVerb.START, RosterVerb.WAKE):
            ready[order.tenant] = time
        if order.verb is RosterVerb.SLEEP:
            spent = time - ready.pop(order.tenant)
            least = member.times.wake_s + made.roster.rules.worth * (0.1 + member.times.wake_s)
            assert spent >= least - EPSILON, (order, spent, least)
    counted = Counter(order.tenant for _, order in made.log if order.verb in ("start", "wake"))
    assert set(counted) == set(names), "everybody came"


def test_two_that_always_have_work_share_by_long_turns() -> None:
    made = world(50, "ab")
    for _ in range(1000):
        for name in "ab":
            made.ask(name)
        made.advance(1.0)
    swaps = [order for _, order in made.log if order.verb is RosterVerb.WAKE]
    assert 1000 / (9 * 2 + 7) < len(swaps) < 1000 / 10
    counted = Counter(order.tenant for order in swaps)
    assert abs(counted["a"] - counted["b"]) <= 1


def test_a_tenant_declared_again_has_its_weights_where_they_were() -> None:
    made = world(50, "a")
    roster, member = made.roster, made.roster.members["a"]
    roster.kept("a", kept=False)
    assert member.life.keeps is False
    roster.applied(replace(member.spec, priority=5), member.own, member.times, made.now)
    assert member.life.keeps is False
    roster.kept("a", kept=True)
    assert (member.life.place, member.comes_s) == ("host", member.times.warm_s)
