"""A world for the controller: engines that keep the protocol's promise, as slowly as they like.

Everything that goes between an engine and the controller waits in a queue until it is told
to arrive. `World` checks after each step what must hold at every moment.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from mirage.config import PATIENCE_S, Policy
from mirage.control.controller import Command, Controller
from mirage.control.demand import lacks_growth
from mirage.control.rules import Rules
from mirage.control.spilling import TurnLengths
from mirage.control.targets import base, is_sent, most_remapped
from mirage.geometry import footprint
from mirage.protocol import Allotment, EngineHoldings, ModelShape, Refusal, Report
from mirage.streaming.giving import affordable
from scheduler.tenants import Tenant

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
"""Shape of a model of few bytes, to count with in the head."""


@dataclass
class Running:
    extents: int
    growing: bool = False


@dataclass
class FakeEngine:
    """Fake engine that counts memory in whole extents. A request has at most
    `shape.min_extents`.
    """

    shape: ModelShape
    headroom: int
    seen: Allotment | None = None
    layers_remapped: int = 0
    experts: int = 0
    mapped: int = 0
    loaded: bool = False
    """True once the parameters of the engine hold memory."""
    running: list[Running] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    refused: bool = False
    preemptions: int = 0
    inbox: deque[Allotment | Refusal] = field(default_factory=deque)
    outbox: deque[Report] = field(default_factory=deque)
    load_s: float = 0.0
    compute_s: float = 0.0
    expert_load_s: float = 0.0
    routed: list[float] = field(default_factory=list)
    token_s: float = 0.0
    again: int = 0
    """Cached blocks that requests used again since the engine's start; all usable blocks that are
    not in use count as cached.
    """
    keeps_below: bool = False

    @property
    def held(self) -> int:
        if not self.loaded:
            return 0
        return footprint(self.shape, self.layers_remapped, self.mapped, self.experts)

    @property
    def used(self) -> int:
        return sum(r.extents for r in self.running)

    @property
    def usable(self) -> int:
        granted = self.seen.kv_extents if self.seen else self.mapped
        return max(self.used, min(self.mapped, granted))

    # -- memory -------------------------------------------------------------------------

    def see(self) -> None:
        """Take the next message of the controller from the inbox, and note it."""
        if not self.inbox:
            return
        message = self.inbox.popleft()
        if isinstance(message, Refusal):
            self.refused = True
            return
        if self.seen is None or message.revision > self.seen.revision:
            self.seen = message
            self.refused = False

    def settle(self, moves: int) -> None:
        """Make at most `moves` moves towards the allotment, of a layer or an extent each, within
        the grant.
        """
        while moves > 0 and self.seen and self._move(self.seen):
            moves -= 1

    def _move(self, to: Allotment) -> bool:
        free = to.grant_bytes - self.held
        if not self.loaded:
            self.loaded = footprint(self.shape, 0, 0) <= to.grant_bytes
            return self.loaded
        now, wanted = (self.layers_remapped, self.experts), (to.layers_remapped, to.experts)
        experts = self.experts or to.experts
        if experts and self._given(affordable(self._parameters, now, wanted, 0)):
            return True
        if not experts and self.layers_remapped < to.layers_remapped:
            self.layers_remapped += 1
        elif to.recall and self.used > to.kv_extents and len(self.running) > 1:
            self.waiting.insert(0, self.running.pop().extents)
            self.preemptions += 1
        elif self.mapped > max(to.kv_extents, self.used):
            self.mapped -= 1
        elif self.mapped < to.kv_extents and free >= self.shape.extent_bytes:
            self.mapped += 1
        elif experts:
            return self._given(affordable(self._parameters, now, wanted, max(0, free)))
        elif self.layers_remapped > to.layers_remapped and free >= self.shape.layer_bytes:
            self.layers_remapped -= 1
        else:
            return False
        return True

    def _parameters(self, layers_remapped: int, experts: int) -> int:
        return footprint(self.shape, layers_remapped, 0, experts)

    def _given(self, given: tuple[int, int]) -> bool:
        before = self.layers_remapped, self.experts
        self.layers_remapped, self.experts = given
        return given != before

    # -- requests -----------------------------------------------------------------------

    def arrive(self, extents: int) -> None:
        self.waiting.append(min(extents, self.shape.min_extents))

    def want_growth(self, which: int) -> None:
        """Let a running request need one more extent, unless it has its greatest length."""
        if self.running:
            request = self.running[which % len(self.running)]
            request.growing = request.extents < self.shape.min_extents

    def finish(self, which: int) -> None:
        if self.running:
            del self.running[which % len(self.running)]

    def step(self) -> None:
        """Run one step: running requests grow as far as memory allows, one is preempted after a
        refusal, and waiting ones begin if they fit.
        """
        for request in list(self.running):
            if request.growing and request in self.running:
                if self.used >= self.usable and self.refused and len(self.running) > 1:
                    self.waiting.insert(0, self.running.pop().extents)
                    self.preemptions += 1
                if self.used < self.usable and request in self.running:
                    request.extents += 1
                    request.growing = False
        while self.waiting and not self.missing and self.used + self.waiting[0] <= self.usable:
            self.running.append(Running(self.waiting.pop(0)))

    @property
    def missing(self) -> int:
        lacking = sum(r.growing for r in self.running)
        return max(0, self.used + lacking - self.usable)

    def report(self) -> Report:
        """Report with the total demand, as `mirage/control/demand.py` defines it."""
        ahead = self.headroom if self.running else 0
        lacking = sum(r.growing for r in self.running) if self.missing else 0
        growth = self.used + lacking + ahead
        report = Report(
            revision=self.seen.revision if self.seen else 0,
            holds_turn=True,
            held_bytes=self.held,
            layers_remapped=self.layers_remapped,
            stream_slots=self.seen.stream_slots if self.seen else 1,
            kv_extents=self.mapped,
            kv_used_extents=self.used,
            kv_usable_extents=max(self.used, self.usable),
            growth_extents=growth,
            admission_extents=growth + sum(self.waiting),
            running=len(self.running),
            waiting=len(self.waiting),
            kv_blocks=max(0, self.usable * self.shape.extent_blocks - 1),
            kv_used_blocks=self.used * self.shape.extent_blocks,
            kv_cached_blocks=(self.usable - self.used) * self.shape.extent_blocks,
            blocks_again=self.again,
            keeps_below=self.keeps_below,
            token_s=self.token_s,
            layer_load_s=self.load_s,
            layer_compute_s=self.compute_s,
            experts=self.experts,
            expert_load_s=self.expert_load_s,
            expert_routed=self.routed,
        )
        self.outbox.append(report)
        return report


class World:
    """One device, its controller, and its engines by name, None for one whose process is dead."""

    def __init__(
        self,
        tenants: dict[str, tuple[Tenant, ModelShape]],
        device_bytes: int,
        policy: Policy,
        remap: Rules,
        temporal: bool = False,
        below_bytes: int = 0,
    ) -> None:
        """Begin without a living engine. `below_bytes` is as in `TurnLengths`."""
        self.device_bytes, self.policy, self.remap = device_bytes, policy, remap
        self.below_bytes = below_bytes
        self.tenants = {n: t for n, (t, _) in tenants.items()}
        self.shapes = {n: s for n, (_, s) in tenants.items()}
        self.temporal = temporal
        self._turns = TurnLengths(1.0, below_bytes=below_bytes) if temporal else None
        self.controller = self._controller()
        self.engines: dict[str, FakeEngine | None] = dict.fromkeys(tenants)
        self.sent: dict[str, Allotment] = {}
        self.reported: dict[str, Report] = {}
        self.asked: dict[str, float] = {}
        """Time since which the wish for growth in an engine's reports is unanswered, by tenant."""
        self.answerable: set[str] = set()
        self.commands: list[Command] = []
        self.holder: str | None = None
        self.given_up: set[str] = set()
        self.had_room = True
        """True if the last check found the shares of all absent engines free; False again once
        another engine is absent.
        """
        self.now = 0.0

    @property
    def alive(self) -> dict[str, FakeEngine]:
        return {n: e for n, e in self.engines.items() if e is not None}

    def base(self, name: str) -> Allotment:
        return base(self.tenants[name], self.shapes[name], self.device_bytes)

    # -- events -------------------------------------------------------------------------

    def start(self, name: str, loaded: bool = False) -> None:
        """Start an engine, with no memory held, or with its whole share if there is room."""
        engine = FakeEngine(self.shapes[name], self.remap.headroom_extents)
        if loaded and self.controller.has_room(name):
            engine.loaded, engine.mapped = True, self.base(name).kv_extents
        self.engines[name] = engine
        self.keep(name)
        self.controller.joined(name, engine.shape, engine.held, self.now)
        self.decide()

    def die(self, name: str) -> None:
        self.engines[name] = None
        for state in (self.sent, self.reported, self.asked):
            state.pop(name, None)
        self.answerable.discard(name)
        if self.holder == name:
            self.holder = None
        self.had_room = False
        self.controller.lost(name, self.now)
        self.decide()

    def succeed(self, read: dict[str, int], order: list[str]) -> None:
        """Let another controller take over the engines that have an allotment; the others end.

        Before that, each engine reads as many of its messages as `read` says. The engines say hello
        in that `order`.
        """
        self.controller = self._controller()
        for state in (self.sent, self.reported, self.asked):
            state.clear()
        self.answerable.clear()
        self.holder, self.had_room = None, False
        for name, engine in self.alive.items():
            for _ in range(read[name]):
                engine.see()
            engine.inbox.clear()
            engine.outbox.clear()
        for name in order:
            if (engine := self.engines[name]) is None or engine.seen is None:
                self.engines[name] = None
                if name in self.given_up:
                    self.controller.given_up(name)
                continue
            report = self.reported[name] = engine.report()
            engine.outbox.clear()
            self.sent[name] = engine.seen
            self.controller.adopted(
                name, engine.shape, EngineHoldings(engine.seen, report), self.now
            )
            self.answerable.add(name)
            if lacks_growth(report):
                self.asked[name] = self.now
            most = max(engine.held, engine.seen.grant_bytes)
            assert self.controller.reserved_bytes(name) == most
        self.decide()

    def _controller(self) -> Controller:
        tenants = self.tenants.values()
        size, rules = self.device_bytes, self.remap
        return Controller(tenants, size, self.policy, rules, turns=self._turns)

    def give_up(self, name: str) -> None:
        """Note that a dead engine will not be started again for now."""
        self.given_up.add(name)
        self.controller.given_up(name)
        self.decide()

    def keep(self, name: str) -> None:
        """Note that an engine that was given up will be started after all."""
        if name in self.given_up:
            self.had_room = False
            self.given_up.discard(name)
            self.controller.awaited(name)
            self.decide()

    def turn(self, name: str) -> None:
        self.holder = name
        if name in self.asked:
            self.asked[name] = self.now
        self.controller.turn(name, self.now)
        self.decide()

    def deliver(self, name: str) -> None:
        """Deliver the oldest report of an engine to the controller."""
        engine = self.alive[name]
        if not engine.outbox:
            return
        report = self.reported[name] = engine.outbox.popleft()
        self.controller.reported(name, report, self.now)
        self.answerable.add(name)
        if lacks_growth(report):
            self.asked.setdefault(name, self.now)
        else:
            self.asked.pop(name, None)
        self.decide()

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.decide()

    # -- rounds of well-behaved engines ---------------------------------------------------

    def round(self, seconds: float = 0.0, names: list[str] | None = None) -> None:
        """Let all alive engines, or those named, read their messages, obey, step and report;
        deliver the reports.
        """
        for name in self.alive if names is None else names:
            engine = self.alive[name]
            while engine.inbox:
                engine.see()
            engine.settle(10**6)
            if not self.temporal or name == self.holder:
                engine.step()
            engine.report()
            while engine.outbox:
                self.deliver(name)
        self.wait(seconds)

    # -- decisions ----------------------------------------------------------------------

    def decide(self) -> None:
        commands = self.controller.decide(self.now)
        for command in commands:
            self._check_command(command)
            self.alive[command.tenant].inbox.append(command.message)
        self.commands += commands
        assert self.controller.decide(self.now) == [], "deciding twice changes something"
        for name in [n for n in self.asked if self._satisfied(n)]:
            del self.asked[name]
        deadline = self.controller.next_deadline(self.now)
        assert deadline is None or deadline > self.now
        self.check()

    def _satisfied(self, name: str) -> bool:
        report, sent = self.reported[name], self.sent.get(name)
        return sent is not None and report.growth_extents <= sent.kv_extents

    def check(self) -> None:
        """Check all promises, by the memory that engines really hold."""
        self.controller.check(self.now)
        assert sum(e.held for e in self.alive.values()) <= self.device_bytes
        had_room, self.had_room = self.had_room, self.controller.free_bytes >= self._kept()
        assert self.had_room or not had_room, "room for absent engines was lent"
        waiting = {n: t for n, t in self.asked.items() if not self.temporal or n == self.holder}
        late = [n for n, since in waiting.items() if self.now >= since + PATIENCE_S]
        assert not late, f"{late} wait for an answer since {self.asked}"

    def _kept(self) -> int:
        """Bytes of the shares that engines without an allotment may still take."""
        absent = [n for n in self.tenants if n not in self.sent and n not in self.given_up]
        held = {n: e.held for n, e in self.alive.items()}
        shares = {n: self.tenants[n].share_bytes(self.device_bytes) for n in absent}
        return sum(max(0, shares[n] - held.get(n, 0)) for n in absent)

    def _check_command(self, command: Command) -> None:
        name, message = command
        if isinstance(message, Refusal):
            assert name in self.asked, "a refusal that nobody asked for"
            assert name in self.answerable, "two answers to one report"
            assert message.revision == self.sent[name].revision
            self._check_refusal(name)
            self.answerable.discard(name)
            del self.asked[name]
            return
        before = self.sent.get(name)
        if before is None or message.kv_extents > before.kv_extents:
            self.answerable.discard(name)
            self.asked.pop(name, None)
        self.sent[name] = message
        self._check_allotment(name, before, message)

    def _check_refusal(self, name: str) -> None:
        """Check that a refusal was due: the engine waited long enough, or has all its extents, or
        none is free for it.

        If others lack growth too, nothing is checked, as the plan may keep for them what comes
        back.
        """
        if self.now >= self.asked[name] + PATIENCE_S or self.policy is Policy.STATIC:
            return
        others = ((o, r) for o, r in self.reported.items() if o != name)
        if any(lacks_growth(r) for _, r in others):
            return
        full = self.sent[name].kv_extents == self.shapes[name].max_extents
        assert full or self.controller.free_bytes - self._kept() < self.shapes[name].extent_bytes

    def _check_allotment(self, name: str, before: Allotment | None, sent: Allotment) -> None:
        shape, tenant = self.shapes[name], self.tenants[name]
        assert sent.grant_bytes == footprint(
            shape, sent.layers_remapped, sent.kv_extents, sent.experts
        )
        assert 0 <= sent.experts <= shape.movable_experts and not (
            sent.layers_remapped and sent.experts
        )
        assert (sent.stream_slots > 0) == (sent.layers_remapped > 0), (
            "no layer is away, and no slot is wanted"
        )
        if before is None or self.policy is Policy.STATIC:
            assert before is None
            assert is_sent(sent, self.base(name))
            return
        assert sent.revision > before.revision
        assert not is_sent(before, sent), "told twice"
        most = most_remapped(tenant, shape, self.remap)
        assert 0 <= sent.layers_remapped <= (most if self.policy is Policy.MIRAGE else 0)
        if sent.layers_remapped:
            # On the way to two slots there may be the one of before.
            assert sent.stream_slots in ((1,) if self.remap.stream_slots == 1 else (1, 2))
            assert shape.layers - sent.layers_remapped - sent.stream_slots >= tenant.floor_layers
        assert shape.min_extents <= sent.kv_extents <= shape.max_extents
        if sent.kv_extents < before.kv_extents and name in self.reported:
            used = self.reported[name].kv_used_extents
            share = self.base(name).kv_extents
            assert sent.kv_extents >= (min(used, share) if sent.recall else used)
            assert not (sent.recall and self.temporal and not self.below_bytes)
