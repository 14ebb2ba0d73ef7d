"""The ceiling of what lending may add to a tenant's tokens: measured, and kept by plans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs
from test_controller import holding, occupy, pair
from test_planner import planned, tenant
from test_tenant_state import report, store

from mirage.control.tenant_state import COST_S, MetadataStore, TenantSnapshot
from mirage.control.windows import RecentMean
from scheduler.clocked import Clocked
from scheduler.tenants import Tenant

pytestmark = pytest.mark.pure


# -- the mean ----------------------------------------------------------------------------


def test_a_mean_is_weighted_and_forgets() -> None:
    mean = RecentMean(60.0)
    assert mean.at(0.0) == Clocked(0.0)
    mean.add(0.4, 100, 0.0)
    mean.add(0.5, 100, 5.0)
    mean.add(0.0, 200, 6.0)
    assert mean.at(9.0) == Clocked(0.9 / 400, 60.0)
    assert mean.at(60.0) == Clocked(0.0, 66.0)
    assert mean.at(66.0) == Clocked(0.0)


# -- what is measured --------------------------------------------------------------------


def costing(ms: float | None = 2.0) -> MetadataStore:
    """Store in which tenant `a` has a ceiling of `ms` per token, while each of its tokens has
    waited 4 ms for streamed layers.
    """
    made = store()
    made.declares(Tenant("a", 50, max_cost_ms=ms))
    made.reported("a", report(), 0.0)
    made.reported("a", report(steps=10, tokens=40, stall_s=0.04, running=4), 1.0)
    return made


def costly(made: MetadataStore, now: float) -> bool:
    return next(t.costly for t in made.snapshot(now).tenants if t.name == "a")


def test_tokens_that_wait_for_longer_are_costly_for_a_minute() -> None:
    made = costing()
    assert costly(made, 1.0) and made.valid_until(3.0) == 1.0 + COST_S
    assert costly(made, COST_S) and not costly(made, 1.0 + COST_S)


def test_it_is_the_mean_of_all_tokens() -> None:
    made = costing()
    made.reported("a", report(steps=20, tokens=90, stall_s=0.04, running=4), 2.0)
    assert not costly(made, 2.0)


@pytest.mark.parametrize("ms", [None, 4.1])
def test_without_a_ceiling_or_below_it_nothing_is_costly(ms: float | None) -> None:
    assert not costly(costing(ms), 1.0)


def test_what_an_engine_counted_before_is_no_cost_of_the_next() -> None:
    made = costing()
    made.reported("a", report(steps=5, tokens=10, stall_s=9.0), 70.0)
    assert not costly(made, 70.0)
    made.reported("a", report(steps=6, tokens=14, stall_s=9.001), 71.0)
    assert not costly(made, 71.0)


# -- plans -------------------------------------------------------------------------------


def dear(one: TenantSnapshot) -> TenantSnapshot:
    return structs.replace(one, costly=True)


@pytest.mark.parametrize(
    ("asks", "lender"),
    [
        (tenant("a", 10, 14), tenant("b")),
        (tenant("a", 10, 30), tenant("b", 2, times=(0.1, 9.0))),
    ],
    ids=["idle", "active"],
)
def test_who_pays_too_much_gives_no_layers(asks: TenantSnapshot, lender: TenantSnapshot) -> None:
    assert planned(asks, lender)["b"][0] > 0
    assert planned(asks, dear(lender))["b"][0] == 0


def test_what_running_requests_sit_on_stays_away() -> None:
    lent = tenant("b", active=False, layers_remapped=3, kv=2)
    asks = tenant("a", 22, 0, 20, kv=24)
    assert planned(asks, lent)["b"][0] > 2
    assert planned(asks, dear(lent))["b"][0] == 2, "four extents are beyond all memory for KV"


def test_none_for_its_own_requests_either() -> None:
    alone = tenant("a", 10, 40, of=1)
    assert planned(alone)["a"][0] > 0
    assert planned(dear(alone))["a"] == (0, 10)


def test_a_ceiling_holds_at_once() -> None:
    """Tenant `b` has lent layers to `a`. Its new ceiling on the cost per token brings them back,
    and none is lent again until the ceiling is removed.
    """
    world = pair(victims="mru")
    occupy(world, "a", 10, growing=10)
    for _ in range(3):
        world.round()
    assert holding(world, "b")[0] > 0

    def told(**counted: Any) -> None:
        b = world.alive["b"]
        again = structs.replace(b.report(), **counted)
        b.outbox.clear()
        world.controller.reported("b", again, world.now)
        world.decide()

    told(steps=1)
    told(steps=11, tokens=10, stall_s=1.0)
    b = world.tenants["b"]
    world.controller.declares(replace(b, max_cost_ms=50.0))
    world.alive["a"].running.clear()
    for _ in range(2):
        world.round(2.0)
    occupy(world, "a", 10, growing=10)
    for _ in range(3):
        world.round()
    assert holding(world, "b")[0] == 0
    world.controller.declares(replace(b, max_cost_ms=None))
    occupy(world, "a", 0, growing=10)
    for _ in range(3):
        world.round()
    assert holding(world, "b")[0] > 0
