"""Turns under temporal sharing: never two tenants step, and each with work gets a turn."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from scheduler.sharing import SharingError, Spatial, Temporal, make_sharing
from tests.examples import examples

pytestmark = pytest.mark.pure

NAMES = ["a", "b", "c"]
names = st.sampled_from(NAMES)


def started(*working: str, turn_s: float = 5.0) -> Temporal:
    """Sharing whose tenants `working` have work at time 0; the first of them has the turn and has
    confirmed it.
    """
    sharing = Temporal(NAMES, turn_s)
    for name in working:
        sharing.has_work(name, True, 0.0)
    (holder,) = sharing.decide(0.0)
    sharing.holds(holder, True, 0.0)
    return sharing


def test_spatial_lets_all_step() -> None:
    sharing = make_sharing(NAMES, None)
    assert isinstance(sharing, Spatial)
    assert sharing.decide(0.0) == {"a", "b", "c"}
    assert sharing.next_deadline() is None


def test_configuration_chooses() -> None:
    sharing = make_sharing(NAMES, 2)
    assert isinstance(sharing, Temporal)


def test_upcoming_is_who_gets_the_turn_next() -> None:
    assert Spatial(NAMES).upcoming() is None
    sharing = started("a", "b", "c")
    assert sharing.upcoming() == "b"
    assert sharing.decide(5.0) == frozenset()
    assert sharing.leaving == "a"
    assert sharing.upcoming() == "b"
    sharing.holds("a", False, 5.1)
    assert sharing.decide(5.1) == {"b"}
    assert sharing.upcoming() == "c"


def test_nobody_has_the_turn_without_work() -> None:
    assert Temporal(NAMES, 1.0).decide(0.0) == frozenset()


def test_round_robin() -> None:
    sharing = started("a", "b", "c", turn_s=1.0)
    seen = []
    for second in range(1, 8):
        (holder,) = sharing.decide(second - 0.5)
        seen.append(holder)
        sharing.holds(holder, True, second - 0.5)
        assert sharing.decide(second) == frozenset()
        sharing.holds(holder, False, second)
        assert sharing.decide(second) not in ({holder}, frozenset())
    assert seen == ["a", "b", "c", "a", "b", "c", "a"]


def test_a_turn_goes_on_while_nobody_else_waits() -> None:
    sharing = started("a")
    assert sharing.next_deadline() is None
    assert sharing.decide(100.0) == {"a"}
    sharing.has_work("b", True, 101.0)
    assert sharing.next_deadline() == 5.0
    assert sharing.decide(101.0) == frozenset()


def test_a_turn_lasts_its_time_against_others() -> None:
    sharing = started("a", "b")
    assert sharing.next_deadline() == 5.0
    assert sharing.decide(4.9) == {"a"}
    assert sharing.decide(5.0) == frozenset()


def test_a_turn_that_is_prolonged_lasts_longer_and_those_after_it_do_not() -> None:
    sharing = started("a", "b")
    sharing.prolongs(2.5)
    assert sharing.next_deadline() == 7.5
    assert sharing.decide(7.4) == {"a"}
    assert sharing.decide(7.5) == frozenset()
    sharing.holds("a", False, 8.0)
    assert sharing.decide(8.0) == {"b"}
    sharing.holds("b", True, 8.0)
    assert sharing.next_deadline() == 13.0


def test_a_turn_without_work_ends_for_one_with_work() -> None:
    sharing = started("a", "c")
    sharing.has_work("a", False, 1.0)
    sharing.decide(1.0)
    assert sharing.leaving == "a"
    sharing.holds("a", False, 1.1)
    assert sharing.decide(1.1) == {"c"}


def test_the_next_waits_until_the_last_has_stopped() -> None:
    sharing = started("a", "b")
    for now in (5.0, 6.0, 60.0):
        assert sharing.decide(now) == frozenset()
        sharing.holds("a", True, now)  # a report from before the revocation arrived
        sharing.holds("b", False, now)
    sharing.holds("a", False, 60.0)
    assert sharing.decide(60.0) == {"b"}


def test_a_report_from_before_the_turn_does_not_answer_its_revocation() -> None:
    sharing = Temporal(NAMES, 5.0)
    for name in "ab":
        sharing.has_work(name, True, 0.0)
    assert sharing.decide(0.0) == {"a"}
    sharing.holds("a", False, 0.1)  # sent before the turn reached it
    assert sharing.decide(9.0) == {"a"}
    sharing.holds("a", False, 9.1)
    assert sharing.decide(9.1) == {"a"}
    sharing.holds("a", True, 9.2)
    assert sharing.decide(9.2) == frozenset()


@pytest.mark.parametrize("leaving", [False, True])
def test_a_dead_tenant_never_blocks_the_turn(leaving: bool) -> None:
    sharing = started("a", "b")
    sharing.decide(6.0 if leaving else 1.0)
    sharing.lost("a", 6.0)
    assert sharing.decide(6.0) == {"b"}


def test_an_unknown_tenant_is_refused() -> None:
    with pytest.raises(SharingError, match="'x'"):
        Temporal(NAMES, 1.0).has_work("x", True, 0.0)


class Turns(RuleBasedStateMachine):
    """Random messages between engines and the sharing, delayed in both directions; `stepping` has
    the engines that really step.
    """

    @initialize(turn_s=st.floats(0.1, 3))
    def start(self, turn_s: float) -> None:
        self.sharing = Temporal(NAMES, turn_s)
        self.now = 0.0
        self.sent: frozenset[str] = frozenset()
        self.orders: dict[str, list[bool]] = {n: [] for n in NAMES}
        self.reports: dict[str, list[bool]] = {n: [] for n in NAMES}
        self.stepping = dict.fromkeys(NAMES, False)
        self.work = dict.fromkeys(NAMES, False)

    @rule(name=names, work=st.booleans())
    def work_changes(self, name: str, work: bool) -> None:
        self.work[name] = work
        self.sharing.has_work(name, work, self.now)

    @rule(seconds=st.floats(0, 2))
    def decide(self, seconds: float) -> None:
        self.now += seconds
        holders = self.sharing.decide(self.now)
        assert self.sharing.decide(self.now) == holders
        for name in holders ^ self.sent:
            self.orders[name].append(name in holders)
        self.sent = holders

    @rule(name=names)
    def an_order_arrives(self, name: str) -> None:
        if self.orders[name]:
            self.stepping[name] = self.orders[name].pop(0)
            self.reports[name].append(self.stepping[name])

    @rule(name=names)
    def an_engine_reports(self, name: str) -> None:
        self.reports[name].append(self.stepping[name])

    @rule(name=names)
    def a_report_arrives(self, name: str) -> None:
        if self.reports[name]:
            self.sharing.holds(name, self.reports[name].pop(0), self.now)

    @rule(name=names)
    def die(self, name: str) -> None:
        self.sharing.lost(name, self.now)
        self.sent -= {name}
        self.orders[name], self.reports[name] = [], []
        self.stepping[name] = self.work[name] = False

    @invariant()
    def never_two(self) -> None:
        if hasattr(self, "sharing"):
            self.sharing.check()
            assert sum(self.stepping.values()) <= 1

    def teardown(self) -> None:
        """At the end, from any state, each tenant with work gets a turn within one round."""
        if not hasattr(self, "sharing"):
            return
        served: set[str] = set()
        for _ in range(40):
            deadline = self.sharing.next_deadline()
            self.decide(0.0 if deadline is None else max(0.0, deadline - self.now))
            for name in NAMES:
                while self.orders[name]:
                    self.an_order_arrives(name)
                while self.reports[name]:
                    self.a_report_arrives(name)
            served |= self.sent
        assert served >= {name for name, work in self.work.items() if work}


TestTurns = Turns.TestCase
TestTurns.settings = examples(120, stateful_step_count=40)


def test_tenants_enter_and_leave_the_order_of_turns() -> None:
    sharing = Temporal(["a", "b"], 1.0)
    sharing.has_work("a", True, 0.0)
    assert sharing.decide(0.0) == {"a"}
    sharing.enters("c")
    sharing.enters("a")  # known
    for name in "bc":
        sharing.has_work(name, True, 0.0)
    sharing.holds("a", True, 0.0)
    sharing.lost("a", 0.5)
    sharing.leaves("a")
    assert sharing.decide(0.5) == {"b"}, "who follows is next all the same"
    sharing.lost("b", 0.6)
    assert sharing.decide(0.6) == {"c"}
    sharing.leaves("b")
    sharing.enters("b")
    sharing.has_work("b", True, 0.7)
    assert sharing.upcoming() == "b"
    with pytest.raises(SharingError):
        sharing.has_work("a", True, 1.0)
    spatial = Spatial("a")
    spatial.enters("b")
    spatial.leaves("a")
    assert spatial.decide(0.0) == {"b"}
