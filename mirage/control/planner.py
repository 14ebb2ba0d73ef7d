"""Planner: the target of all tenants' memory, as a pure function of one snapshot (Algorithm 1).

The plan is made anew each time, from nothing: all layers resident, no KV, the rest of the device
free. Each tenant has one row (`rows`), which `tenant_rows` makes of its snapshot; `passes` work on
all rows, one after the other, and each of their moves has the reason of its pass:

    running           extents in use, and the least that a tenant can serve with
    wake              room for a model that was told to wake; not in turns, as the next two
    recall            layers of a woken model that running requests of others make room for
    prefixes          cached prefixes that are worth more than layers
    growth            more for running requests, up to each tenant's own share
    growth beyond     more than that
    admission         more for waiting requests, up to each tenant's own share
    admission beyond  more than that
    cooldown          extents wanted not long ago: the hysteresis
    restore           layers come back that no demand needs
    admission ...     of what is left
    share             what is left fills each tenant's KV up to its share

With `remap.serve` = growth, admission comes after cooldown and takes no layers, and waiting
requests may use only the KV of their tenant that no layer pays for (`open_extents`). So idle KV is
lent to waiting requests as well, and layers to running requests alone. Beyond the shares waiting
requests get idle KV only until `remap.lend_percent` of what can be lent is lent: the rest is kept
for the growth of running requests.

With `remap.tbt_ms`, a tenant whose decode step computes for longer than that requests no memory for
its waiting requests, and opens at most its share to them.

*Cached prefixes.* Idle KV memory in which a tenant has prefixes that are requested again is lent
after layers, if by its price it is worth more per byte than a layer that may go (`prefixes`).

*What may be lent* is priced before it is given. Layers must be back, or hide, when their owner runs
again. Under spatial sharing an idle tenant lends the layers that hide behind the decode of a
single request, with which it may wake; it lends all only once it has rested, after `rest_s` at the
latest. In turns, unfinished requests of one tenant use layers' memory of the suspended ones, so
lent memory moves as its owners' turns come (`covering.Rotation`). There the demand of all tenants
takes lent bytes only as long as one more byte adds more to the work of a turn than its load takes
of the turn, or as it costs a part of the time that preempted requests are computed again
(`lending`). Unless turns drain, it also takes no more than the layers of all other
tenants, in each tenant's turn, and those that this tenant hides itself (`covering`).

*Experts.* An active mixture-of-experts model gives cold experts instead of layers if their price is
lower: layers that hide cost nothing, but of a mixture's layers hardly any hide. `expert_asks`
computes how many are worth it, by how often steps route to them and how long a load takes. An idle
model gives layers.

*Way back of lent layers.* When a tenant becomes active while others' KV uses its layers' memory,
its layers come back immediately, except those that hide. More stay away only if running requests of
others, their growth up to their tenant's share included, have no other memory. Waiting requests,
growth beyond a share, unused KV of others and the hysteresis do not delay them. Under spatial
sharing, if its decode steps would take more than `BEARABLE` times as long as they compute, running
requests beyond the shares of others are called back: preempted, and computed anew once there is
room. In turns that would happen at every change; there the price keeps lending small, and a tenant
that stops is told what it gives up (`spilling`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import inf
from typing import NamedTuple

from msgspec.structs import replace

from mirage.config import Policy
from mirage.control.covering import most_lent
from mirage.control.demand import lacks_admission
from mirage.control.hidden_layers import slots
from mirage.control.latest import Latest
from mirage.control.lending import pays_after, rest_enough
from mirage.control.moves import Move, PassRecord, Reason, moves
from mirage.control.newcomers import closed_bytes, open_extents
from mirage.control.passes import Choices, Pass, hold_shares, passes
from mirage.control.prefixes import keeping_prefixes
from mirage.control.rows import TenantRow
from mirage.control.rules import Rules
from mirage.control.spilling import TurnLengths
from mirage.control.targets import most_remapped, unnumbered
from mirage.control.tenant_rows import Terms, row_of
from mirage.control.tenant_state import TenantSnapshot
from mirage.control.water_filling import Fill
from mirage.geometry import footprint
from mirage.protocol import Allotment, LentInTurns
from scheduler import victims

STATIC = (Pass(Reason.SHARE, hold_shares),)


@dataclass(frozen=True)
class Plan:
    """Targets of all tenants, by name, and the records of the passes that led to them."""

    targets: dict[str, Allotment]
    steps: Sequence[PassRecord]
    """Records of the passes that moved anything, in their order."""

    @cached_property
    def moves(self) -> tuple[Move, ...]:
        """Moves of memory between all tenants and free memory that lead to `targets`, from all
        layers of every tenant in place and no KV memory. Made when first read."""
        return tuple(moves(self.steps))

    def of(self, name: str) -> list[Move]:
        """Return the moves that take memory from a tenant, or give memory to it."""
        return [m for m in self.moves if name in (m.source.tenant, m.to.tenant)]


class Planner:
    """Makes plans for one device of `device_bytes`, of which shares are per cent.

    Most events concern one tenant, and two reports in five leave all demand unchanged. So rows,
    targets and results of passes are kept until one of their arguments changes. No plan depends on
    those before it.
    """

    def __init__(self, device_bytes: int, policy: Policy, rules: Rules) -> None:
        self._device_bytes, self._policy, self._rules = device_bytes, policy, rules
        self._rows: dict[str, Latest[TenantRow]] = defaultdict(partial(Latest, row_of))
        self._passes = Latest(partial(_passes, policy, rules))
        self._order = Latest(victims.order)
        self._filled = Latest(_filled)
        self._targets: dict[str, Latest[Allotment]] = defaultdict(partial(Latest, _target))

    def plan(
        self,
        tenants: Sequence[TenantSnapshot],
        reserved_bytes: int,
        *,
        turns: TurnLengths | None = None,
        now: float = inf,
        wakes: bool = False,
    ) -> Plan:
        """Return the plan of the memory that each tenant shall hold. All `tenants` have had their
        first allotment.

        `reserved_bytes` of the device are kept for tenants that are not among them. `turns` is None
        if tenants run at once (spatial sharing). `now` is a time in seconds, on the clock of
        `last_busy`. `wakes` is True while a tenant that was told to wake, or has started hollow,
        has had no allotment; its bytes are reserved. The targets fit into the rest of the device,
        unless running requests alone use more. No tenant's target is below the least with which it
        serves. None is below what its running requests use, except down to its share with
        `Allotment.recall`, if tenants run at once.
        """
        streams = max(1, sum([t.active for t in tenants]))
        terms = Terms(self._device_bytes, self._policy, self._rules, streams, turns)
        models = sum([footprint(t.shape, 0, 0) for t in tenants])
        free = self._device_bytes - reserved_bytes - models
        rows = self._asking(tenants, free, terms, now)
        donors, lent = self._lending(tenants, rows, free, turns)
        steps = self._passes.of(turns is None, wakes)
        filled = self._filled.of(rows, donors, free, lent, steps)
        closed = closed_bytes(terms, filled.paid, free)
        targets = {
            row.name: self._targets[row.name].of(t, row, filled.paid, closed, terms)
            for t, row in zip(tenants, filled.rows, strict=True)
        }
        return Plan(targets, filled.steps)

    def _asking(
        self, tenants: Sequence[TenantSnapshot], free: int, terms: Terms, now: float
    ) -> tuple[TenantRow, ...]:
        """Return the rows before any pass; `free` bytes are free with all layers in place."""
        rules, turns = terms.rules, terms.turns is not None
        waiting = [] if turns else [t for t in tenants if lacks_admission(t.report)]

        def rests(t: TenantSnapshot) -> bool:
            others = [other for other in waiting if other is not t]
            return turns or now - t.last_busy >= _enough(t, rules, others, free)

        rows = tuple(self._rows[t.name].of(t, terms, rests(t)) for t in tenants)
        keeping = not turns and _keeps_prefixes(terms.policy, rules)
        return keeping_prefixes(tenants, rows) if keeping else rows

    def _lending(
        self,
        tenants: Sequence[TenantSnapshot],
        rows: Sequence[TenantRow],
        free: int,
        turns: TurnLengths | None,
    ) -> tuple[Sequence[str], int | None]:
        """Return names in the order in which tenants give, and the bytes that may be lent; None for
        no limit."""
        if self._policy is not Policy.MIRAGE:
            return (), None
        rules, lent = self._rules, None
        if turns is not None and rules.decode_cap:
            lent = most_lent(tenants, rows, free, turns, rules)
        candidates = [
            victims.Candidate(row.name, row.active, row.priority, t.last_busy)
            for t, row in zip(tenants, rows, strict=True)
        ]
        return self._order.of(candidates, rules.victims), lent


class _Filled(NamedTuple):
    rows: Sequence[TenantRow]
    """Rows after all passes."""
    steps: Sequence[PassRecord]
    """Records of the passes that moved anything."""
    paid: int
    """Bytes of layers and experts that were given away."""


def _enough(
    t: TenantSnapshot, rules: Rules, waiting: Sequence[TenantSnapshot], kv_bytes: int
) -> float:
    """Return the seconds without work after which a tenant has rested, while others are `waiting`
    for memory."""
    most = most_remapped(t.tenant, t.shape, rules)
    way_back_s, pays_after_s = most * t.report.layer_load_s, None
    if waiting and kv_bytes > 0:
        nbytes = most * t.shape.layer_bytes
        staying = min([other.staying_part for other in waiting])
        anew_s = nbytes * max([other.byte_s for other in waiting])
        pays_after_s = pays_after(nbytes / kv_bytes, staying, way_back_s, anew_s)
    return rest_enough(way_back_s, t.longest_pause_s, rules.rest_s, pays_after_s=pays_after_s)


def _passes(policy: Policy, rules: Rules, at_once: bool, wakes: bool) -> tuple[Pass, ...]:
    if policy is Policy.STATIC:
        return STATIC
    growth_only = policy is Policy.MIRAGE and rules.serve == "growth"
    percent = rules.lend_percent if growth_only else None
    keeps = at_once and _keeps_prefixes(policy, rules)
    return passes(Choices(at_once, wakes, keeps, percent, rules.reversion))


def _keeps_prefixes(policy: Policy, rules: Rules) -> bool:
    """True if layers are given before cached prefixes, under spatial sharing."""
    return policy is Policy.MIRAGE and rules.keep_prefixes


def _filled(
    rows: Iterable[TenantRow],
    donors: Iterable[str],
    free: int,
    lent: int | None,
    passes: Iterable[Pass],
) -> _Filled:
    fill = Fill([replace(row) for row in rows], donors, free, lent)
    steps = []
    for each in passes:
        before = fill.free
        each.run(fill)
        if flows := fill.flows():
            steps.append(PassRecord(each.reason, before, flows))
    return _Filled(fill.rows, steps, sum(row.given * row.unit_bytes for row in fill.rows))


def _target(t: TenantSnapshot, row: TenantRow, paid: int, closed: int, terms: Terms) -> Allotment:
    """Return the target of tenant `t`, whose row has its KV extents and what it gives after all
    passes. `paid` are the bytes of KV memory that layers and experts of all tenants pay for. The
    tenant's waiting requests leave `closed` bytes of its KV memory to running ones."""
    layers_remapped, experts = (0, row.given) if row.gives_experts else (row.given, 0)
    stream_slots = slots(t, layers_remapped, terms.rules, terms.streams)
    recall = row.recalled and row.kv < t.used_extents
    given = layers_remapped, stream_slots, row.kv, open_extents(row, closed)
    lent: LentInTurns = "nothing"
    if paid > 0 and terms.turns is not None:
        lent = "in turns that drain" if terms.turns.drains else "in turns"
    return unnumbered(t.shape, *given, recall=recall, experts=experts, lent=lent)
