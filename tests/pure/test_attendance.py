"""The roster at work in a supervisor: its orders are carried out, events of engines are heard, and
requests wait.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from mirage.control.roster.needs import StateBytes, SwitchTimes
from mirage.control.roster.roster import Roster
from mirage.control.roster.rules import RosterRules
from mirage.control.roster.specs import TenantSpec
from mirage.control.roster.states import LifeState
from mirage.protocol import Report
from mirage.serve.health.device_health import DeviceHealth
from mirage.serve.roster.attendance import Attendance
from mirage.serve.roster.ticket import NotInTime, TicketState
from vmm.faults import FAULTS

pytestmark = pytest.mark.pure

OWN = StateBytes(awake=40, least=20, asleep=4, start=40, loaded=36, least_extents=2)
TIMES = SwitchTimes(sleep_s=0.1, wake_s=1.0, stop_s=0.5, warm_s=4.0, cold_s=9.0)
QUICK = RosterRules(worth=0.0, busy_s=0.0, busy_worth=0.0, patience_s=0.0, drain_s=0.0)


@dataclass
class Engines:
    """Fake of the engines: records the orders of the roster, and the states that were shown to
    clients.
    """

    orders: list[str] = field(default_factory=list)
    states: dict[str, LifeState] = field(default_factory=dict)
    shown: list[LifeState] = field(default_factory=list)

    def start(self, name: str) -> None:
        self.orders.append(f"start {name}")

    def stop_one(self, name: str, why: str) -> None:
        self.orders.append(f"stop {name}" + f": {why}" * bool(why))

    def sleep(self, name: str) -> None:
        self.orders.append(f"sleep {name}")

    def wake(self, name: str) -> None:
        self.orders.append(f"wake {name}")

    def shows(self, name: str, state: LifeState) -> None:
        self.states[name] = state
        self.shown.append(state)


class Device:
    """A device of 50 bytes, with room for one awake tenant of 40 bytes."""

    def __init__(self, *names: str, start: str = "on_request", apart: bool = False) -> None:
        self.now, self.engines = 0.0, Engines()
        roster = Roster(50, QUICK, apart=apart)
        for name in names:
            spec = TenantSpec(name, start=start)  # type: ignore[arg-type]
            roster.applied(spec, OWN, TIMES, 0.0)
        clock = lambda: self.now  # noqa: E731
        self.health = DeviceHealth(failing=self.fails, clock=clock)
        self.attendance = Attendance(roster, self.engines, clock=clock, device=self.health)
        self.attendance.settle()

    def fails(self, reason: str) -> None:
        self.attendance.device_failed()

    def serve(self, name: str) -> None:
        """Let the tenant start for one request, and end that request."""
        ticket = self.attendance.ask(name)
        self.now += 9.0
        self.attendance.started(name, 9.0)
        assert ticket.state is TicketState.PASSED
        ticket.over()

    @property
    def said(self) -> list[str]:
        told, self.engines.orders = self.engines.orders, []
        return told


def asleep(revision: int, held: int = 4) -> Report:
    return Report(revision, False, held, 12, 0, 1, 0, asleep=True)


def awake(revision: int, extents: int = 2) -> Report:
    return Report(revision, False, 40, 0, 0, extents, 0, kv_usable_extents=extents)


def test_one_sleeps_for_another_and_wakes_again() -> None:
    made = Device("a", "b")
    made.serve("a")
    waits = made.attendance.ask("b")
    assert made.said == ["start a", "sleep a"]
    made.attendance.reported("a", asleep(2))
    assert made.said == ["start b"]
    made.attendance.started("b", 9.0)
    assert waits.state is TicketState.PASSED
    waits.over()
    again = made.attendance.ask("a")
    assert made.said == ["sleep b"]
    made.attendance.reported("b", asleep(2))
    assert made.said == ["wake a"]
    made.attendance.reported("a", replace(asleep(2), kv_usable_extents=2))
    made.attendance.reported("a", awake(3, extents=1))
    assert again.state is TicketState.WAITING, "a report from before, and one of too little KV"
    made.attendance.reported("a", awake(3))
    assert again.state is TicketState.PASSED


def test_a_drain_is_told_once_the_router_knows_it_and_what_it_passed_on_has_ended() -> None:
    made = Device("a", "b", apart=True)
    made.serve("a")
    attendance, member = made.attendance, made.attendance.roster.members["a"]
    attendance.roster.ruled(dataclasses.replace(QUICK, drain_s=10.0))
    assert attendance.passes("a") and not attendance.passes("b")
    attendance.ask("b")
    assert member.state is LifeState.DRAINING and not attendance.passes("a")
    assert (made.said, attendance.unconfirmed) == (["start a"], ["a"])
    attendance.counted("a", attendance.life("a"), 2)  # passed on before it was known
    attendance.confirmed("a")
    attendance.counted("a", attendance.life("a"), 1)
    assert made.said == []
    attendance.counted("a", attendance.life("a"), 0)
    assert made.said == ["sleep a"]


def test_a_drain_that_nobody_knows_of_waits_longer_than_requests_may() -> None:
    made = Device("a", "b", apart=True)
    made.serve("a")
    made.attendance.ask("b")
    made.now += 1000.0
    made.attendance.settle()
    assert made.said == ["start a"]
    made.attendance.confirmed("a")
    assert made.said == ["sleep a"]


def test_requests_that_came_and_ended_between_two_counts_keep_a_tenant_awake() -> None:
    made = Device("a", apart=True)
    made.serve("a")
    member = made.attendance.roster.members["a"]
    made.now += 50.0
    made.attendance.counted("a", made.attendance.life("a"), 0)
    assert (member.running, member.last_busy) == (0, made.now)


def test_what_runs_with_an_engine_ends_with_it() -> None:
    made = Device("a", apart=True)
    made.serve("a")
    attendance, member = made.attendance, made.attendance.roster.members["a"]
    before = attendance.life("a")
    attendance.counted("a", before, 3)
    assert member.running == 3
    attendance.ended("a", 0.0, failed=False)
    attendance.started("a", 1.0)
    attendance.counted("a", before, 2)
    assert member.running == 0, "the router has not seen that it ended"
    attendance.counted("a", attendance.life("a"), 1)
    assert member.running == 1


def test_one_that_ends_while_it_is_told_to_sleep_has_ended_by_itself() -> None:
    made = Device("a", "b")
    made.serve("a")
    made.attendance.ask("b")
    assert made.said == ["start a", "sleep a"]
    wants = made.attendance.ask("a")
    made.attendance.ended("a", 5.0, failed=False)
    assert made.engines.states["a"] is LifeState.DOWN
    assert made.said == ["start b"], "it rests for its pause, and others come meanwhile"
    assert wants.state is TicketState.WAITING


def test_one_that_is_told_to_stop_does_not_sleep_by_a_late_report() -> None:
    made = Device("a", "b")
    made.serve("a")
    made.attendance.wish("a", LifeState.SLEEPING)
    made.attendance.reported("a", asleep(2))
    made.attendance.wish("a", LifeState.STOPPED)
    assert made.said == ["start a", "sleep a", "stop a"]
    made.attendance.reported("a", asleep(2))
    assert made.engines.states["a"] is LifeState.DRAINING
    made.attendance.ended("a", 0.0, failed=False)
    assert made.engines.states["a"] is LifeState.STOPPED


def test_one_that_is_given_up_is_not_started_first() -> None:
    made = Device("a", start="eager")
    assert made.said == ["start a"]
    made.attendance.started("a", 9.0)
    made.attendance.ended("a", 600.0, failed=True)
    assert made.engines.states["a"] is LifeState.FAILED
    assert made.said == []


def test_who_asks_while_an_engine_is_about_to_end_waits_for_the_next() -> None:
    made = Device("a")
    made.serve("a")
    made.attendance.ends("a")
    ticket = made.attendance.ask("a")
    assert ticket.state is TicketState.WAITING
    made.attendance.ended("a", 0.0, failed=False)
    assert made.said == ["start a", "start a"]
    made.attendance.started("a", 9.0)
    assert ticket.state is TicketState.PASSED


def test_no_more_wait_for_an_end_than_for_a_start() -> None:
    made = Device("a")
    made.serve("a")
    made.attendance.ends("a")
    for _ in range(128):
        made.attendance.ask("a")
    with pytest.raises(NotInTime):
        made.attendance.ask("a")


def test_a_state_that_lasts_no_time_is_shown() -> None:
    made = Device("a")
    made.serve("a")
    made.attendance.wish("a", LifeState.SLEEPING)
    waits = made.attendance.ask("a")
    made.engines.shown.clear()
    made.attendance.reported("a", asleep(2))
    assert made.engines.shown == [LifeState.SLEEPING, LifeState.WAKING]
    assert waits.state is TicketState.WAITING


def test_one_that_broke_and_is_missed_by_nobody_is_shown_as_stopped_at_once() -> None:
    made = Device("a")
    made.attendance.ask("a").over()
    made.attendance.ended("a", 5.0, failed=False)
    assert made.engines.shown[-1] is LifeState.DOWN
    made.now += 6
    made.attendance.settle()
    assert made.engines.shown[-1] is LifeState.STOPPED


def test_who_waits_for_a_device_that_fails_is_refused_at_once_and_told_until_when() -> None:
    made = Device("a", "b")
    made.serve("a")
    waits = made.attendance.ask("b")
    made.health.met("a", FAULTS["CUDA_ERROR_ECC_UNCORRECTABLE"])
    assert waits.state is TicketState.REFUSED and "the device has failed" in waits.why
    assert waits.retry_s >= 600 + TIMES.cold_s
    made.attendance.ended("a", 0.0, failed=False)
    made.now += 300
    for name in "ab":
        with pytest.raises(NotInTime) as refused:
            made.attendance.ask(name)
        assert 309 <= refused.value.wait_s <= 330 and "has failed" in refused.value.why


def test_what_an_engine_holds_asleep_is_what_it_says() -> None:
    made = Device("a")
    made.serve("a")
    made.attendance.wish("a", LifeState.SLEEPING)
    made.attendance.reported("a", asleep(2, held=7))
    assert made.attendance.roster.room.free == 43


def test_a_wake_is_predicted_by_what_engines_measured_of_the_last_one() -> None:
    made = Device("a")
    made.serve("a")
    made.attendance.wish("a", LifeState.SLEEPING)
    made.attendance.reported("a", replace(asleep(2), sleep_s=0.5))
    times = made.attendance.roster.members["a"].times
    assert (times.sleep_s, made.attendance.ready_s("a")) == (0.5, TIMES.wake_s)
    ticket = made.attendance.ask("a")
    made.attendance.reported("a", replace(awake(3), sleep_s=0.5, wake_s=3.0))
    ticket.over()
    made.attendance.wish("a", LifeState.SLEEPING)
    made.attendance.reported("a", replace(asleep(4), sleep_s=0.25, wake_s=3.0))
    assert made.attendance.ready_s("a") == 3.0
    assert made.attendance.roster.members["a"].times.sleep_s == 0.25


def test_wakes_starts_and_who_waits_are_counted() -> None:
    made = Device("a", "b")
    made.serve("a")
    waits = made.attendance.ask("b")
    assert made.attendance.queued() == {"a": 0, "b": 1}
    made.attendance.reported("a", asleep(2))
    made.now += 9.0
    made.attendance.started("b", 9.0)
    waits.over()
    again = made.attendance.ask("a")
    made.attendance.reported("b", asleep(2))
    assert made.attendance.queued() == {"a": 1, "b": 0}
    made.now += 0.2
    made.attendance.reported("a", awake(3))
    again.over()
    assert made.attendance.queued() == {"a": 0, "b": 0}
    wakes, starts = made.attendance.wakes, made.attendance.starts
    assert (wakes["a"].count, wakes["a"].total_s) == (1, pytest.approx(0.2))
    assert wakes["b"].count == 0, "it started"
    assert [starts[name].total_s for name in "ab"] == [9.0, 9.0]
    made.attendance.ends("a")
    made.attendance.ask("a")
    assert made.attendance.queued()["a"] == 1, "who comes while an engine ends waits as well"
