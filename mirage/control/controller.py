"""Remapping Controller: when memory moves, between which tenants, and how much.

Events go in with their time in seconds; `decide` returns the messages to send. The `planner`
decides what each tenant shall hold. This file keeps the promise that nothing is over-committed on
the way there:

*Two phases.* A tenant that shall hold less is told immediately. A tenant that shall hold more is
told as far as the ledger has free bytes, and told of more as reports show that others have
complied.

*First allotments.* A tenant that joins gets its base allotment as soon as the device has the bytes
for all of it. One that wakes, or whose engine starts hollow, may begin with the least with which it
serves.

*An answer to each request for growth.* A report of an active tenant that wants more KV memory for
running requests is answered within `patience_s` seconds (`growth_requests`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf
from typing import NamedTuple, Self

from mirage.config import PATIENCE_S, Config, Policy
from mirage.control.covering import covers
from mirage.control.debts import Debtor
from mirage.control.drained_turns import DrainedTurns
from mirage.control.grants import Grants
from mirage.control.growth_requests import GrowthRequests, wants_more
from mirage.control.ledger import LedgerError
from mirage.control.lent import Lending, lendings
from mirage.control.moves import Move
from mirage.control.planner import Plan, Planner
from mirage.control.profiled import UNPROFILED, Profiled
from mirage.control.rules import Rules
from mirage.control.spilling import TurnLengths, worth_spilling
from mirage.control.targets import (
    asleep,
    base,
    entitled,
    is_legal,
    is_sent,
    least,
    share_extents,
    toward,
)
from mirage.control.tenant_state import MetadataStore, Snapshot, TenantSnapshot
from mirage.protocol import Allotment, EngineHoldings, ModelShape, Refusal, Report
from scheduler.clocked import Clocked
from scheduler.tenants import Tenant

AT_ONCE = ("priority", "max_cost_ms")
"""Rights of a tenant that change immediately, while it has an engine; the others wait for its next
engine."""


class Command(NamedTuple):
    """Message to a tenant's engine."""

    tenant: str
    message: Allotment | Refusal


class Controller:
    """Controller of the memory of all `tenants` of one device with `device_bytes`."""

    def __init__(
        self,
        tenants: Iterable[Tenant],
        device_bytes: int,
        policy: Policy,
        rules: Rules,
        *,
        turns: TurnLengths | None = None,
        patience_s: float = PATIENCE_S,
        profiled: Mapping[str, Profiled] = UNPROFILED,
    ) -> None:
        """Make a controller that answers a request for growth of an active tenant after
        `patience_s` seconds at most, whatever other engines do.

        `turns` is None if all tenants run at once (spatial sharing). `profiled` maps a tenant's
        name to the step times that are known before its engine has run a step.
        """
        self.patience_s = patience_s
        self._turns = turns
        self._drained = DrainedTurns(turns) if turns is not None and turns.drains else None
        self._tenants = {t.name: t for t in tenants}
        self._policy = policy
        self._rules = rules
        self._planner = Planner(device_bytes, policy, rules)
        self._grants = Grants(self._tenants.values(), device_bytes)
        self._store = MetadataStore(
            self._tenants.values(),
            cooldown_s=rules.hysteresis_s,
            for_admission=rules.serve == "admission",
            temporal=turns is not None,
            profiled=profiled,
        )
        self._new: set[str] = set()
        """Tenants that joined and have had no allotment yet."""
        self._joined: set[str] = set()
        """Tenants that have an engine."""
        self._declared: dict[str, Tenant] = {}
        """New rights of tenants that take effect with their next engine."""
        self._lean: set[str] = set()
        """Tenants of `_new` whose first allotment may be less than their share."""
        self._asleep: dict[str, ModelShape] = {}
        """Shapes of tenants that were told to sleep."""
        self._planned: Clocked[Plan] | None = None
        """The newest plan; None once an event came after it."""
        self._followed: dict[str, Plan] = {}
        """Plan that each tenant's newest allotment follows; the first allotment follows none."""
        self._growth = GrowthRequests(patience_s)

    @classmethod
    def of(
        cls,
        config: Config,
        rules: Rules | None = None,
        profiled: Mapping[str, Profiled] = UNPROFILED,
    ) -> Self:
        """Return the controller of a configuration; `rules`, if given, replace the configured ones.
        `profiled` maps a tenant's name to the step times that are known before its engine has run a
        step."""
        tenants = [entitled(t) for t in config.tenants]
        return cls(
            tenants,
            config.device.memory,
            config.policy,
            rules or Rules.served(config),
            turns=_turns(config),
            patience_s=config.sharing.patience_s,
            profiled=profiled,
        )

    # -- tenants ------------------------------------------------------------------------

    def declares(self, tenant: Tenant, profiled: Profiled | None = None) -> None:
        """Add a tenant, or change its rights; while it has an engine, only those in `AT_ONCE`.

        The other rights take effect once that engine is lost. A new tenant counts as `given_up`
        until it is `awaited`. `profiled` has its step times until its engine has measured them;
        None leaves those that are known.
        """
        before = self._tenants.get(tenant.name)
        if before is not None and tenant.name in self._joined:
            self._declared[tenant.name] = tenant
            tenant = replace(before, **{key: getattr(tenant, key) for key in AT_ONCE})
        self._tenants[tenant.name] = tenant
        self._grants.declares(tenant)
        self._store.declares(tenant, profiled)
        self._planned = None

    def removed(self, name: str) -> None:
        """Remove a tenant that is lost or never joined."""
        self._declared.pop(name, None)
        del self._tenants[name]
        self._grants.removed(name)
        self._store.removed(name)
        self._planned = None

    # -- events -------------------------------------------------------------------------

    def joined(
        self, name: str, shape: ModelShape, held_bytes: int, now: float, *, lean: bool = False
    ) -> None:
        """Note an engine's hello. Under policy mirage a `lean` engine may begin with less than its
        share.

        Raise `DoesNotFitError` if the tenant's share is too small for the engine,
        `UnknownTenantError` if no tenant has this name, and another `LedgerError` if the tenant has
        an engine or the engine holds more than is free: start an engine only once `has_room` is
        true for it.
        """
        if name in self._tenants:
            base(self._tenants[name], shape, self._grants.device_bytes)
        self._grants.joined(name, held_bytes)
        self._joined.add(name)
        self._store.joined(name, shape, held_bytes)
        self._new.add(name)
        if lean and self._policy is Policy.MIRAGE:
            self._lean.add(name)
        self._planned = None

    def adopted(self, name: str, shape: ModelShape, holdings: EngineHoldings, now: float) -> None:
        """Note the hello of an engine that another server had: it keeps the memory that it has.

        Raise `LedgerError` if less is free than it holds or was granted, or if its tenant is
        unknown or has an engine.
        """
        allotment, report = holdings.allotment, holdings.report
        self._grants.adopted(name, allotment, report.held_bytes)
        self._joined.add(name)
        self._planned = None
        if allotment.asleep:
            self._asleep[name] = shape
            return
        self._store.joined(name, shape, report.held_bytes)
        self._store.sent(name, allotment)
        self.reported(name, report, now)

    def reported(self, name: str, report: Report, now: float) -> None:
        """Note an engine's report. Raise `LedgerError` if it breaks the protocol: close its
        connection."""
        self._grants.ledger.reported(name, report.revision, report.held_bytes)
        self._planned = None
        if name in self._asleep:
            return
        self._store.reported(name, report, now)
        self._growth.reported(name, report, now)

    def turn(self, name: str | None, now: float) -> None:
        """Temporal sharing: note that `name` got the turn, and is the active tenant from now on.
        None: no tenant did, and the holder stays."""
        self._store.turn(name, now)
        if self._drained is not None and name is not None:
            self._drained.began(name, now)
        self._planned = None
        self._growth.turn(name, now)

    def revoked(self, now: float) -> None:
        """Temporal sharing: note that the tenant with the turn begins no more requests."""
        if self._drained is not None:
            self._drained.revoked(now)

    def lost(self, name: str, now: float) -> None:
        """Note that an engine's process is dead, and apply new rights of its tenant that waited for
        that. No error if it had not joined."""
        self._grants.lost(name)
        self._asleep.pop(name, None)
        self._joined.discard(name)
        self._forget(name)
        if (declared := self._declared.pop(name, None)) is not None:
            self.declares(declared)

    def _forget(self, name: str) -> None:
        """Leave a tenant out of all decisions."""
        self._store.lost(name)
        self._followed.pop(name, None)
        self._new.discard(name)
        self._lean.discard(name)
        self._planned = None
        self._growth.dropped(name)

    def sleeps(self, name: str) -> Allotment:
        """Put a tenant that joined to sleep; return the allotment for its engine.

        Its share may be lent to others, except the bytes that it reports to hold.
        """
        shape = self._store.shape(name)
        allotment = self._grants.sleeps(name, asleep(shape))
        self._forget(name)
        self._asleep[name] = shape
        return allotment

    def wakes(self, name: str, now: float) -> None:
        """Let a tenant that was told to sleep take part again as soon as its share is free, or,
        under policy mirage, the least with which it serves."""
        shape = self._asleep.pop(name)
        self._grants.awaited(name)
        self._store.joined(name, shape, self._grants.ledger.reserved_bytes(name))
        self._new.add(name)
        if self._policy is Policy.MIRAGE:
            self._lean.add(name)
        self._planned = None

    def slept(self, name: str, held_bytes: int) -> None:
        """Note that a tenant that is lost or never joined holds `held_bytes` bytes: those of its
        sleep, or 0 if it has no process. Its share is lent."""
        self._grants.slept(name, held_bytes)
        self._planned = None

    def expects(self, name: str, nbytes: int) -> None:
        """Reserve `nbytes` for a tenant that was `given_up` and will hold so much asleep; other
        tenants give back what they have of these bytes."""
        self._grants.expects(name, nbytes)
        self._planned = None

    def given_up(self, name: str) -> None:
        """Note that no engine of a tenant will start for now: others may have the part of its share
        that it does not hold."""
        self._grants.given_up(name)
        self._planned = None

    def awaited(self, name: str) -> None:
        """Note that a tenant's engine is to start again as soon as `has_room` is true: its share is
        reserved once more."""
        self._grants.awaited(name)
        self._planned = None

    # -- decisions ----------------------------------------------------------------------

    def decide(self, now: float) -> list[Command]:
        """Return the messages to send now, in order. A second call without an event, before
        `next_deadline`, returns an empty list."""
        commands = self._first_allotments(now) if self._new else []
        tenants = self._present(now)
        targets = self._targets(tenants, now)
        raised = []
        for t in tenants:
            target, sent = targets[t.name], t.allotment
            assert sent is not None
            if target.grant_bytes > sent.grant_bytes:
                raised.append(t)
            elif not is_sent(sent, target):  # immediately: it needs no more bytes than granted
                commands.append(self._follow(t, target))
        commands += [c for t in self._by_need(raised) for c in self._raise(t, targets[t.name])]
        return commands + self._refuse(now, targets)

    def next_deadline(self, now: float) -> float | None:
        """Return the time in seconds at which `decide` may have more to say without another event;
        None for never."""
        due = self._growth.deadlines()
        times = [at for name, at in due if self._store.is_active(name, now)]
        first = min([*times, self._store.valid_until(now)])
        return None if first == inf else first

    def restores(self, name: str, now: float) -> bool:
        """True if layers of a tenant will come back once others have obeyed the allotments that
        were sent to them."""
        tenants = self._present(now)
        targets = self._targets(tenants, now)
        returning = any(
            t.name == name
            and t.allotment is not None
            and t.allotment.layers_remapped > targets[name].layers_remapped
            for t in tenants
        )
        return returning and any(t.pending for t in tenants if t.name != name)

    def way_back_s(self, name: str, now: float) -> float:
        """Return the seconds that it takes to load the layers that come back to a tenant which has
        just got a turn that drains.

        0 while T_T is unknown, or if turns do not drain.
        """
        if self._drained is None:
            return 0.0
        tenants = self._present(now)
        targets = self._targets(tenants, now)
        return sum(
            max(0, t.layers_out - targets[name].layers_remapped) * t.report.layer_load_s
            for t in tenants
            if t.name == name
        )

    def covers(self, name: str, now: float) -> bool:
        """True if a tenant, if it had the turn now, would stream no more layers than hide."""
        tenants = self._present(now)
        usable = self._grants.device_bytes - self._grants.kept_bytes()
        return covers(tenants, name, usable, self._policy, self._rules)

    def spill_bytes(self, name: str, now: float) -> int:
        """Return the bytes of KV memory that a tenant's requests give up if its turn ends now; see
        `spilling`."""
        present = self._present(now)
        turns = self._turns_seen(present, now)
        if turns is None:
            return 0
        return sum(worth_spilling(t, turns) for t in present if t.name == name)

    def has_room(self, name: str, nbytes: int | None = None) -> bool:
        """True if an engine that holds up to `nbytes` bytes may be started; None stands for its
        tenant's share."""
        return self._grants.has_room(name, nbytes)

    def debtors(self, now: float) -> list[Debtor]:
        """Return the tenants that hold more than their share, which may keep another engine from
        starting."""
        over = self._grants.borrowed()
        known = [t for t in self.snapshot(now).tenants if t.name in over]
        return [Debtor(t.name, over[t.name], self._owes(t), t.report) for t in known]

    def _owes(self, t: TenantSnapshot) -> bool:
        if t.allotment is None or t.report.kv_used_extents > t.allotment.kv_extents:
            return False
        return t.allotment.grant_bytes < self._grants.ledger.reserved_bytes(t.name)

    def snapshot(self, now: float) -> Snapshot:
        """Return the state of all joined tenants except those that were told to sleep."""
        return self._store.snapshot(now)

    def why(self, name: str) -> list[Move]:
        """Return the moves from or to a tenant in the plan that its newest allotment follows.

        The moves lead from all layers in place and no KV memory to the tenant's target. The list is
        empty while the tenant has its first allotment, which follows no plan.
        """
        followed = self._followed.get(name)
        return [] if followed is None else followed.of(name)

    def lent(self, now: float) -> list[Lending]:
        """Return the memory that tenants lend each other by the present plan."""
        tenants = self._present(now)
        self._targets(tenants, now)
        assert self._planned is not None
        shares = {t.name: self._share(t.tenant, t.shape) * t.shape.extent_bytes for t in tenants}
        return lendings(self._planned.value.moves, shares)

    def own_blocks(self, name: str) -> int:
        """Return the KV blocks for requests that fit into the share of a joined tenant."""
        shape = self._store.shape(name)
        return max(0, self._share(self._tenants[name], shape) * shape.extent_blocks - 1)

    def _share(self, tenant: Tenant, shape: ModelShape) -> int:
        return share_extents(tenant, shape, self._grants.device_bytes)

    @property
    def device_bytes(self) -> int:
        """Bytes of device memory that all tenants share."""
        return self._grants.device_bytes

    def reserved_bytes(self, name: str) -> int:
        """Return the bytes of the device that a tenant holds or may come to hold."""
        return self._grants.ledger.reserved_bytes(name)

    @property
    def free_bytes(self) -> int:
        """Bytes of the device that no engine holds or may come to hold."""
        return self._grants.ledger.free_bytes

    def check(self, now: float) -> None:
        """Raise `LedgerError` if an allotment that was sent breaks an invariant. Changes
        nothing."""
        self._grants.ledger.check()
        for t in self._present(now):
            assert t.allotment is not None
            if not is_legal(t.allotment, t.tenant, t.shape, self._policy, self._rules):
                raise LedgerError(
                    f"tenant {t.name!r} was sent {t.allotment}, which its limits do not allow"
                )

    # -- pacing -------------------------------------------------------------------------

    def _first_allotments(self, now: float) -> list[Command]:
        commands = []
        for t in self.snapshot(now).tenants:
            target = base(t.tenant, t.shape, self._grants.device_bytes)
            limit = self._grants.limit(t.name)
            if t.name in self._lean and target.grant_bytes > limit:
                target = least(t.tenant, t.shape, self._rules)
            if t.allotment is None and target.grant_bytes <= limit:
                self._planned = None
                commands.append(self._send(t, target))
        # One that takes less than its share may leave enough for another.
        return commands + (self._first_allotments(now) if commands else [])

    def _targets(self, tenants: list[TenantSnapshot], now: float) -> dict[str, Allotment]:
        """Return the targets of the present plan, which is made anew after each event. An allotment
        that was sent since is no event."""
        planned = self._planned
        if planned is None or now >= planned.valid_until:
            kept = self._grants.kept_bytes()
            turns = self._turns_seen(tenants, now)
            made = self._planner.plan(tenants, kept, turns=turns, now=now, wakes=bool(self._lean))
            planned = self._planned = Clocked(made, self._store.valid_until(now))
        return planned.value.targets

    def _turns_seen(self, tenants: list[TenantSnapshot], now: float) -> TurnLengths | None:
        if self._drained is None:
            return self._turns
        working = sum([t.report.running + t.report.waiting > 0 for t in tenants])
        return self._drained.turns(now, alone=working <= 1)

    def _raise(self, t: TenantSnapshot, target: Allotment) -> list[Command]:
        """Return the allotment that raises a tenant towards `target`, as far as bytes are free;
        empty if it changes nothing."""
        assert t.allotment is not None
        step = toward(t.shape, t.allotment, target, self._grants.limit(t.name))
        return [] if is_sent(t.allotment, step) else [self._follow(t, step)]

    def _by_need(self, tenants: Iterable[TenantSnapshot]) -> list[TenantSnapshot]:
        """Return tenants in the order in which they get freed bytes: first tenants whose running
        requests lack memory, then active ones with layers away, then by priority."""
        return sorted(
            tenants,
            key=lambda t: (
                not wants_more(t),
                not (t.active and t.layers_out),
                -t.tenant.priority,
            ),
        )

    def _refuse(self, now: float, targets: dict[str, Allotment]) -> list[Command]:
        if not self._growth:
            return []
        refusals = []
        for t in self._growth.refused(self._present(now), targets, now):
            assert t.allotment is not None
            refusals.append(Command(t.name, Refusal(t.allotment.revision)))
        return refusals

    def _follow(self, t: TenantSnapshot, target: Allotment) -> Command:
        assert self._planned is not None
        self._followed[t.name] = self._planned.value
        return self._send(t, target)

    def _send(self, t: TenantSnapshot, target: Allotment) -> Command:
        allotment = self._grants.allot(t.name, target)
        self._store.sent(t.name, allotment)
        self._new.discard(t.name)
        self._lean.discard(t.name)
        if t.allotment is not None and target.kv_extents > t.allotment.kv_extents:
            self._growth.dropped(t.name)
        return Command(t.name, allotment)

    def _present(self, now: float) -> list[TenantSnapshot]:
        """Return the tenants that have had their first allotment."""
        return [t for t in self.snapshot(now).tenants if t.allotment is not None]


def _turns(config: Config) -> TurnLengths | None:
    sharing, below = config.sharing, config.host_tier
    if sharing.mode == "spatial":
        return None
    return TurnLengths(sharing.turn_s, sharing.drains, 0 if below is None else below.bytes)
