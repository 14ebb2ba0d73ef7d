"""Turns and memory decided together."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirage.config import Config, Device, Policy, Sharing, Tenant
from mirage.decider import Decider
from mirage.protocol import PROTOCOL_VERSION, Allotment, Hello, ModelShape, Report, Turn

pytestmark = pytest.mark.pure

SHAPE = ModelShape(
    layers=12,
    layer_bytes=100,
    fixed_bytes=0,
    extent_bytes=50,
    extent_blocks=1,
    block_tokens=16,
    max_extents=200,
    min_extents=2,
    movable_layers=12,
)


def decider(mode: str) -> Decider:
    tenants = [Tenant(name=n, model=Path(n), share=50) for n in "ab"]
    config = Config(
        device=Device(memory=3400),
        tenants=tenants,
        sharing=Sharing(mode=mode, turn_s=1.0),
        policy=Policy.MIRAGE,
    )
    made = Decider.of(config)
    for name in "ab":
        made.joined(Hello(PROTOCOL_VERSION, name, 1, SHAPE, 0), 0.0)
    assert [type(m) for _, m in made.decide(0.0)] == [Allotment, Allotment]
    return made


def report(holds: bool, running: int = 0, growth: int = 0) -> Report:
    return Report(
        revision=1,
        holds_turn=holds,
        held_bytes=1700,
        alpha=0,
        beta=1,
        kv_extents=10,
        kv_used_extents=10 if running else 0,
        kv_blocks=9,
        growth_extents=growth,
        running=running,
    )


def test_spatial_sharing_sends_no_turns() -> None:
    made = decider("spatial")
    made.reported("a", report(True, running=1), 0.1)
    assert made.decide(0.1) == []


def test_a_turn_is_given_confirmed_revoked_and_passed_on() -> None:
    made = decider("temporal")
    made.reported("a", report(False, running=1), 0.0)
    made.reported("b", report(False, running=1), 0.0)
    assert made.decide(0.0) == [("a", Turn(True))]
    made.reported("a", report(True, running=1), 0.1)
    assert made.decide(0.1) == []
    assert made.next_deadline(0.1) == 1.0
    assert made.decide(1.0) == [("a", Turn(False))]
    made.reported("a", report(True, running=1), 1.1)
    assert made.decide(1.1) == []
    made.reported("a", report(False, running=1), 1.2)
    assert made.decide(1.2) == [("b", Turn(True))]


def test_the_holder_gets_the_idle_kv_of_the_others() -> None:
    made = decider("temporal")
    made.reported("a", report(False, running=1, growth=6), 0.0)
    first, second = made.decide(0.0)
    assert first == ("a", Turn(True))
    name, allotment = second
    assert name == "b"
    assert isinstance(allotment, Allotment)
    assert (allotment.alpha, allotment.kv_extents) == (0, 2)


def test_death_passes_the_turn_on_at_once() -> None:
    made = decider("temporal")
    for name in "ab":
        made.reported(name, report(False, running=1), 0.0)
    made.decide(0.0)
    made.lost("a", 0.5)
    assert made.decide(0.5) == [("b", Turn(True))]
