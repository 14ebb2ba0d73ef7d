"""Moves of a plan: they add up to its targets, and each has its source, its destination and its
reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from test_planner import (
    REMAP,
    SETTINGS,
    SHARE,
    WHEN,
    held,
    plan,
    sharing_exactly,
    situations,
    tenant,
)
from world import SHAPE

from mirage.config import Policy
from mirage.control.moves import FREE, Flow, Kind, Move, PassRecord, Place, Reason, moves
from mirage.control.planner import Plan
from mirage.control.rules import Rules
from mirage.control.tenant_state import TenantSnapshot
from mirage.geometry import experts_gain, footprint
from tests.examples import examples

pytestmark = pytest.mark.pure

WAYS = SETTINGS.flatmap(
    lambda rules: st.builds(
        rules.model_copy,
        update=st.fixed_dictionaries(
            {"reversion": st.booleans(), "victims": st.sampled_from(["mru", "lru"])}
        ),
    )
)


@st.composite
def caching(draw: st.DrawFn) -> tuple[list[TenantSnapshot], int]:
    """Drawn tenants, some of which have cached prefixes that requests find again, and the bytes of
    their device.
    """
    tenants, device = draw(situations())
    return [draw(with_prefixes(t)) if draw(st.booleans()) else t for t in tenants], device


@st.composite
def with_prefixes(draw: st.DrawFn, t: TenantSnapshot) -> TenantSnapshot:
    blocks = draw(st.integers(1, 20))
    report = structs.replace(t.report, kv_cached_blocks=blocks, token_s=draw(st.floats(0.01, 1)))
    return structs.replace(t, report=report, again_blocks_s=draw(st.floats(0, 5)))


def start(tenants: list[TenantSnapshot], free: int) -> Counter[Place]:
    """Bytes in each place before the first pass: layers and experts of all tenants, and free
    memory.
    """
    places = Counter({FREE: free})
    for t in tenants:
        places[Place(Kind.LAYERS, t.name)] = t.shape.layers * t.shape.layer_bytes
        places[Place(Kind.EXPERTS, t.name)] = t.shape.movable_experts * experts_gain(t.shape)
    return places


def end(tenants: list[TenantSnapshot], made: Plan, free: int) -> Counter[Place]:
    """Bytes in each place after a plan was carried out, by its targets; cached prefixes are within
    KV memory.
    """
    places = start(tenants, free)
    for t in tenants:
        target, shape = made.targets[t.name], t.shape
        kv, given = (
            target.kv_extents * shape.extent_bytes,
            target.layers_remapped * shape.layer_bytes,
        )
        experts = target.experts * experts_gain(shape)
        places[Place(Kind.KV, t.name)] = kv
        places[Place(Kind.LAYERS, t.name)] -= given
        places[Place(Kind.EXPERTS, t.name)] -= experts
        places[FREE] += given + experts - kv
    return places


def applied(places: Counter[Place], made: Iterable[Move]) -> Counter[Place]:
    """`places` after the moves; cached prefixes count as KV memory. Fails if a place lacks bytes
    for a move.
    """
    now = places.copy()
    for move in made:
        now[move.source] -= move.nbytes
        now[move.to] += move.nbytes
        assert now[move.source] >= 0, f"{move} of what is not there"
    for place in [place for place in now if place.kind is Kind.PREFIXES]:
        now[Place(Kind.KV, place.tenant)] += now.pop(place)
    return now


@given(caching(), WAYS, WHEN, st.sampled_from(Policy))
@examples(600)
def test_the_moves_of_a_plan_sum_to_it(
    situation: tuple[list[TenantSnapshot], int], rules: Rules, when: Any, policy: Policy
) -> None:
    """The moves of a plan lead from all layers in place and no KV memory to its targets. None moves
    zero bytes, or from a place to itself.
    """
    tenants, device = situation
    if policy is not Policy.MIRAGE:
        tenants = sharing_exactly([in_place(t) for t in tenants])
        device = held(tenants)
    made = plan(tenants, device, 0, policy, rules, **when)
    free = device - sum(footprint(t.shape, 0, 0) for t in tenants)
    assert +applied(start(tenants, free), made.moves) == +end(tenants, made, free)
    for move in made.moves:
        assert move.nbytes > 0 and move.source != move.to
        assert move.tenant in {move.source.tenant, move.to.tenant} - {""}
    pairs = Counter((m.reason, m.source, m.to) for m in made.moves)
    assert policy is not Policy.STATIC or {m.reason for m in made.moves} <= {Reason.SHARE}
    assert max(pairs.values(), default=0) <= 2, "admission has two passes, all else one"


def in_place(t: TenantSnapshot) -> TenantSnapshot:
    """Copy of a tenant that has all its layers and experts and no allotment."""
    report = structs.replace(t.report, layers_remapped=0, experts=0)
    return structs.replace(t, report=report, allotment=None)


@given(caching(), WAYS, WHEN, st.data())
def test_what_two_plans_move_differs_by_what_they_give(
    situation: tuple[list[TenantSnapshot], int], rules: Rules, when: Any, data: st.DataObject
) -> None:
    """Two plans are made for different activity of the tenants. The difference of their moves is
    the difference of the memory that they give each tenant.
    """
    tenants, device = situation
    later = [structs.replace(t, active=data.draw(st.booleans()), last_busy=4.0) for t in tenants]
    first, second = (
        plan(each, device, 0, Policy.MIRAGE, rules, **when) for each in (tenants, later)
    )
    change = net(second)
    change.subtract(net(first))
    for t in tenants:
        before, after = first.targets[t.name], second.targets[t.name]
        layers, kv = (Place(kind, t.name) for kind in (Kind.LAYERS, Kind.KV))
        assert (
            change[layers] == (before.layers_remapped - after.layers_remapped) * t.shape.layer_bytes
        )
        assert change[kv] == (after.kv_extents - before.kv_extents) * t.shape.extent_bytes
    assert sum(change.values()) == 0


def net(made: Plan) -> Counter[Place]:
    return applied(Counter(dict.fromkeys(EVERY, 1 << 60)), made.moves)


EVERY = [FREE, *(Place(kind, name) for kind in Kind if kind != Kind.FREE for name in "abcd")]


# -- what an operator reads -------------------------------------------------------------


def told(made: Plan) -> list[str]:
    return [f"{m.reason}: {m.source} -> {m.to} {m.nbytes}" for m in made.moves]


def planned(*tenants: TenantSnapshot) -> list[str]:
    return told(plan(tenants, len(tenants) * SHARE, 0, Policy.MIRAGE, REMAP))


def test_idle_memory_pays_before_layers_of_an_idle_model_do() -> None:
    """`a` grows by 700 bytes beyond its share. All 400 free bytes, which `b` does not use, go to
    it. Only the other 300 come from layers of `b`.
    """
    assert planned(tenant("a", 10, 14), tenant("b")) == [
        "running: free memory -> KV memory of a 500",
        "running: free memory -> KV memory of b 100",
        "growth beyond: layers of b -> KV memory of a 300",
        "growth beyond: free memory -> KV memory of a 400",
    ]


def test_what_a_layer_brings_too_much_goes_to_a_share() -> None:
    assert planned(tenant("a", 10, 9), tenant("b"))[2:] == [
        "growth beyond: layers of b -> KV memory of a 100",
        "growth beyond: free memory -> KV memory of a 350",
        "share: free memory -> KV memory of b 50",
    ]


def test_own_layers_pay_for_own_requests() -> None:
    own = [line for line in planned(tenant("a", 10, 40, of=1)) if "layers" in line]
    assert own == ["growth beyond: layers of a -> KV memory of a 900"]


def test_what_is_called_back_becomes_the_layers_of_the_woken_model() -> None:
    running = tenant("a", 24, 2, 40, kv=28, times=(9.0, 1.0))
    awake = tenant("b", 1, layers_remapped=9, kv=2, times=(9.0, 1.0))
    lines = planned(running, awake)
    assert "running: layers of b -> KV memory of a 300" in lines
    assert "recall: KV memory of a -> layers of b 300" in lines


def test_cached_prefixes_are_kept_and_then_taken_by_demand() -> None:
    idle = tenant("b", active=False)
    report = structs.replace(idle.report, kv_cached_blocks=8, token_s=1.0)
    keeping = structs.replace(idle, report=report, again_blocks_s=50.0)
    lines = planned(tenant("a", 10, 14), keeping)
    assert "prefixes: free memory -> cached prefixes of b 350" in lines
    more = planned(tenant("a", 10, 60), keeping)
    assert "growth beyond: cached prefixes of b -> KV memory of a 350" in more


def test_layers_that_nobody_needs_come_back() -> None:
    """One extent of 250 bytes is paid for by layers of 60, 50, 100 and 100 bytes. The layer of 50
    was not needed after all, so a move of the same plan returns it.
    """
    hungry = tenant("a", 2, 1, times=(9.0, 1.0))
    several = [structs.replace(hungry, shape=structs.replace(SHAPE, extent_bytes=250))]
    for name, nbytes, floor, last_busy in (("x", 60, 9, 3), ("y", 50, 9, 2), ("z", 100, 8, 1)):
        giving = tenant(name, 2, active=False, kv=2, last_busy=last_busy)
        shape = structs.replace(SHAPE, layer_bytes=nbytes)
        owner = replace(giving.tenant, floor_layers=floor)
        several.append(structs.replace(giving, shape=shape, tenant=owner))
    made = plan(sharing_exactly(several), held(several), 0, Policy.MIRAGE, REMAP)
    assert [m.reason for m in made.moves if m.to.kind is Kind.LAYERS] == [Reason.RESTORE]


def test_static_shares_are_held() -> None:
    made = plan([tenant("a", of=1)], SHARE, 0, Policy.STATIC, REMAP)
    assert told(made) == ["share: free memory -> KV memory of a 500"]


def test_every_reason_is_a_sentence() -> None:
    for reason in Reason:
        assert reason.sentence[0].isupper() and reason.sentence.endswith(".")
        assert str(reason) == reason.value == reason.value.lower()


# -- who pays whom ----------------------------------------------------------------------


def paid(free: int, *flows: Flow) -> list[tuple[str, str, int]]:
    made = moves([PassRecord(Reason.GROWTH, free, list(flows))])
    return [(str(m.source), str(m.to), m.nbytes) for m in made]


def test_own_memory_pays_first_then_what_others_gave_then_free_memory() -> None:
    given = (Kind.LAYERS, "b", -100), (Kind.LAYERS, "c", -100), (Kind.LAYERS, "a", -50)
    assert paid(30, *given, (Kind.KV, "a", 270)) == [
        ("layers of a", "KV memory of a", 50),
        ("layers of b", "KV memory of a", 100),
        ("layers of c", "KV memory of a", 100),
        ("free memory", "KV memory of a", 20),
    ]


def test_who_took_before_anybody_gave_is_paid_by_its_own_first() -> None:
    taken = (Kind.KV, "a", 60), (Kind.KV, "b", 60)
    assert paid(40, *taken, (Kind.LAYERS, "b", -100)) == [
        ("free memory", "KV memory of a", 40),
        ("layers of b", "KV memory of b", 60),
        ("layers of b", "KV memory of a", 20),
        ("layers of b", "free memory", 20),
    ]


def test_what_no_one_gives_free_memory_owes() -> None:
    assert paid(-10, (Kind.KV, "a", 60)) == [("free memory", "KV memory of a", 60)]
    assert paid(0, (Kind.KV, "a", 0)) == []
