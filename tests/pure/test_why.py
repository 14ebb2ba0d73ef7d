"""Reasons for a tenant's memory, from the moves of a plan to the words in `/mirage/state`."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_controller import occupy, pair
from world import SHAPE, World

from mirage.config import Policy
from mirage.control.moves import Kind, Reason
from mirage.protocol import Allotment
from mirage.serve.registry.registry import DeviceSources, Registry, TenantServer

pytestmark = pytest.mark.pure


def lending() -> World:
    """World in which `a` has grown by ten extents: eight idle ones of `b`, and two that one layer
    of `b` pays for.
    """
    world = pair(victims="mru")
    occupy(world, "a", 10, growing=10)
    for _ in range(3):
        world.round()
    return world


def test_nothing_is_said_of_a_share() -> None:
    world = pair()
    assert world.controller.why("a") == world.controller.why("nobody") == []


def test_the_moves_of_a_tenant_sum_to_its_newest_allotment() -> None:
    world = lending()
    sent = world.sent["a"]
    assert isinstance(sent, Allotment) and sent.kv_extents == 20
    why = world.controller.why("a")
    kv = [m for m in why if m.to.kind is Kind.KV]
    assert sum(m.nbytes for m in kv) == sent.kv_extents * SHAPE.extent_bytes
    assert {m.reason for m in kv} == {Reason.RUNNING, Reason.GROWTH_BEYOND}
    layers = [m for m in world.controller.why("b") if m.source.kind is Kind.LAYERS]
    assert [(m.tenant, m.to.tenant, m.reason) for m in layers] == [("a", "a", Reason.GROWTH_BEYOND)]
    assert sum(m.nbytes for m in layers) == world.sent["b"].layers_remapped * SHAPE.layer_bytes


def test_a_new_engine_has_its_share_for_no_reason() -> None:
    world = lending()
    assert world.controller.why("a")
    world.die("a")
    assert world.controller.why("a") == []


def test_the_state_tells_it_in_words(tmp_path: Path) -> None:
    world = lending()
    backends = {name: TenantServer(name, tmp_path / name, 128) for name in "ab"}
    registry = Registry(Policy.MIRAGE, 1 << 30, backends)
    assert registry.state()["engines"]["a"]["moves"] == []
    registry = Registry(Policy.MIRAGE, 1 << 30, backends, DeviceSources(why=world.controller.why))
    (move,) = (m for m in registry.state()["engines"]["b"]["moves"] if "layers" in m["from"])
    assert move == {
        "from": "layers of b",
        "to": "KV memory of a",
        "bytes": world.sent["b"].layers_remapped * SHAPE.layer_bytes,
        "reason": "growth beyond",
        "because": "Running requests need more than the share of their model.",
    }
