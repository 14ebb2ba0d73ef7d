"""The controller against engines that obey slowly, report late, die and come back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from msgspec import structs
from world import SHAPE as USUAL
from world import FakeEngine, World

from mirage.config import PATIENCE_S, Policy
from mirage.control.ledger import LedgerError, OverCommitError, UnknownTenantError
from mirage.control.rules import Rules
from mirage.control.targets import DoesNotFitError
from mirage.geometry import footprint
from mirage.protocol import Allotment, ModelShape, Refusal
from scheduler.tenants import Tenant
from tests.examples import examples

pytestmark = pytest.mark.pure

NAMES = ["a", "b", "c", "d"]

SHAPE = structs.replace(USUAL, min_extents=4)
SHARE = footprint(SHAPE, 0, 10)


def pair(policy: Policy = Policy.MIRAGE, temporal: bool = False, **remap: object) -> World:
    """World with the controller of the equal tenants `a` and `b`, each with a share of ten extents.
    Both have started, and nothing is under way. The memory of one layer is that of two extents.
    """
    settings = Rules(**({"headroom_extents": 0, "slack_extents": 0} | remap))
    tenants = {name: (Tenant(name, 50), SHAPE) for name in "ab"}
    world = World(tenants, 2 * SHARE, policy, settings, temporal)
    for name in "ab":
        world.start(name)
    world.round()
    world.commands.clear()
    return world


def occupy(world: World, name: str, extents: int, growing: int = 0) -> FakeEngine:
    """Let `extents` requests of one extent each run at tenant `name`; the first `growing` of them
    need one more. The engine has sent a report, which has not arrived yet.
    """
    engine = world.alive[name]
    for _ in range(extents):
        engine.arrive(1)
    engine.step()
    for which in range(growing):
        engine.want_growth(which)
    engine.report()
    return engine


def holding(world: World, name: str) -> tuple[int, int]:
    """Layers remapped and KV extents of the last allotment that was sent to tenant `name`."""
    return world.sent[name].layers_remapped, world.sent[name].kv_extents


# -- the way of one extent --------------------------------------------------------------


def test_first_allotments_are_the_shares() -> None:
    world = pair()
    assert holding(world, "a") == holding(world, "b") == (0, 10)
    assert world.controller.free_bytes == 0


def test_a_raise_waits_for_the_donors_report() -> None:
    world = pair()
    occupy(world, "a", 10, growing=3)
    world.deliver("a")
    assert [(c.tenant, c.message.kv_extents) for c in world.commands] == [("b", 7)]
    b = world.alive["b"]
    b.see()
    b.report()
    world.deliver("b")
    assert holding(world, "a") == (0, 10)
    b.settle(1)
    b.report()
    world.deliver("b")
    assert holding(world, "a") == (0, 11)
    b.settle(9)
    b.report()
    world.deliver("b")
    assert holding(world, "a") == (0, 13)


def test_own_layers_move_within_one_allotment_and_one_grant() -> None:
    world = pair()
    for name in "ab":
        world.alive[name].load_s, world.alive[name].compute_s = 1.0, 1.0
    occupy(world, "b", 10)
    world.deliver("b")
    occupy(world, "a", 10, growing=6)
    world.deliver("a")
    (command,) = world.commands
    assert isinstance(command.message, Allotment)
    assert (command.tenant, *holding(world, "a")) == ("a", 3, 16)
    assert command.message.grant_bytes == SHARE


def three(policy: Policy) -> World:
    """World with the controller of the equal tenants b, a and c. `c` uses 22 extents: 10 of its own
    share, and 12 that the others have lent.
    """
    settings = Rules(headroom_extents=0, slack_extents=0, hysteresis_s=0.0)
    tenants = {name: (Tenant(name, 100 / 3), SHAPE) for name in "bac"}
    world = World(tenants, 3 * SHARE + 3, policy, settings)
    for name in "bac":
        world.start(name)
    world.round()
    occupy(world, "c", 10)
    for _ in range(12):
        world.alive["c"].arrive(1)
    for _ in range(3):
        world.round(0.01)
    assert world.alive["c"].used == 22
    world.commands.clear()
    return world


def first_to_get_what_c_frees(world: World) -> str:
    world.commands.clear()
    c = world.alive["c"]
    del c.running[2:]
    for moves in (0, 2):
        while c.inbox:
            c.see()
        c.settle(moves)
        c.report()
        world.deliver("c")
    return next(tenant for tenant, _ in world.commands if tenant != "c")


def test_freed_bytes_go_first_to_who_lacks_growth() -> None:
    world = three(Policy.POOLED)
    assert first_to_get_what_c_frees(world) == "b"
    world = three(Policy.POOLED)
    occupy(world, "a", 4, growing=1)
    world.deliver("a")
    assert first_to_get_what_c_frees(world) == "a"


def test_freed_bytes_go_then_to_who_runs_with_layers_away() -> None:
    world = three(Policy.MIRAGE)
    for _ in range(36):
        world.alive["c"].arrive(1)
    for _ in range(3):
        world.round(0.01)
    assert holding(world, "a") == holding(world, "b") == (9, 4)
    occupy(world, "a", 1)
    world.deliver("a")
    assert first_to_get_what_c_frees(world) == "a"


# -- answers ----------------------------------------------------------------------------


def test_static_answers_growth_with_a_refusal() -> None:
    world = pair(Policy.STATIC)
    occupy(world, "a", 10, growing=1)
    world.deliver("a")
    assert world.commands == [("a", Refusal(1))]


def test_a_refusal_comes_once_for_each_report_and_only_when_nothing_does() -> None:
    world = pair(Policy.POOLED)
    b = occupy(world, "b", 5)
    world.deliver("b")
    a = occupy(world, "a", 10, growing=6)
    world.deliver("a")
    assert [type(c.message) for c in world.commands] == [Allotment]
    b.see()
    b.settle(5)
    b.report()
    world.deliver("b")
    assert holding(world, "a") == (0, 15)
    world.commands.clear()
    a.report()
    world.deliver("a")
    world.wait(0.1)
    assert world.commands == [("a", Refusal(2))]


def test_who_is_refused_may_see_bytes_that_are_kept_for_another_of_larger_blocks() -> None:
    """`a` is refused memory while bytes are free, because they are kept for `c`, whose extents are
    larger.
    """
    small = ModelShape(0, 0, 0, 7, 1, 16, 3, 1, 0)
    large = ModelShape(3, 1, 0, 9, 2, 16, 14, 2, 0)
    donor = ModelShape(3, 1, 0, 1, 1, 16, 2, 1, 0)
    shapes = {"a": (4.9, small), "b": (19.5, donor), "c": (55.6, large)}
    tenants = {name: (Tenant(name, share), shape) for name, (share, shape) in shapes.items()}
    settings = Rules(
        lend_percent=0, max_percent=0, stream_slots=1, headroom_extents=1, slack_extents=0
    )
    world = World(tenants, 147, Policy.MIRAGE, settings)
    for name in world.tenants:
        world.start(name)
        world.round(names=[name])
    for name, sizes in {"a": [1, 1], "c": [1, 1, 1, 1, 2, 2, 1, 1, 1, 1, 1]}.items():
        for size in sizes:
            world.alive[name].arrive(size)
    for _ in range(4):
        world.round()
    refused = [c.tenant for c in world.commands if isinstance(c.message, Refusal)]
    assert "a" in refused
    assert holding(world, "c") == (0, 14)


def test_patience_ends_where_a_donor_does_not_comply() -> None:
    world = pair(Policy.POOLED)
    occupy(world, "a", 10, growing=1)
    world.deliver("a")
    assert world.controller.next_deadline(world.now) == PATIENCE_S
    world.wait(PATIENCE_S - 0.01)
    assert [c.tenant for c in world.commands] == ["b"]
    world.wait(0.01)
    assert world.commands[1:] == [("a", Refusal(1))]


def test_patience_begins_with_the_turn() -> None:
    world = pair(Policy.POOLED, temporal=True)
    world.turn("b")
    occupy(world, "a", 10, growing=1)
    world.deliver("a")
    world.wait(5.0)
    world.turn("a")
    assert [(c.tenant, type(c.message)) for c in world.commands] == [("b", Allotment)]


def test_growth_asked_for_without_the_turn_is_answered_with_it() -> None:
    world = pair(Policy.STATIC, temporal=True)
    world.turn("b")
    occupy(world, "a", 10, growing=1)
    world.deliver("a")
    world.wait(5.0)
    assert world.commands == []
    world.turn("a")
    assert world.commands == [("a", Refusal(1))]


# -- back -------------------------------------------------------------------------------


def remapped(**remap: object) -> World:
    """World in which `a` runs on 24 extents: 18 from both shares, and 6 on the memory of three
    layers of `b`.
    """
    world = pair(**remap)
    occupy(world, "a", 24)
    for _ in range(3):
        world.round()
    assert (holding(world, "a"), holding(world, "b")) == ((0, 24), (4, 4))
    return world


def test_a_surplus_returns_after_it_lasted() -> None:
    world = remapped(hysteresis_s=0.5)
    for _ in range(20):
        world.alive["a"].finish(0)
    world.round(0.4)
    assert holding(world, "b") == (4, 4)
    for _ in range(3):
        world.round(0.1)
    assert (holding(world, "a"), holding(world, "b")) == ((0, 10), (0, 10))


def test_a_surplus_is_taken_at_once_for_a_woken_donor() -> None:
    world = remapped(hysteresis_s=60.0)
    for _ in range(12):
        world.alive["a"].finish(0)
    for _ in range(3):
        world.round(0.01)
    assert holding(world, "b") == (4, 4)
    world.alive["b"].arrive(1)
    for _ in range(3):
        world.round(0.01)
    assert holding(world, "b")[0] == 0


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4)), min_size=10, max_size=40),
    st.sampled_from([0, 4]),
)
@examples(40)
def test_layers_of_an_idle_tenant_do_not_flip(steps, slack: int) -> None:
    """The number of running requests of `a` changes at random. A layer that `b` gave stays away for
    at least the hysteresis time.
    """
    world = pair(hysteresis_s=0.5, slack_extents=slack)
    grown, layers_remapped = 0.0, 0
    for target, tenths in steps:
        a = world.alive["a"]
        while len(a.running) + len(a.waiting) > target:
            (a.waiting or a.running).pop()
        for _ in range(target - len(a.running) - len(a.waiting)):
            a.arrive(1)
        world.round(tenths / 10)
        now, layers_remapped = layers_remapped, holding(world, "b")[0]
        if layers_remapped > now:
            grown = world.now
        assert layers_remapped >= now or world.now >= grown + 0.5


def test_reports_of_two_busy_tenants_move_no_layer_between_them() -> None:
    world = pair()
    for name in "ab":
        occupy(world, name, 10, growing=1)
    for _ in range(8):
        world.round(0.01)
    assert sorted(holding(world, name) for name in "ab") == [(0, 11), (1, 11)]
    world.commands.clear()
    for name in "abab":
        world.now += 0.01
        world.alive[name].report()
        world.deliver(name)
    assert world.commands == []


# -- coming and going -------------------------------------------------------------------


def test_the_share_of_an_absent_tenant_is_lent_to_nobody() -> None:
    world = pair(Policy.POOLED)
    world.die("b")
    occupy(world, "a", 10, growing=3)
    world.deliver("a")
    assert world.commands == [("a", Refusal(1))]


def test_who_comes_back_waits_for_room() -> None:
    world = remapped()
    world.die("b")
    assert not world.controller.has_room("b")
    with pytest.raises(OverCommitError):
        world.controller.joined("b", SHAPE, SHARE, world.now)
    world.commands.clear()
    world.start("b")
    assert world.commands == []
    world.alive["a"].running.clear()
    for _ in range(8):
        world.round(0.1)
    assert (holding(world, "a"), holding(world, "b")) == ((0, 10), (0, 10))


def test_one_that_starts_with_less_has_room_before_its_share_is_free() -> None:
    world = pair(Policy.POOLED)
    occupy(world, "a", 14)
    for _ in range(8):
        world.round()
    world.die("b")
    beyond = world.controller.reserved_bytes("a") - SHARE
    assert beyond > 0 and not world.controller.has_room("b")
    assert world.controller.has_room("b", SHARE - beyond)
    assert not world.controller.has_room("b", SHARE - beyond + 1)


def test_what_was_given_up_serves_the_others_until_it_is_awaited_again() -> None:
    world = pair(Policy.POOLED)
    world.die("b")
    world.give_up("b")
    occupy(world, "a", 10, growing=3)
    world.round()
    assert holding(world, "a") == (0, 13 + world.remap.headroom_extents)
    world.keep("b")
    assert not world.controller.has_room("b")
    world.alive["a"].running.clear()
    for _ in range(8):
        world.round(0.1)
    assert world.controller.has_room("b")
    world.start("b", loaded=True)
    world.round()
    assert (holding(world, "a"), holding(world, "b")) == ((0, 10), (0, 10))


def test_two_that_come_back_at_once_both_have_room() -> None:
    world = pair(Policy.POOLED)
    for name in "ab":
        world.die(name)
        world.give_up(name)
    world.controller.awaited("a")
    world.controller.awaited("b")
    for name in "ab":
        assert world.controller.has_room(name)
        world.controller.joined(name, SHAPE, SHARE, world.now)


def test_there_is_no_room_for_one_in_what_is_kept_for_another() -> None:
    world = three(Policy.POOLED)
    world.die("a")
    world.die("b")
    assert SHARE < world.controller.free_bytes < 2 * SHARE
    assert not world.controller.has_room("a") and not world.controller.has_room("b")
    world.give_up("b")
    assert world.controller.has_room("a")


def test_refused_events_have_names() -> None:
    world = pair()
    with pytest.raises(UnknownTenantError, match="'x'"):
        world.controller.joined("x", SHAPE, 0, 0.0)
    with pytest.raises(LedgerError, match="joined already"):
        world.controller.joined("a", SHAPE, 0, 0.0)
    world.die("a")
    with pytest.raises(DoesNotFitError):
        larger = ModelShape(12, 999, 0, 50, 1, 16, 200, 4, 12)
        world.controller.joined("a", larger, 0, 0.0)
    world.controller.lost("x", 0.0)


# -- anything in any order --------------------------------------------------------------


@st.composite
def shapes(draw: st.DrawFn) -> ModelShape:
    least = draw(st.integers(1, 4))
    found = draw(st.sampled_from([True, True, False]))
    layers = draw(st.integers(3, 16)) if found else 0
    layer_bytes = draw(st.integers(1, 12)) if found else 0
    experts = draw(st.sampled_from([0, 0, 1, 3])) if layer_bytes >= 4 else 0
    return ModelShape(
        layers=layers,
        layer_bytes=layer_bytes,
        fixed_bytes=draw(st.integers(0, 20)),
        extent_bytes=draw(st.integers(1, 9)),
        extent_blocks=draw(st.integers(1, 5)),
        block_tokens=16,
        max_extents=draw(st.integers(least, 80)),
        min_extents=least,
        movable_layers=draw(st.sampled_from([0, layers])),
        movable_experts=experts,
        expert_layers=draw(st.integers(2, layers)) if experts else 0,
        expert_bytes=layer_bytes // (experts + 1) if experts else 0,
    )


@st.composite
def remaps(draw: st.DrawFn) -> Rules:
    return Rules(
        victims=draw(st.sampled_from(["mru", "lru"])),
        serve=draw(st.sampled_from(["growth", "admission"])),
        lend_percent=draw(st.sampled_from([0, 75, 100])),
        tbt_ms=draw(st.sampled_from([None, 1e-3, 1e6])),
        stream_slots=draw(st.sampled_from([1, 2])),
        max_percent=draw(st.sampled_from([0.0, 33.0, 75.0, 100.0])),
        experts=draw(st.booleans()),
        decode_cap=draw(st.booleans()),
        headroom_extents=draw(st.integers(0, 2)),
        slack_extents=draw(st.integers(0, 4)),
        hysteresis_s=draw(st.sampled_from([0.0, 0.5])),
    )


@st.composite
def worlds(draw: st.DrawFn, policy: Policy, temporal: bool) -> World:
    names = NAMES[: draw(st.integers(1, 4))]
    of = {name: draw(shapes()) for name in names}
    spare = {name: draw(st.integers(0, 60)) for name in names}
    needs = {n: footprint(s, 0, s.min_extents) + spare[n] for n, s in of.items()}
    device = sum(needs.values()) + draw(st.integers(0, 30))
    # A little above the exact share, so that its bytes are not rounded below the need.
    shares = {n: min(100.0, need * 100 / device + 1e-4) for n, need in needs.items()}
    device += 1 + device // 10_000
    tenants = {
        n: (
            Tenant(
                n,
                shares[n],
                draw(st.integers(0, 1)),
                draw(st.integers(1, 2)),
                draw(st.sampled_from([None, 0.0, 50.0])),
            ),
            of[n],
        )
        for n in names
    }
    if sum(shares.values()) > 100:
        tenants = {n: (replace(t, share=t.share - 1e-4), s) for n, (t, s) in tenants.items()}
    below_bytes = draw(st.sampled_from([0, 5, 10_000])) if temporal else 0
    return World(tenants, device, policy, draw(remaps()), temporal, below_bytes)


class Worlds(RuleBasedStateMachine):
    """Random events for engines and controller under one policy. `World` checks each event. At the
    end prompt engines must get answers at once, and quiet must bring all memory back.
    """

    policy = Policy.MIRAGE
    temporal = False

    @initialize(data=st.data())
    def start_all(self, data: st.DataObject) -> None:
        self.world = data.draw(worlds(self.policy, self.temporal))
        for name in self.world.tenants:
            self.world.start(name, loaded=data.draw(st.booleans()))
            self.world.round(names=[name])

    def pick(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.world.alive)))

    def anyone_alive(self) -> bool:
        return bool(self.world.alive)

    @precondition(anyone_alive)
    @rule(data=st.data(), sizes=st.lists(st.integers(1, 4), min_size=1, max_size=12))
    def requests_arrive(self, data: st.DataObject, sizes: list[int]) -> None:
        engine = self.world.alive[self.pick(data)]
        for size in sizes:
            engine.arrive(size)

    @precondition(anyone_alive)
    @rule(data=st.data(), which=st.integers(0, 20), count=st.integers(1, 8))
    def requests_grow(self, data: st.DataObject, which: int, count: int) -> None:
        engine = self.world.alive[self.pick(data)]
        for k in range(count):
            engine.want_growth(which + k)

    @precondition(anyone_alive)
    @rule(data=st.data(), count=st.integers(1, 12))
    def requests_finish(self, data: st.DataObject, count: int) -> None:
        engine = self.world.alive[self.pick(data)]
        for _ in range(count):
            engine.finish(0)

    @precondition(anyone_alive)
    @rule(data=st.data(), moves=st.integers(0, 6), messages=st.integers(0, 3))
    def an_engine_obeys(self, data: st.DataObject, moves: int, messages: int) -> None:
        engine = self.world.alive[self.pick(data)]
        for _ in range(messages):
            engine.see()
        engine.settle(moves)
        self.world.check()

    @precondition(anyone_alive)
    @rule(data=st.data())
    def an_engine_steps(self, data: st.DataObject) -> None:
        engine = self.world.alive[self.pick(data)]
        engine.step()
        engine.report()

    @precondition(anyone_alive)
    @rule(data=st.data())
    def a_report_arrives(self, data: st.DataObject) -> None:
        self.world.deliver(self.pick(data))

    @precondition(anyone_alive)
    @rule(data=st.data(), load=st.integers(0, 5), compute=st.integers(0, 5))
    def times_change(self, data: st.DataObject, load: int, compute: int) -> None:
        engine = self.world.alive[self.pick(data)]
        engine.load_s, engine.compute_s = load / 10, compute / 10

    @precondition(anyone_alive)
    @rule(data=st.data(), load=st.integers(0, 3), hot=st.integers(0, 9))
    def routing_changes(self, data: st.DataObject, load: int, hot: int) -> None:
        engine = self.world.alive[self.pick(data)]
        engine.expert_load_s = load / 100
        engine.routed = [n * hot / 10 for n in range(engine.shape.movable_experts + 2)]

    @precondition(anyone_alive)
    @rule(data=st.data(), token=st.integers(0, 3), again=st.integers(0, 40))
    def prefixes_are_asked_for(self, data: st.DataObject, token: int, again: int) -> None:
        engine = self.world.alive[self.pick(data)]
        engine.token_s, engine.keeps_below = token / 10, data.draw(st.booleans())
        engine.again += again

    @rule(seconds=st.sampled_from([0.0, 0.1, 0.3, 0.6]))
    def time_passes(self, seconds: float) -> None:
        self.world.wait(seconds)

    @rule(seconds=st.sampled_from([0.0, 0.02]))
    def everybody_is_prompt(self, seconds: float) -> None:
        self.world.round(seconds)

    @precondition(lambda self: self.temporal and self.world.alive)
    @rule(data=st.data())
    def the_turn_changes(self, data: st.DataObject) -> None:
        self.world.turn(self.pick(data))

    @precondition(anyone_alive)
    @rule(data=st.data())
    def an_engine_dies(self, data: st.DataObject) -> None:
        self.world.die(self.pick(data))

    @rule(data=st.data())
    def the_controller_dies_and_another_has_the_engines(self, data: st.DataObject) -> None:
        read = {name: data.draw(st.integers(0, 3)) for name in sorted(self.world.alive)}
        order = data.draw(st.permutations(sorted(self.world.tenants)))
        self.world.succeed(read, list(order))

    @precondition(lambda self: len(self.world.alive) < len(self.world.tenants))
    @rule(data=st.data(), keep=st.booleans())
    def one_is_given_up_or_awaited(self, data: st.DataObject, keep: bool) -> None:
        dead = sorted(self.world.tenants.keys() - self.world.alive.keys())
        name = data.draw(st.sampled_from(dead))
        (self.world.keep if keep else self.world.give_up)(name)

    @precondition(lambda self: len(self.world.alive) < len(self.world.tenants))
    @rule(data=st.data(), loaded=st.booleans())
    def an_engine_comes_back(self, data: st.DataObject, loaded: bool) -> None:
        dead = sorted(self.world.tenants.keys() - self.world.alive.keys())
        self.world.start(data.draw(st.sampled_from(dead)), loaded)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            answers_come_without_time(self.world)
            quiet_brings_everything_back(self.world)


def answers_come_without_time(world: World) -> None:
    """Check that engines which answer promptly get memory or a refusal within a few rounds, without
    waiting for a time-out.
    """
    for _ in range(4):
        world.round()
    asked = dict(world.asked)
    if world.temporal:
        asked = {n: t for n, t in asked.items() if n == world.holder}
    answered = len(world.commands)
    for _ in range(8):
        world.round()
    got = {command.tenant for command in world.commands[answered:]}
    assert not {n for n in asked if n in world.asked and n not in got}


def quiet_brings_everything_back(world: World) -> None:
    for engine in world.alive.values():
        engine.running.clear()
        engine.waiting.clear()
    for _ in range(16):
        world.round(0.3)
    world.commands.clear()
    for _ in range(4):
        world.round(0.3)
    assert world.commands == []
    for name, engine in world.alive.items():
        target = world.base(name)
        assert (world.sent[name].layers_remapped, world.sent[name].kv_extents) == (
            0,
            target.kv_extents,
        )
        assert (engine.layers_remapped, engine.experts, engine.mapped) == (0, 0, target.kv_extents)


class StaticWorlds(Worlds):
    policy = Policy.STATIC


class PooledWorlds(Worlds):
    policy = Policy.POOLED


class TemporalWorlds(Worlds):
    temporal = True


def machine(kind: type[Worlds], count: int) -> type:
    case = kind.TestCase
    case.settings = examples(
        count,
        stateful_step_count=40,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    return case


TestStaticWorlds = machine(StaticWorlds, 10)
TestPooledWorlds = machine(PooledWorlds, 60)
TestMirageWorlds = machine(Worlds, 250)
TestTemporalWorlds = machine(TemporalWorlds, 80)


def test_checking_changes_nothing_that_is_known() -> None:
    """The turn passes from `a` to `b`. `a` counts as inactive, also after `check` has looked at the
    ledger.
    """
    world = pair(temporal=True)
    world.controller.turn("a", 10.0)
    world.controller.turn("b", 10.1)
    world.controller.check(10.1)
    assert [t.active for t in world.controller.snapshot(10.2).tenants] == [False, True]


def test_who_holds_what_an_engine_needs_to_start_is_known_and_whether_it_could_give_it() -> None:
    world = pair(Policy.POOLED)
    engine = occupy(world, "a", 14)
    while world.sent["a"].kv_extents != 14:
        world.round()
    world.round()
    world.die("b")
    (debtor,) = world.controller.debtors(world.now)
    assert (debtor.name, debtor.bytes, debtor.owes) == ("a", 4 * SHAPE.extent_bytes, False)
    assert not world.controller.has_room("b")
    engine.running.clear()
    engine.report()
    world.deliver("a")
    world.wait(10)
    (debtor,) = world.controller.debtors(world.now)
    assert (debtor.bytes, debtor.owes) == (4 * SHAPE.extent_bytes, True), "told, and not done"
    world.round()
    assert world.controller.debtors(world.now) == []
    assert world.controller.has_room("b")


def test_a_tenant_is_there_at_run_time_and_gone_again() -> None:
    world = pair()
    controller, now = world.controller, world.now
    third = Tenant("c", 25)
    with pytest.raises(UnknownTenantError):
        controller.joined("c", SHAPE, 0, now)
    controller.declares(third)
    controller.check(now)
    assert not controller.has_room("c"), "its share is lent to the others"
    controller.awaited("c")
    world.round()
    assert controller.device_bytes == 2 * SHARE
    controller.removed("c")
    with pytest.raises(UnknownTenantError):
        controller.joined("c", SHAPE, 0, now)
    world.round()
    assert controller.free_bytes == 0, "the others have it again"


def test_other_rights_wait_for_the_next_engine_and_a_priority_does_not() -> None:
    world = pair()
    controller = world.controller
    controller.declares(Tenant("a", 5, priority=7))  # too little for the engine that runs
    controller.decide(world.now)
    (held,) = (t.tenant for t in controller.snapshot(world.now).tenants if t.name == "a")
    assert (held.share, held.priority) == (50, 7)
    controller.lost("a", world.now)
    with pytest.raises(DoesNotFitError):
        controller.joined("a", SHAPE, 0, world.now)
