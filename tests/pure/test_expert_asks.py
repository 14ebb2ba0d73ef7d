"""The plan's choice between layers and experts to give away, and their number."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs
from test_planner import REMAP, SHARE, plan, tenant
from world import SHAPE

from mirage.config import Policy
from mirage.control.spilling import TurnLengths
from mirage.control.tenant_rows import Terms, row_of
from mirage.control.tenant_state import TenantSnapshot
from mirage.geometry import experts_gain, footprint

pytestmark = pytest.mark.pure

MIXTURE = structs.replace(SHAPE, movable_experts=4, expert_layers=SHAPE.layers, expert_bytes=20)
GAIN = experts_gain(MIXTURE)
FREE = [0.0] * 4 + [50.0, 100.0]
"""Three of each layer's five experts are never routed to, the others always."""
RULES = REMAP.model_copy(update={"experts": True})


def mixture(*demand: int, out: int = 0, routed: list[float] = FREE, **more: Any) -> TenantSnapshot:
    """A tenant with a mixture of experts none of whose layers hides, because a layer loads 100
    times as long as it computes. `routed` has the loads in a step, of a second each, by the number
    of experts away.
    """
    t = tenant("a", *demand, of=1, **{"times": (100.0, 1.0)} | more)
    report = structs.replace(t.report, experts=out, expert_load_s=1.0, expert_routed=routed)
    return structs.replace(t, shape=MIXTURE, report=report)


def planned(t: TenantSnapshot, rules: Any = RULES, policy: Policy = Policy.MIRAGE) -> Any:
    """Layers remapped, experts and extents of a plan, which has to fit into the device."""
    target = plan([t], SHARE, 0, policy, rules).targets["a"]
    given = target.layers_remapped, target.kv_extents, target.experts
    assert footprint(MIXTURE, *given) <= SHARE
    return target.layers_remapped, target.experts, target.kv_extents


def test_an_active_mixture_gives_as_many_as_its_demand_takes() -> None:
    extra = GAIN // MIXTURE.extent_bytes
    assert planned(mixture(10)) == (0, 0, 10)
    assert planned(mixture(10, extra)) == (0, 1, 10 + extra)
    assert planned(mixture(10, 0, 1000)) == (0, 3, 10 + 3 * GAIN // MIXTURE.extent_bytes)


@pytest.mark.parametrize("policy", [Policy.POOLED, Policy.MIRAGE])
def test_only_if_it_is_told_to_and_knows_its_routing(policy: Policy) -> None:
    assert planned(mixture(10, 100), REMAP, policy) == (0, 0, 10)
    assert planned(mixture(10, 100, routed=[]), policy=policy) == (0, 0, 10)
    assert planned(mixture(10, 100), policy=Policy.POOLED) == (0, 0, 10)


def test_layers_that_hide_go_first_where_they_bring_as_much() -> None:
    layers_remapped, experts, _ = planned(mixture(10, 1000, times=(1.0, 1.0)))
    assert layers_remapped > 0 and experts == 0


def test_experts_that_bring_more_are_given_if_their_loads_cost_less_than_that() -> None:
    """Two layers hide. Four experts bring 4.4 times as much memory and make steps 4 % longer, so
    experts are given. With a large KV cache the additional memory gains little, and layers are
    given.
    """
    routed = [0.0, 0.5, 0.5, 0.5, 0.5, 100.0]
    assert planned(mixture(10, 1000, times=(2.5, 1.0), routed=routed))[:2] == (0, 4)
    # With a cache so large that what both bring hardly makes a batch larger, layers are given.
    assert planned(mixture(10, 1000, times=(2.5, 1.0), routed=routed, kv=600))[0] > 0


def test_experts_that_cost_more_than_they_bring_are_asked_for_by_nobody() -> None:
    """Loads of experts cost more than their memory brings. The plan asks for no further expert; one
    that is away already stays away.
    """
    costly = [0.0, 0.5, 0.5, 0.5, 0.5, 100.0]
    for kv, unfelt in ((20, 4), (600, 0)):
        t = mixture(10, 1000, routed=costly, out=1, kv=kv)
        row = row_of(t, Terms(SHARE, Policy.MIRAGE, RULES, 1, None), True)
        assert (row.gives_experts, row.hidden, row.out) == (True, unfelt, 1)


def test_in_turns_experts_stay_away_as_long_as_spilling_costs_more() -> None:
    """A mixture gets its turn while suspended requests of others use its experts' memory. In short
    turns all four experts stay away; in long ones, two come back.
    """
    routed = [0.0, 0.0, 0.0, 6.0, 12.0, 100.0]
    few, many = (bears(TurnLengths(s, below_bytes=1 << 30), routed) for s in (1e-2, 1e4))
    assert few == 4 and many == 2


def bears(turns: TurnLengths, routed: list[float]) -> int:
    t = mixture(10, 1000, routed=routed)
    row = row_of(t, Terms(SHARE, Policy.MIRAGE, RULES, 1, turns), True)
    assert row.gives_experts
    return row.bears


def test_what_own_requests_sit_on_stays_away_though_it_is_hot_now() -> None:
    hot = [0.0, 50.0, 100.0, 150.0, 200.0, 250.0]
    used = 10 + 2 * GAIN // MIXTURE.extent_bytes
    assert planned(mixture(used, out=2, kv=used, routed=hot))[1] == 2
    assert planned(mixture(10, out=2, kv=used, routed=hot)) == (0, 0, 10)


def test_an_idle_one_gives_layers() -> None:
    hungry = structs.replace(tenant("b", 10, 0, 100), shape=SHAPE)
    idle = structs.replace(mixture(active=False, last_busy=0.0), tenant=tenant("a").tenant)
    targets = plan([idle, hungry], 2 * SHARE, 0, Policy.MIRAGE, RULES).targets
    assert targets["a"].layers_remapped > 0 and targets["a"].experts == 0
