"""Targets of Algorithm 1, rule by rule: two KV extents are one layer, ten are a share."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from world import SHAPE

from mirage.config import Policy
from mirage.control.covering import covers
from mirage.control.expert_asks import experts_out
from mirage.control.hidden_layers import hidden_layers
from mirage.control.lending import pays_after
from mirage.control.newcomers import closed_bytes
from mirage.control.planner import Plan, Planner
from mirage.control.rules import Rules
from mirage.control.spilling import TurnLengths
from mirage.control.targets import base, most_experts, most_remapped, unnumbered
from mirage.control.tenant_rows import Terms
from mirage.control.tenant_state import TenantSnapshot
from mirage.geometry import experts_gain, footprint, token_bytes
from mirage.protocol import Allotment, LentInTurns, Report
from mirage.units import ceil_div
from scheduler.tenants import Tenant
from tests.examples import examples

pytestmark = pytest.mark.pure

SHARE = footprint(SHAPE, 0, 10)
REMAP = Rules(slack_extents=0, headroom_extents=0)
told = partial(unnumbered, SHAPE)
"""Function that makes the target of a tenant whose model has `SHAPE`."""


def tenant(
    name: str,
    used: int = 0,
    growth: int = 0,
    admission: int = 0,
    *,
    of: int = 2,
    active: bool | None = None,
    layers_remapped: int = 0,
    stream_slots: int = 1,
    kv: int = 10,
    peak: int = 0,
    priority: int = 0,
    last_busy: float = 0.0,
    times: tuple[float, float] = (1.0, 1.0),
    least: float | None = None,
    percent: float | None = None,
) -> TenantSnapshot:
    """Snapshot of one of `of` equal tenants, which uses `used` extents. `growth` and `admission`
    are beyond `used`; `times` are T_T and T_c.

    `least` is the T_c of a single request, if that differs from `times`.
    """
    wanted = used + growth
    report = Report(
        revision=1,
        holds_turn=True,
        held_bytes=footprint(SHAPE, layers_remapped, kv),
        layers_remapped=layers_remapped,
        stream_slots=stream_slots,
        kv_extents=kv,
        kv_used_extents=used,
        layer_load_s=times[0],
        layer_compute_s=times[1],
    )
    return TenantSnapshot(
        name=name,
        tenant=Tenant(name, 100 / of, priority, max_percent=percent),
        shape=SHAPE,
        report=report,
        allotment=Allotment(
            1, layers_remapped, stream_slots, kv, footprint(SHAPE, layers_remapped, kv)
        ),
        pending=(),
        active=wanted + admission > 0 if active is None else active,
        last_busy=last_busy,
        growth_extents=wanted,
        admission_extents=wanted + admission,
        peak_extents=max(peak, wanted),
        peak_compute_s=times[1],
        least_compute_s=times[1] if least is None else least,
    )


def plan(
    tenants: list[TenantSnapshot], device: int, reserved: int, policy: Policy, rules: Rules, **when
) -> Plan:
    """Plan of a new planner, which has made no other plan."""
    return Planner(device, policy, rules).plan(tenants, reserved, **when)


def planned(
    *tenants: TenantSnapshot,
    policy: Policy = Policy.MIRAGE,
    remap: Rules = REMAP,
    turns: TurnLengths | None = None,
    now: float = inf,
):
    """Layers remapped and KV extents of each tenant in a plan, by name. The plan is checked to fit
    into the device.
    """
    targets = plan(tenants, len(tenants) * SHARE, 0, policy, remap, turns=turns, now=now).targets
    total = sum(
        footprint(SHAPE, target.layers_remapped, target.kv_extents) for target in targets.values()
    )
    assert total <= len(tenants) * SHARE
    return {name: (target.layers_remapped, target.kv_extents) for name, target in targets.items()}


# -- sources, in order ------------------------------------------------------------------


@pytest.mark.parametrize("policy", Policy)
def test_without_demand_everybody_has_their_share(policy: Policy) -> None:
    lent = tenant("b", active=False, layers_remapped=5, kv=2)
    assert planned(tenant("a", kv=20), lent, policy=policy) == {"a": (0, 10), "b": (0, 10)}


def test_static_gives_nobody_more() -> None:
    assert planned(tenant("a", 10, 4), tenant("b"), policy=Policy.STATIC)["a"] == (0, 10)


@pytest.mark.parametrize("policy", [Policy.POOLED, Policy.MIRAGE])
def test_idle_kv_comes_before_layers(policy: Policy) -> None:
    targets = planned(tenant("a", 10, 4), tenant("b", 3), policy=policy)
    assert targets == {"a": (0, 14), "b": (0, 6)}


def test_pooled_stops_where_kv_is_used() -> None:
    targets = planned(tenant("a", 10, 4), tenant("b", 9), policy=Policy.POOLED)
    assert targets == {"a": (0, 11), "b": (0, 9)}


def test_what_is_wanted_within_a_share_is_not_idle() -> None:
    targets = planned(tenant("a", 10, 0, 9), tenant("b", 3, 0, 5), policy=Policy.POOLED)
    assert targets == {"a": (0, 12), "b": (0, 8)}


def test_growth_of_one_comes_before_admission_of_another() -> None:
    targets = planned(tenant("a", 10, 5), tenant("b", 3, 0, 7), policy=Policy.POOLED)
    assert targets == {"a": (0, 15), "b": (0, 5)}


def test_growth_within_a_share_comes_before_growth_beyond_one() -> None:
    targets = planned(tenant("a", 12, 5), tenant("b", 6, 2), policy=Policy.POOLED)
    assert targets == {"a": (0, 12), "b": (0, 8)}


def test_a_tenant_keeps_its_least() -> None:
    targets = planned(tenant("a", 10, 50), tenant("b"), policy=Policy.POOLED)
    assert targets == {"a": (0, 18), "b": (0, 2)}


def test_layers_of_an_idle_tenant_come_before_own_ones() -> None:
    targets = planned(tenant("a", 10, 14), tenant("b"))
    assert targets == {"a": (0, 24), "b": (3, 2)}


def test_an_idle_tenant_keeps_its_floor_then_own_layers_go() -> None:
    """`a` wants 50 extents: 10 of its share, 8 of `b`'s share, 18 paid for by 9 layers of the idle
    `b`, and 14 by 7 layers of its own. `b` keeps its least layers and extents.
    """
    targets = planned(tenant("a", 10, 40), tenant("b"))
    assert targets == {"a": (7, 50), "b": (9, 2)}


def test_own_layers_go_only_as_far_as_they_hide() -> None:
    """A single tenant wants far more KV memory. With T_T = 2 T_c and two slots, loads hide while
    layers + 2 <= 12 / 2: four own layers go.
    """
    one_share = planned(tenant("a", 10, 40, of=1, times=(2.0, 1.0)))
    assert one_share == {"a": (4, 18)}


def test_one_own_layer_goes_while_times_are_unknown() -> None:
    assert planned(tenant("a", 10, 40, of=1, times=(0.0, 1.0))) == {"a": (1, 12)}
    assert planned(tenant("a", 10, 40, of=1, times=(1.0, 0.0))) == {"a": (1, 12)}


def test_uncapped_own_layers_go_down_to_the_floor() -> None:
    uncapped = REMAP.model_copy(update={"decode_cap": False, "max_percent": 100})
    assert planned(tenant("a", 10, 40, of=1, times=(9.0, 1.0)), remap=uncapped) == {"a": (9, 28)}


def test_another_active_tenant_gives_hidden_layers_to_growth_alone() -> None:
    busy = tenant("b", 10, times=(1.0, 1.0))
    assert planned(tenant("a", 10, 12, times=(1.0, 1.0)), busy) == {"a": (4, 22), "b": (2, 10)}
    assert planned(tenant("a", 10, 0, 12, times=(1.0, 1.0)), busy) == {"a": (4, 18), "b": (0, 10)}


def test_remapping_for_growth_alone_still_pools_for_admission() -> None:
    growth = REMAP.model_copy(update={"serve": "growth", "lend_percent": 100})
    assert planned(tenant("a", 10, 0, 14), tenant("b"), remap=growth) == {"a": (0, 18), "b": (0, 2)}
    assert planned(tenant("a", 10, 14, 9), tenant("b"), remap=growth) == {"a": (0, 24), "b": (3, 2)}


@pytest.mark.parametrize(("percent", "lent"), [(0, 0), (50, 4), (75, 6), (100, 8)])
def test_of_idle_kv_a_part_waits_for_the_growth_of_running_requests(percent, lent) -> None:
    """`b` is idle and can lend 8 of its 10 extents. New requests of `a` get `percent` of them; the
    others stay with `b` until running requests of `a` grow.
    """
    growth = REMAP.model_copy(update={"serve": "growth", "lend_percent": percent})
    for used in (10, 10 + lent):
        targets = planned(tenant("a", used, 0, 14), tenant("b", active=False), remap=growth)
        assert targets == {"a": (0, 10 + lent), "b": (0, 10 - lent)}, "lent once, and not again"
    targets = planned(tenant("a", 10 + lent, 8 - lent, 14), tenant("b"), remap=growth)
    assert targets == {"a": (0, 18), "b": (0, 2)}


def test_newcomers_get_their_own_share_whatever_is_lent() -> None:
    growth = REMAP.model_copy(update={"serve": "growth", "lend_percent": 0})
    both = tenant("a", 3, 0, 14), tenant("b", 12, 0, 4)
    assert planned(*both, remap=growth) == {"a": (0, 8), "b": (0, 12)}


def test_where_admission_is_served_all_idle_kv_is_lent() -> None:
    none = {"lend_percent": 0}
    both = tenant("a", 10, 0, 8), tenant("b", active=False)
    for remap in (none, none | {"serve": "growth"}):
        targets = planned(*both, policy=Policy.POOLED, remap=REMAP.model_copy(update=remap))
        assert targets == {"a": (0, 18), "b": (0, 2)}
    assert planned(*both, remap=REMAP.model_copy(update=none)) == {"a": (0, 18), "b": (0, 2)}


def test_no_layer_goes_for_less_than_an_extent() -> None:
    coarse = structs.replace(
        tenant("a", 3, 4, times=(9.0, 1.0)), shape=structs.replace(SHAPE, extent_bytes=250)
    )
    few = REMAP.model_copy(update={"max_percent": 17})
    idle = tenant("b", kv=2)
    targets = plan([coarse, idle], 2 * SHARE, 0, Policy.MIRAGE, few).targets
    assert targets["b"].layers_remapped == 1
    assert targets["a"] == unnumbered(coarse.shape, 0, 0, 4)


# -- whose turn to give, whose to get ---------------------------------------------------


@pytest.mark.parametrize(("rule", "donor"), [("mru", "late"), ("lru", "early")])
def test_the_rule_names_the_first_donor(rule: str, donor: str) -> None:
    idle = {"early": 1.0, "late": 2.0}
    several = [tenant(n, of=3, active=False, last_busy=t) for n, t in idle.items()]
    remap = REMAP.model_copy(update={"victims": rule})
    targets = planned(tenant("a", 10, 30, of=3), *several, remap=remap)
    assert {name for name, (layers_remapped, _) in targets.items() if layers_remapped} == {donor}


def test_layers_already_away_stay_the_first_donor() -> None:
    early = tenant("early", of=3, active=False, last_busy=1.0, layers_remapped=7, kv=2)
    late = tenant("late", of=3, active=False, last_busy=2.0, kv=2)
    assert planned(tenant("a", 10, 30, of=3), early, late) == {
        "a": (0, 40),
        "early": (7, 2),
        "late": (0, 2),
    }


def test_layers_are_lent_to_running_requests_and_idle_kv_to_all() -> None:
    """Idle KV memory of `b` goes also to new requests of `a`, layers of `b` only to running ones:
    `open_extents` closes them to new ones. The share of `a` is open to both.
    """
    growth = REMAP.model_copy(update={"serve": "growth", "lend_percent": 100})

    def wanted(remap: Rules, **asked: int) -> Allotment:
        both = [tenant("a", 10, **asked), tenant("b", active=False)]
        return plan(both, 2 * SHARE, 0, Policy.MIRAGE, remap).targets["a"]

    assert wanted(growth, admission=5) == told(0, 0, 15), "all of it is open"
    assert wanted(growth, growth=14, admission=5) == told(0, 0, 24, open_extents=18)
    assert wanted(growth, growth=26) == told(0, 0, 36, open_extents=18)
    assert wanted(REMAP, growth=14, admission=5).open_extents is None


@pytest.mark.parametrize(
    ("young", "favour", "open_extents"),
    [(True, "latency", 22), (True, "throughput", None), (False, "latency", None)],
)
def test_while_all_requests_grow_newcomers_leave_a_quarter_of_what_layers_pay_for(
    young: bool, favour: str, open_extents: int | None
) -> None:
    """Three layers of `b` pay for six extents of `a`. If latency is favoured and all requests are
    young, new requests must leave a quarter of them free.
    """
    remap = REMAP.model_copy(update={"favour": favour, "lend_kv": 100})
    both = [tenant("a", 10, growth=14), tenant("b", active=False)]
    turns = TurnLengths(1e6, drains=True, young=young)
    targets = plan(both, 2 * SHARE, 0, Policy.MIRAGE, remap, turns=turns).targets
    assert (targets["b"].layers_remapped, targets["a"].kv_extents) == (3, 24)
    assert targets["a"].open_extents == open_extents


@pytest.mark.parametrize(("pool", "closed"), [(240, 60), (2000, 60), (200, 40), (120, 0), (-5, 0)])
def test_where_layers_pay_for_more_than_the_pool_newcomers_leave_less(
    pool: int, closed: int
) -> None:
    turns = TurnLengths(1e6, drains=True, young=True)
    terms = Terms(2 * SHARE, Policy.MIRAGE, REMAP, 1, turns)
    assert closed_bytes(terms, 240, pool) == closed


@pytest.mark.parametrize("serve", ["admission", "growth"])
def test_newcomers_of_a_model_whose_tokens_take_too_long_get_its_share_alone(serve: str) -> None:
    """A step takes 24 ms, twelve layers of 2 ms. With a limit of 23 ms new requests get the share
    alone; running ones may grow beyond it. With 25 ms both may.
    """

    def wanted(tbt_ms: float, used: int, **asked: int) -> Allotment:
        remap = REMAP.model_copy(update={"serve": serve, "tbt_ms": tbt_ms, "lend_percent": 100})
        times = (1e-3, 2e-3)
        both = [tenant("a", used, times=times, **asked), tenant("b", active=False)]
        return plan(both, 2 * SHARE, 0, Policy.MIRAGE, remap).targets["a"]

    assert wanted(25, 10, admission=5) == told(0, 0, 15)
    assert wanted(23, 10, admission=5) == told(0, 0, 10)
    assert wanted(23, 3, admission=20) == told(0, 0, 10), "its share it has"
    assert wanted(23, 10, growth=8, admission=5) == told(0, 0, 18, open_extents=10)
    assert wanted(25, 10, growth=5, admission=1) == told(0, 0, 16)


def test_higher_priority_is_served_first() -> None:
    low, high = tenant("low", 10, 8, of=3), tenant("high", 10, 8, of=3, priority=1)
    targets = planned(low, high, tenant("idle", of=3), policy=Policy.POOLED)
    assert targets == {"low": (0, 10), "high": (0, 18), "idle": (0, 2)}


def test_equals_get_the_same_until_one_has_enough() -> None:
    some, more = tenant("some", 10, 3, of=3), tenant("more", 10, 30, of=3)
    targets = planned(some, more, tenant("idle", of=3), policy=Policy.POOLED)
    assert targets == {"some": (0, 13), "more": (0, 15), "idle": (0, 2)}


def test_bytes_of_absent_tenants_are_nobodys() -> None:
    targets = plan([tenant("a", 10, 40)], 2 * SHARE, SHARE, Policy.POOLED, REMAP).targets
    assert targets["a"].kv_extents == 10


# -- back -------------------------------------------------------------------------------


def test_what_was_wanted_lately_is_kept() -> None:
    after = tenant("a", 4, kv=24, peak=24)
    assert planned(after, tenant("b", active=False, layers_remapped=3, kv=2)) == {
        "a": (0, 24),
        "b": (3, 2),
    }


def test_lately_wanted_kv_takes_no_new_layers() -> None:
    after = tenant("a", 4, kv=24, peak=24)
    assert planned(after, tenant("b", active=False, layers_remapped=1, kv=2)) == {
        "a": (0, 20),
        "b": (1, 2),
    }


def test_slack_above_the_share_gives_back_in_steps() -> None:
    remap = REMAP.model_copy(update={"slack_extents": 4})
    away = tenant("b", active=False, layers_remapped=9, kv=2)
    for peak, kept in ((25, 25), (24, 25), (21, 25), (20, 20), (11, 15), (10, 10)):
        assert planned(tenant("a", 1, peak=peak), away, remap=remap)["a"] == (0, kept)


def test_restored_first_is_who_runs_soonest() -> None:
    """As memory becomes free, layers come back to active tenants before idle ones, and to the idle
    one that was used least recently before the other.
    """
    away = [
        tenant("active", 1, of=4, layers_remapped=3, kv=2),
        tenant("early", of=4, active=False, last_busy=1.0, layers_remapped=4, kv=2),
        tenant("late", of=4, active=False, last_busy=2.0, layers_remapped=4, kv=2),
    ]
    left = []
    for used in (50, 46, 40):
        targets = planned(tenant("a", used, of=4, kv=50), *away)
        left.append([targets[name][0] for name in ("active", "early", "late")])
    assert left == [[0, 4, 4], [0, 2, 4], [0, 0, 3]]


def test_a_woken_donor_gets_its_layers_back_before_others_are_admitted() -> None:
    hungry = tenant("a", 16, 0, 40, kv=28, peak=56, times=(9.0, 1.0))
    asleep = tenant("b", active=False, layers_remapped=9, kv=2, times=(9.0, 1.0))
    awake = tenant("b", 1, layers_remapped=9, kv=2, times=(9.0, 1.0))
    assert planned(hungry, asleep) == {"a": (0, 36), "b": (9, 2)}
    assert planned(hungry, awake) == {"a": (0, 18), "b": (0, 2)}


def test_a_woken_donor_waits_for_what_requests_run_on_but_not_for_growth_beyond_a_share() -> None:
    running = tenant("a", 24, 2, 40, kv=28, times=(4.0, 1.0))
    awake = tenant("b", 1, layers_remapped=9, kv=2, times=(2.0, 1.0))
    assert planned(running, awake) == {"a": (0, 24), "b": (3, 2)}


def test_a_woken_donor_that_cannot_bear_it_calls_back_what_is_beyond_a_share() -> None:
    """`b` wakes while nine of its layers pay for running requests of `a`, and its steps would take
    four times as long. A recall cuts `a` to what the shares allow.
    """
    running = tenant("a", 24, 2, 40, kv=28, times=(9.0, 1.0))
    awake = tenant("b", 1, layers_remapped=9, kv=2, times=(9.0, 1.0))
    targets = plan([running, awake], 2 * SHARE, 0, Policy.MIRAGE, REMAP).targets
    assert targets["a"].kv_extents == 18 and targets["a"].recall
    assert (targets["b"].layers_remapped, targets["b"].recall) == (0, False)
    fitting = tenant("a", 18, 2, 40, kv=28, times=(9.0, 1.0))
    assert not plan([fitting, awake], 2 * SHARE, 0, Policy.MIRAGE, REMAP).targets["a"].recall


def test_low_priorities_are_called_back_first_and_nobody_below_a_share() -> None:
    low = tenant("a", 17, 2, 40, of=3, kv=17, times=(9.0, 1.0))
    high = tenant("c", 21, 2, 40, of=3, kv=21, times=(9.0, 1.0), priority=1)
    awake = tenant("b", 1, of=3, layers_remapped=9, kv=2, times=(9.0, 1.0))
    targets = plan([low, awake, high], 3 * SHARE, 0, Policy.MIRAGE, REMAP).targets
    assert {name: target.kv_extents for name, target in targets.items()} == {
        "a": 9,
        "b": 2,
        "c": 19,
    }
    assert {name for name, target in targets.items() if target.recall} == {"a", "c"}


def test_in_turns_nobody_is_called_back() -> None:
    running = tenant("a", 24, active=False, kv=28, times=(9.0, 1.0))
    awake = tenant("b", 1, layers_remapped=9, kv=2, times=(9.0, 1.0))
    targets = plan(
        [running, awake], 2 * SHARE, 0, Policy.MIRAGE, REMAP, turns=TurnLengths(1.0)
    ).targets
    assert not any(target.recall for target in targets.values()) and targets["a"].kv_extents == 24


def test_what_grew_on_own_layers_stays_on_them() -> None:
    """`a` has grown on memory of its own layers while `b` is idle. The next plan is the same; it
    does not move that growth to layers of `b` and then grow once more.
    """
    asleep = tenant("b", active=False, kv=2, times=(4.0, 0.1), last_busy=5.0)
    more = tenant("a", 20, 20, kv=20, layers_remapped=1, times=(4.0, 1.0))
    first = planned(more, asleep, now=6.0)
    grown = tenant("a", first["a"][1], 20, kv=first["a"][1], layers_remapped=1, times=(4.0, 1.0))
    assert planned(grown, asleep, now=6.0) == first


WISHES = pytest.mark.parametrize("wishes", [(24, 0), (0, 24)], ids=["growth", "admission"])


@WISHES
@pytest.mark.parametrize(("compute", "given"), [(4.0, 8), (2.0, 4), (1.0, 1)])
def test_at_once_an_idle_model_lends_what_it_hides_until_it_has_rested(
    wishes: tuple[int, int], compute: float, given: int
) -> None:
    """Eight layers of the idle `b` are wanted. Until it has been idle for `rest_s`, it lends only
    those whose loads the decode of one request would hide: all eight, four or one.
    """
    asks = tenant("a", 10, *wishes, times=(4.0, 0.1))
    asleep = tenant("b", active=False, times=(4.0, 4.0), least=compute, last_busy=5.0)
    assert planned(asks, asleep, now=5.0 + REMAP.rest_s)["b"][0] == 8
    assert planned(asks, asleep, now=4.9 + REMAP.rest_s)["b"][0] == given


@pytest.mark.parametrize(
    ("load", "pause", "rest"),
    [(0.05, 0.0, 9.0), (0.05, 8.0, 16.0), (0.05, 99.0, 30.0), (0.0, 0.0, 30.0)],
)
def test_at_once_it_has_rested_when_its_way_back_is_little_of_that_and_no_pause_was_half_as_long(
    load: float, pause: float, rest: float
) -> None:
    """The rest after which an idle model lends all that is wanted is 20 times the load time of its
    nine layers, or twice its longest pause, but at most `rest_s`. While the load time is unknown it
    is `rest_s`.
    """
    asks = tenant("a", 10, 24, times=(1.0, 0.1))
    asleep = tenant("b", active=False, times=(load, 1e-3), last_busy=5.0)
    asleep = structs.replace(asleep, longest_pause_s=pause)
    assert planned(asks, asleep, now=5.0 + rest + 1e-6)["b"][0] == 8
    assert planned(asks, asleep, now=5.0 + rest - 1e-6)["b"][0] < 8


@pytest.mark.parametrize(("usable", "rest"), [(10, 0.45), (34, 9.0)])
def test_at_once_it_rests_for_its_way_back_while_requests_of_others_wait_for_memory(
    usable: int, rest: float
) -> None:
    asks = tenant("a", 10, 0, 24, times=(1.0, 0.1))
    queue = {"waiting": 3, "admission_extents": 34, "kv_usable_extents": usable}
    asks = structs.replace(asks, report=structs.replace(asks.report, **queue))
    asleep = tenant("b", active=False, times=(0.05, 1e-3), last_busy=5.0)
    assert planned(asks, asleep, now=5.0 + rest + 1e-6)["b"][0] == 8
    assert planned(asks, asleep, now=5.0 + rest - 1e-6)["b"][0] < 8


@pytest.mark.parametrize(
    ("pause", "token_s", "rest"),
    [(0.0, 0.04, 0.45), (1.0, 0.04, 2.0), (1.0, 0.0, 0.45), (99.0, 0.0, 0.45), (99.0, 0.04, None)],
)
def test_at_once_it_rests_longer_where_it_comes_back_often_and_much_is_computed_anew(
    pause: float, token_s: float, rest: float | None
) -> None:
    """The rest is twice the model's longest pause, but at most the time after which lending has
    paid. It is the load time of its layers if no pause is known or nothing would be computed again.
    """
    asks = tenant("a", 10, 0, 24, times=(1.0, 0.1))
    queue = {"waiting": 3, "admission_extents": 34, "kv_usable_extents": 10, "token_s": token_s}
    asks = structs.replace(asks, report=structs.replace(asks.report, **queue))
    asleep = tenant("b", active=False, times=(0.05, 1e-3), last_busy=5.0)
    asleep = structs.replace(asleep, longest_pause_s=pause)
    if rest is None:
        anew_s = 9 * SHAPE.layer_bytes / token_bytes(SHAPE) * token_s
        kv_bytes = 20 * SHAPE.extent_bytes
        rest = pays_after(9 * SHAPE.layer_bytes / kv_bytes, 0.5, 0.45, anew_s)
        assert rest > 2.0
    assert planned(asks, asleep, now=5.0 + rest + 1e-6)["b"][0] == 8
    assert planned(asks, asleep, now=5.0 + rest - 1e-6)["b"][0] < 8


def test_at_once_nobody_rests_less_for_what_its_own_requests_wait_for() -> None:
    asks = tenant("a", 10, 24, times=(1.0, 0.1))
    asleep = tenant("b", active=False, times=(0.05, 1e-3), last_busy=5.0)
    queue = {"waiting": 3, "admission_extents": 34, "kv_usable_extents": 10}
    asleep = structs.replace(asleep, report=structs.replace(asleep.report, **queue))
    assert planned(asks, asleep, now=5.0 + 8.0)["b"][0] < 8


@WISHES
@pytest.mark.parametrize(("turn_s", "given"), [(800.0, 8), (190.0, 7), (110.0, 0)])
def test_in_turns_so_much_is_lent_as_brings_more_than_its_way_back_costs(
    wishes: tuple[int, int], turn_s: float, given: int
) -> None:
    """A layer takes 4 s to load and is a tenth of all KV memory. In turns of 190 s, in which 47
    layers load, lending seven layers pays; in other lengths `given` do.
    """
    asks = tenant("a", 10, *wishes, times=(4.0, 1.0))
    asleep = tenant("b", active=False, times=(4.0, 1.0), last_busy=5.0)
    targets = planned(asks, asleep, turns=TurnLengths(turn_s), now=5.0)
    assert targets["a"][0] + targets["b"][0] == given


def in_turns(name: str, wants: int, used: int = 5, **at: Any) -> TenantSnapshot:
    """A tenant in turns that has work and wants `wants` extents in all; a layer takes 4 s to load,
    and computes for 1 s.
    """
    made = tenant(name, used, wants - used, times=(4.0, 1.0), **at)
    report = structs.replace(made.report, running=1, admission_extents=wants)
    return structs.replace(made, report=report)


@pytest.mark.parametrize(
    ("wants", "lacked", "given"),
    [(0, False, 7), (14, False, 7), (10, False, 0), (10, True, 7), (4, False, 0)],
)
def test_in_turns_the_way_back_is_paid_by_the_turns_that_memory_makes_faster(
    wants: int, lacked: bool, given: int
) -> None:
    """`b` wants `wants` extents in its own turn. If its requests have room without the loan, its
    turns gain nothing from lending, and its layers come back.
    """
    asks = in_turns("a", 34)
    idle = tenant("b", active=False, times=(4.0, 1.0))
    sits = in_turns("b", wants, active=False) if wants else idle
    sits = structs.replace(sits, lacked=lacked)
    assert planned(asks, sits, turns=TurnLengths(190.0))["b"][0] == given


def test_in_turns_of_many_a_byte_comes_back_once_in_a_round_of_the_others() -> None:
    """Each lent byte is loaded once in a round of turns. So more models that all want memory lend
    as much in shorter turns: here three layers each.
    """

    def lent(count: int, turn_s: float) -> int:
        names = "abcd"[:count]
        every = [in_turns(n, 40, of=count, active=n == "a") for n in names]
        given = planned(*every, turns=TurnLengths(turn_s))
        return sum(away for away, _ in given.values())

    pools = {2: 190.0, 3: 190.0 * 3 / 2 / 2, 4: 190.0 * 2 / 3}
    assert {lent(count, turn_s) // count for count, turn_s in pools.items()} == {3}


@pytest.mark.parametrize("count", [2, 3, 4])
def test_in_turns_who_ran_last_lends_first_so_layers_stay_away_for_a_round(count: int) -> None:
    """`count` models take turns, and each wants memory. The number of layers that come back per
    turn is what `Rotation.apart` assumes: all lent ones in `count` - 1 turns.
    """
    names = "abcd"[:count]
    away, returned = dict.fromkeys(names, 0), 0
    for turn in range(12 + count):
        holder = names[turn % count]
        every = []
        for place, name in enumerate(names):
            at = {"active": name == holder, "layers_remapped": away[name]}
            seen = turn - (turn - place) % count  # its last turn
            one = in_turns(name, 14, 14, of=count, kv=14, last_busy=float(seen), **at)
            every.append(one)
        given = planned(*every, turns=TurnLengths(190.0))
        if turn >= count:
            returned += max(0, away[holder] - given[holder][0])
        away = {name: remapped for name, (remapped, _) in given.items()}
    lent = sum(away.values())
    assert lent == 2 * count
    assert returned == pytest.approx(12 * lent / (count - 1), rel=0.35)


@WISHES
def test_in_turns_only_whole_layers_are_worth_lending(wishes: tuple[int, int]) -> None:
    """Lending 736 bytes would pay best. Seven layers of 100 bytes go; an eighth would have to be
    loaded as a whole.
    """
    asks = tenant("a", 10, *wishes, times=(4.0, 1.0))
    asleep = tenant("b", active=False, times=(4.0, 1.0))
    assert planned(asks, asleep, turns=TurnLengths(190.0)) == {"a": (0, 32), "b": (7, 2)}


@pytest.mark.parametrize(
    ("again", "running", "given", "more"),
    [
        (0.0, 1, 0, {}),
        (0.005, 1, 0, {}),
        (0.01, 1, 3, {}),
        (0.04, 1, 5, {}),
        (0.5, 1, 5, {}),
        (0.5, 0, 0, {}),
        (0.5, 1, 0, {"drains": True}),
        (0.5, 1, 0, {"below_bytes": 1}),
    ],
)
def test_in_turns_layers_are_lent_so_that_fewer_requests_are_preempted(
    again: float, running: int, given: int, more: dict[str, Any]
) -> None:
    """In turns of 110 s too little is gained by larger batches: 1.5 % at most, 1.4, 0.9 and 0.1 %
    by three, four and five layers, and -1.1 % by six. `again` is the part of the time in which `a`
    computes tokens of preempted requests again; more than 0.04 change nothing. A tenant without
    work has no such time. It does not count if turns drain, or if KV goes below the device.
    """
    asks = in_turns("a", 34)
    report = structs.replace(asks.report, running=running, token_s=1e-3)
    asks = structs.replace(asks, recomputed_tokens_s=again * 1e3, report=report)
    asleep = tenant("b", active=False, times=(4.0, 1.0))
    assert planned(asks, asleep, turns=TurnLengths(110.0, **more))["b"][0] == given


@pytest.mark.parametrize(("wants", "given"), [(14, 5), (4, 1)])
def test_in_turns_the_price_of_fewer_preemptions_is_paid_in_all_turns(
    wants: int, given: int
) -> None:
    """`b` wants `wants` extents in its own turn. If its requests have room, only every second turn
    gains by larger batches, and fewer layers of it go.
    """
    asks = in_turns("a", 34)
    report = structs.replace(asks.report, token_s=1e-3)
    asks = structs.replace(asks, recomputed_tokens_s=100.0, report=report)
    sits = in_turns("b", wants, active=False)
    assert planned(asks, sits, turns=TurnLengths(110.0))["b"][0] == given


@pytest.mark.parametrize(
    ("away", "staying", "given"),
    [(0, 0.5, 7), (0, 0.33, 0), (7, 0.33, 7), (7, 0.25, 5), (7, 0.1, 1)],
)
def test_in_turns_what_is_lent_stays_lent_while_it_costs_little(
    away: int, staying: float, given: int
) -> None:
    """`away` layers of `b` are lent already, and the part `staying` of a step does not grow with
    the batch. A loan that would not be made anew stays while it costs at most two tokens of a
    hundred.
    """
    asks = tenant("a", 10, 0, 24, times=(4.0, 1.0))
    asleep = tenant(
        "b",
        active=False,
        layers_remapped=away,
        stream_slots=2 if away else 1,
        kv=2,
        times=(4.0, 1.0),
    )
    both = [structs.replace(t, mean_compute_s=1 / staying) for t in (asks, asleep)]
    assert planned(*both, turns=TurnLengths(190.0))["b"][0] == given


@pytest.mark.parametrize(("waits", "given"), [(False, 8), (True, 7)])
def test_in_turns_running_requests_grow_on_unless_somebody_waits_for_its_share(
    waits: bool, given: int
) -> None:
    """Seven layers of `b` are lent, the best number, and running requests of `a` need an eighth,
    which costs little. They get it, unless requests of `b` wait.
    """
    grows = tenant("a", 32, 3, 0, kv=32, times=(4.0, 1.0))
    asleep = tenant("b", 2, active=False, layers_remapped=7, stream_slots=2, kv=2, times=(4.0, 1.0))
    waiting = structs.replace(asleep.report, waiting=int(waits))
    asleep = structs.replace(asleep, report=waiting)
    assert planned(grows, asleep, turns=TurnLengths(190.0))["b"][0] == given


@pytest.mark.parametrize(("drains", "given"), [(True, 8), (False, 3)])
def test_in_turns_so_much_is_lent_as_the_others_can_give_when_the_donor_runs(
    drains: bool, given: int
) -> None:
    """`b` is idle, and in its turn has to bear what `a` cannot give back. `a` has two layers to
    give, `b` hides one, so three are lent; if turns drain, all eight that are wanted.
    """
    asks = tenant("a", 10, 24, times=(4.0, 0.1), percent=20)
    asleep = tenant("b", active=False, times=(4.0, 1.0))
    assert planned(asks, asleep, turns=TurnLengths(1e6, drains))["b"][0] == given


@pytest.mark.parametrize(("used", "covered"), [(18, True), (24, True), (25, False)])
def test_a_turn_is_covered_while_all_kv_fits_beside_what_its_holder_cannot_hide(
    used: int, covered: bool
) -> None:
    borrower = tenant("a", used, percent=20, times=(4.0, 1.0))
    donor = tenant("b", active=False, kv=2, times=(4.0, 0.4))
    usable = 2 * SHARE
    uncapped = REMAP.model_copy(update={"decode_cap": False})
    for remap in (REMAP, uncapped):
        assert covers([borrower, donor], "b", usable, Policy.MIRAGE, remap) == covered
    assert covers([borrower, donor], "b", usable, Policy.STATIC, REMAP)


@pytest.mark.parametrize(("part", "given"), [(0.0, 0), (0.1, 1), (0.5, 5), (100.0, 9)])
def test_in_turns_a_fixed_part_may_be_lent_instead_of_what_pays(part: float, given: int) -> None:
    """With the setting `lend_kv`, the part `part` of both tenants' KV memory, 20 extents or 10
    layers, is lent instead of the computed amount.
    """
    asks, asleep = tenant("a", 2, 40), tenant("b", kv=2)
    fixed = REMAP.model_copy(update={"lend_kv": part})
    assert planned(asks, asleep, turns=TurnLengths(1.0, drains=True), remap=fixed)["b"][0] == given


@pytest.mark.parametrize(
    ("turns", "part", "lent"),
    [
        (TurnLengths(1.0, drains=True), 0.5, "in turns that drain"),
        (TurnLengths(1.0, drains=True), 0.0, "nothing"),
        (TurnLengths(1.0), 0.5, "in turns"),
        (TurnLengths(1.0), 0.0, "nothing"),
        (None, 0.5, "nothing"),
    ],
)
def test_all_hear_that_layers_pay_in_turns(
    turns: TurnLengths | None, part: float, lent: LentInTurns
) -> None:
    fixed = REMAP.model_copy(update={"lend_kv": part})
    pair = [tenant("a", 9, 1, 30, kv=10), tenant("b", active=False, last_busy=1.0)]
    targets = plan(pair, 2 * SHARE, 0, Policy.MIRAGE, fixed, turns=turns).targets
    assert (targets["b"].layers_remapped > 0) is (part > 0 or turns is None)
    assert [target.lent for target in targets.values()] == [lent, lent]


def test_in_turns_layers_that_running_requests_sit_on_count_as_lent() -> None:
    """Running requests of `a` already use memory of lent layers, and want more. The lent ones
    count, or each turn would lend more and leave it to the next.
    """
    runs = tenant("a", 22, 20, 0, kv=22, times=(4.0, 1.0))
    asleep = tenant("b", active=False, layers_remapped=3, kv=2, times=(4.0, 1.0))
    assert planned(runs, asleep, turns=TurnLengths(40.0)) == {"a": (0, 22), "b": (2, 2)}


def test_without_a_cap_all_is_lent_in_any_turn() -> None:
    asks = tenant("a", 10, 24, times=(4.0, 1.0))
    asleep = tenant("b", active=False, times=(4.0, 1.0))
    uncapped = REMAP.model_copy(update={"decode_cap": False})
    assert planned(asks, asleep, turns=TurnLengths(1.0), remap=uncapped)["b"][0] == 8


def test_what_runs_on_lent_layers_is_never_asked_back_either() -> None:
    runs = tenant("a", 34, 0, 0, kv=34, times=(4.0, 0.1))
    asleep = tenant("b", active=False, layers_remapped=9, kv=2, times=(4.0, 0.1))
    assert planned(runs, asleep, turns=TurnLengths(1.0)) == planned(runs, asleep)


def test_what_requests_run_on_is_not_asked_back_from_who_can_bear_it() -> None:
    running = tenant("a", 24, kv=28, times=(9.0, 1.0))
    awake = tenant("b", 1, layers_remapped=9, kv=2, times=(2.0, 1.0))
    assert planned(running, awake) == {"a": (0, 24), "b": (3, 2)}


def test_a_borrower_pays_with_its_own_hidden_layers_first() -> None:
    running = tenant("z", 24, kv=24, times=(1.0, 1.0))
    awake = tenant("b", 1, layers_remapped=9, kv=2, times=(1.0, 1.0))
    assert planned(running, awake) == {"z": (3, 24), "b": (0, 2)}


@pytest.mark.parametrize(("lately", "kept"), [(2.0, (4, 18)), (1.2, (1, 12))])
def test_own_layers_linger_as_far_as_they_hid_lately(lately: float, kept: tuple[int, int]) -> None:
    """Six own layers are away, though memory is no longer wanted. T_T is 4: with a recent T_c of 2
    four layers hide and stay away, with 1.2 one does.
    """
    after = tenant("a", 10, of=1, layers_remapped=6, kv=22, peak=22, times=(4.0, 1.0))
    assert planned(structs.replace(after, peak_compute_s=lately)) == {"a": kept}


@pytest.mark.parametrize("active", [False, True])
def test_layers_taken_in_vain_go_back_to_the_active_and_to_who_gave_last(active: bool) -> None:
    """One extent of 250 bytes is paid for by layers of 60, 50, 100 and 100 bytes. Sixty bytes are
    too many, so `y` gets its layer of 50 back, whether `y` and `z` are active or all are idle.
    """
    hungry = tenant("a", 2, 1, times=(9.0, 1.0))
    several = [structs.replace(hungry, shape=structs.replace(SHAPE, extent_bytes=250))]
    for name, nbytes, floor, last_busy in (("x", 60, 9, 3), ("y", 50, 9, 2), ("z", 100, 8, 1)):
        giving = tenant(name, 2, active=active and name != "x", kv=2, last_busy=last_busy)
        several.append(
            structs.replace(
                giving,
                shape=structs.replace(SHAPE, layer_bytes=nbytes),
                tenant=Tenant(name, 50, floor_layers=floor),
            )
        )
    targets = plan(sharing_exactly(several), held(several), 0, Policy.MIRAGE, REMAP).targets
    assert {name: target.layers_remapped for name, target in targets.items()} == {
        "a": 0,
        "x": 1,
        "y": 0,
        "z": 2,
    }


@pytest.mark.parametrize("active", [False, True])
@pytest.mark.parametrize(
    "stays", [{"movable_layers": 0}, {"layers": 0, "layer_bytes": 0, "movable_layers": 0}]
)
def test_a_model_whose_layers_stay_gives_none_and_its_idle_kv_all_the_same(
    active: bool, stays: dict[str, int]
) -> None:
    giving = tenant("b", 2, active=active, times=(0.001, 1.0))
    giving = structs.replace(giving, shape=structs.replace(SHAPE, **stays))
    hungry = tenant("a", 10, 30)
    remap = Rules(slack_extents=0, headroom_extents=0, decode_cap=False)
    device = SHARE + footprint(giving.shape, 0, 10)
    tenants = sharing_exactly([hungry, giving], device)
    targets = plan(tenants, device, 0, Policy.MIRAGE, remap).targets
    assert targets["b"].layers_remapped == 0
    assert targets["b"].kv_extents == 2 and targets["a"].kv_extents >= 18
    gives = [hungry, structs.replace(giving, shape=SHAPE)]
    moving = plan(gives, 2 * SHARE, 0, Policy.MIRAGE, remap).targets["b"]
    assert moving.layers_remapped > 0, "or nothing was tried"


# -- stability --------------------------------------------------------------------------


def held(tenants: list[TenantSnapshot]) -> int:
    return sum(footprint(t.shape, 0, max(t.used_extents, t.shape.min_extents)) for t in tenants)


def sharing_exactly(tenants: list[TenantSnapshot], device: int = 0) -> list[TenantSnapshot]:
    """Copies of tenants whose shares are exactly large enough for the memory that they hold now."""
    device = device or held(tenants)
    return [
        structs.replace(t, tenant=replace(t.tenant, share=held([t]) * 100 / device + 1e-4))
        for t in tenants
    ]


@st.composite
def mixtures(draw: st.DrawFn, t: TenantSnapshot) -> TenantSnapshot:
    """Drawn copy of a tenant that has experts; some of them may be away, if no layer is."""
    count = draw(st.integers(1, 3))
    shape = structs.replace(
        t.shape,
        movable_experts=count,
        expert_layers=draw(st.integers(2, t.shape.layers)),
        expert_bytes=t.shape.layer_bytes // (count + 1),
    )
    out = 0 if t.report.layers_remapped else draw(st.integers(0, count))
    report = structs.replace(
        t.report,
        experts=out,
        expert_load_s=draw(st.sampled_from([0.0, 0.01, 1.0])),
        expert_routed=[n * draw(st.sampled_from([0.0, 0.1, 1.0])) for n in range(count + 2)],
    )
    assert t.allotment is not None
    return structs.replace(
        t, shape=shape, report=report, allotment=structs.replace(t.allotment, experts=out)
    )


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[TenantSnapshot], int]:
    """Tenants of any shape, in any state that fits, and the bytes of their device."""
    several = []
    for name in "abcd"[: draw(st.integers(1, 4))]:
        used, kv, layers_remapped = (
            draw(st.integers(0, 40)),
            draw(st.integers(2, 60)),
            draw(st.integers(0, 9)),
        )
        active = draw(st.booleans())
        some = tenant(
            name,
            used,
            draw(st.integers(0, 20)) if active else 0,
            draw(st.integers(0, 20)) if active else 0,
            active=active,
            layers_remapped=layers_remapped,
            stream_slots=draw(st.sampled_from([1, 2])) if layers_remapped else 1,
            kv=kv,
            peak=draw(st.integers(0, 80)),
            priority=draw(st.integers(0, 1)),
            last_busy=draw(st.integers(0, 3)),
            times=(draw(st.integers(0, 4)), draw(st.integers(0, 4))),
        )
        # An extent is smaller than any layer, as it is in any model worth remapping.
        sizes = {"layer_bytes": draw(st.integers(7, 30)), "extent_bytes": draw(st.integers(1, 7))}
        compute = draw(st.integers(0, 4))
        shape = structs.replace(SHAPE, **sizes)
        costly = draw(st.sampled_from([False, False, True]))
        wants = {"running": draw(st.integers(0, 1)), "admission_extents": draw(st.integers(0, 60))}
        some = structs.replace(
            some,
            shape=shape,
            report=structs.replace(some.report, **wants),
            peak_compute_s=compute,
            lacked=draw(st.booleans()),
            costly=costly,
        )
        several.append(draw(mixtures(some)) if draw(st.booleans()) else some)
    least = sum(footprint(t.shape, 0, t.shape.min_extents) for t in several)
    running = sum(
        footprint(t.shape, t.layers_out, max(t.used_extents, 2), experts_out(t)) for t in several
    )
    device = max(least, running) + draw(st.integers(0, 600))
    spare = (device - least) // len(several)
    shared = []
    for t in several:
        share = (footprint(t.shape, 0, t.shape.min_extents) + spare) * 100 / device
        shared.append(structs.replace(t, tenant=replace(t.tenant, share=share + 1e-4)))
    return shared, device


SETTINGS = st.builds(
    Rules,
    serve=st.sampled_from(["growth", "admission"]),
    lend_percent=st.sampled_from([0, 50, 75, 99.9, 100]),
    tbt_ms=st.sampled_from([None, 1e-3, 1e3, 1e6]),
    decode_cap=st.booleans(),
    slack_extents=st.integers(0, 3),
    experts=st.just(True),
)


WHEN = st.fixed_dictionaries(
    {
        "turns": st.none()
        | st.builds(
            TurnLengths,
            st.sampled_from([1.0, 100.0, 1e4]),
            st.booleans(),
            st.sampled_from([0, 60, 1 << 30]),
        ),
        "now": st.sampled_from([3.0, 302.0, inf]),
    }
)


def _given_bytes(t: TenantSnapshot) -> int:
    return experts_out(t) * experts_gain(t.shape)


@given(situations(), SETTINGS, WHEN)
def test_any_plan_keeps_its_bounds(situation, remap: Rules, when) -> None:
    tenants, device = situation
    targets = plan(tenants, device, 0, Policy.MIRAGE, remap, **when).targets
    total = 0
    for t in tenants:
        target = targets[t.name]
        total += footprint(t.shape, target.layers_remapped, target.kv_extents, target.experts)
        assert 0 <= target.experts <= most_experts(t.tenant, t.shape, remap)
        assert not (target.layers_remapped and target.experts)
        share = base(t.tenant, t.shape, device).kv_extents
        least = min(t.used_extents, share) if target.recall else t.used_extents
        assert max(least, t.shape.min_extents) <= target.kv_extents <= t.shape.max_extents
        assert target.recall == (target.kv_extents < t.used_extents)
        most = most_remapped(t.tenant, t.shape, remap)
        hidden = hidden_layers(t, t.report.layer_compute_s, remap)
        away = max(t.layers_out, ceil_div(_given_bytes(t), t.shape.layer_bytes))
        assert target.layers_remapped <= (max(hidden, away) if t.active else most)
        assert (
            target.layers_remapped == 0
            or target.layers_remapped + target.stream_slots
            <= t.shape.layers - t.tenant.floor_layers
        )
    assert total <= device


@given(situations(), SETTINGS, WHEN)
@examples(600)
def test_plans_settle(situation, remap: Rules, when) -> None:
    """Plans are made and carried out 14 times: the last two are the same, and layers never go back
    and forth. Otherwise the controller would chase its own decisions.

    Without recalls the layers of each tenant move one way from the second plan on. With recalls,
    what one tenant has called in moves layers, and their next owner may not bear it either.
    """
    tenants, device = situation
    plans = []
    for _ in range(14):
        plans.append(plan(tenants, device, 0, Policy.MIRAGE, remap, **when).targets)
        tenants = [carried_out(t, plans[-1][t.name]) for t in tenants]
    recalls = [any(target.recall for target in made.values()) for made in plans]
    assert not any(recalls[-2:])
    assert plans[-2] == plans[-1]
    if not any(recalls):
        for name in plans[0]:
            layers = [made[name].layers_remapped for made in plans[1:]]
            assert layers in (sorted(layers), sorted(layers, reverse=True))


@given(situations(), SETTINGS, WHEN, st.sampled_from(Policy), st.data())
def test_a_plan_does_not_depend_on_those_before(
    situation, rules: Rules, when, policy: Policy, data: st.DataObject
) -> None:
    """A planner that has made plans for other states of the tenants makes the same plan as a new
    planner.
    """
    tenants, device = situation
    planner = Planner(device, policy, rules)
    for _ in range(4):
        made = planner.plan(tenants, 0, **when)
        fresh = plan(tenants, device, 0, policy, rules, **when)
        assert (made.targets, made.moves) == (fresh.targets, fresh.moves)
        when = data.draw(st.just(when) | WHEN)
        changed = data.draw(st.integers(0, len(tenants) - 1))
        target = made.targets[tenants[changed].name]
        then = data.draw(st.sampled_from([woken, slower, partial(carried_out, target=target)]))
        tenants[changed] = then(tenants[changed])


def woken(t: TenantSnapshot) -> TenantSnapshot:
    return structs.replace(t, active=not t.active)


def slower(t: TenantSnapshot) -> TenantSnapshot:
    compute_s = 2 * t.report.layer_compute_s
    return structs.replace(t, report=structs.replace(t.report, layer_compute_s=compute_s))


def carried_out(t: TenantSnapshot, target: Allotment) -> TenantSnapshot:
    sent = Allotment(2, target.layers_remapped, target.stream_slots, target.kv_extents, 0)
    used = min(t.used_extents, target.kv_extents)
    report = structs.replace(t.report, layers_remapped=target.layers_remapped, kv_used_extents=used)
    return structs.replace(t, allotment=sent, report=report)


# -- slots ------------------------------------------------------------------------------


def slots_of(t: TenantSnapshot, remap: Rules = REMAP) -> int:
    return plan([t], SHARE, 0, Policy.MIRAGE, remap).targets[t.name].stream_slots


def test_one_slot_where_it_hides_and_two_where_only_those_do() -> None:
    """Three streamed layers of 12 have gaps of 3, 4, 2 and 3 layers. One slot hides loads up to T_T
    = T_c, so it is planned there; for T_T = 2 T_c two slots are, which hide up to 12/5 T_c.
    """
    assert slots_of(tenant("a", 10, 6, of=1, times=(1.0, 1.0))) == 1
    assert slots_of(tenant("a", 10, 6, of=1, times=(2.0, 1.0))) == 2


def test_slots_stay_while_times_are_unknown() -> None:
    grown = {"used": 16, "kv": 16, "of": 1, "layers_remapped": 3}
    assert slots_of(tenant("a", **grown, stream_slots=1, times=(0.0, 0.0))) == 1
    assert slots_of(tenant("a", 10, 2, of=1, times=(0.0, 0.0))) == 2


def test_slots_stay_while_they_hide() -> None:
    grown = {"used": 16, "kv": 16, "of": 1, "layers_remapped": 3}
    assert slots_of(tenant("a", **grown, stream_slots=2, times=(1.5, 1.0))) == 2
    assert slots_of(tenant("a", **grown, stream_slots=1, times=(2.4, 1.0))) == 2


def test_a_clearly_shorter_step_changes_the_slots() -> None:
    """Loads hide with neither number of slots. The plan compares the steps, (3 + 1)(T_T + T_c) with
    one slot and (3 + 2) T_T with two; the number changes only if its step is shorter.
    """
    grown = {"used": 16, "kv": 16, "of": 1, "layers_remapped": 3}
    assert slots_of(tenant("a", **grown, stream_slots=2, times=(5.0, 1.0))) == 1
    assert slots_of(tenant("a", **grown, stream_slots=1, times=(3.0, 1.0))) == 2
    assert slots_of(tenant("a", **grown, stream_slots=2, times=(4.0, 1.0))) == 2, (
        "as short: they stay"
    )


@pytest.mark.parametrize("stream_slots", [1, 2])
def test_a_number_of_slots_can_be_asked_for(stream_slots: int) -> None:
    """The setting `stream_slots` fixes the number of slots. The number of layers that hide is
    computed with the better number all the same.
    """
    fixed = REMAP.model_copy(update={"stream_slots": stream_slots})
    assert slots_of(tenant("a", 10, 6, of=1, times=(2.0, 1.0)), fixed) == stream_slots
    assert hidden_layers(tenant("a", times=(2.2, 1.0)), 1.0, REMAP) == 3
    assert hidden_layers(tenant("a", times=(2.2, 1.0)), 1.0, fixed) == 3
    assert hidden_layers(tenant("a", times=(2.4, 1.0)), 1.0, REMAP) == 2, "3 % would be felt"


def test_tenants_that_step_at_once_share_the_link() -> None:
    """T_T = T_c. Alone on the link, `a` hides nine layers of twelve and gives them; beside a second
    active tenant it hides four.
    """
    starving = tenant("a", 10, growth=60, of=2, kv=10)
    alone = [starving, tenant("b", kv=10, active=False, layers_remapped=0)]
    assert hidden_layers(starving, 1.0, REMAP, streams=1) == 9
    assert hidden_layers(starving, 1.0, REMAP, streams=2) == 4
    assert planned(*alone)["a"][0] == 9
    assert planned(starving, tenant("b", 10, kv=10))["a"][0] == 4
