"""Predicted effect of a new tenant on a device, against what the roster does when it is there."""

from __future__ import annotations

from copy import deepcopy

import pytest

from mirage.control.roster.fitting import Fitting, fitting
from mirage.control.roster.needs import StateBytes, SwitchTimes
from mirage.control.roster.orders import RosterVerb
from mirage.control.roster.roster import Roster
from mirage.control.roster.rules import RosterRules
from mirage.control.roster.specs import TenantSpec
from mirage.control.roster.states import Life, LifeState, WeightsPlace

pytestmark = pytest.mark.pure

OWN = StateBytes(awake=40, least=20, asleep=4, start=40, loaded=36)
TIMES = SwitchTimes(0.1, 0.1, 0.1, 1.0, 1.0)
READY = Life(LifeState.READY, WeightsPlace.DEVICE)


def device(size: int, *awake: str, worth: float = 0.0) -> Roster:
    """Roster of a device of `size` bytes on which the tenants `awake` are ready since 0 s."""
    roster = Roster(size, RosterRules(worth=worth, busy_s=0.0, patience_s=0.0))
    for name in awake:
        roster.applied(TenantSpec(name), OWN, TIMES, 0.0)
        roster.adopted(name, READY, 0.0)
    return roster


def test_one_that_fits_leaves_so_much() -> None:
    assert fitting(device(100, "a"), {"c": OWN}, (), 1.0) == [Fitting("c", 40, 20)]


def test_who_would_yield_is_who_yields() -> None:
    roster = device(100, "a", "b")
    (told,) = fitting(roster, {"c": OWN}, (), 1.0)
    assert (told.spare, told.comes) == (-20, True)
    before = deepcopy({m.name: (m.state, m.nbytes) for m in roster.members.values()})
    assert before == {"a": (LifeState.READY, 40), "b": (LifeState.READY, 40)}
    roster.applied(TenantSpec("c"), OWN, TIMES, 1.0)
    roster.asked("c", 1.0)
    drained = [o.tenant for o in roster.decide(1.0) if o.verb is RosterVerb.SLEEP]
    assert drained == list(told.yields)


def test_two_do_not_count_on_the_same_place() -> None:
    first, second, third = fitting(device(100, "a", "b"), dict.fromkeys("cde", OWN), (), 1.0)
    assert len(first.yields) == len(second.yields) == 1 and first.yields != second.yields
    assert not third.comes and third.spare == -28


def test_a_removed_one_leaves_its_bytes() -> None:
    assert fitting(device(80, "a", "b"), {"c": OWN}, ("a",), 1.0) == [Fitting("c", 40, 0)]


def test_nobody_yields_before_it_was_worth_while() -> None:
    (told,) = fitting(device(80, "a", "b", worth=100.0), {"c": OWN}, (), 1.0)
    assert not told.comes and told.yields == ()


def test_other_rules_hold_at_once() -> None:
    roster = device(80, "a", "b", worth=100.0)
    roster.applied(TenantSpec("c", wait_s=1e3), OWN, TIMES, 1.0)
    roster.asked("c", 1.0)
    assert roster.decide(1.0) == []
    roster.ruled(RosterRules(worth=0.0, busy_s=0.0, patience_s=0.0))
    assert [order.verb for order in roster.decide(1.0)] == [RosterVerb.SLEEP] * 2


def test_one_that_shall_be_eager_starts_and_one_that_is_mended_does_not_rest() -> None:
    roster = device(100, "a")
    roster.applied(TenantSpec("c", start="on_request"), OWN, TIMES, 1.0)
    assert roster.decide(1.0) == []
    roster.declares(TenantSpec("c", start="eager"), OWN, TIMES, 1.0)
    assert [(o.verb, o.tenant) for o in roster.decide(1.0)] == [(RosterVerb.START, "c")]
    member = roster.members["c"]
    member.life, member.nbytes, member.eager, member.retry_at = Life(LifeState.FAILED), 0, True, 1e6
    assert roster.decide(2.0) == []
    roster.mended("c")
    assert [(o.verb, o.tenant) for o in roster.decide(2.0)] == [(RosterVerb.START, "c")]
