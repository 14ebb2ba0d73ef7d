"""Bound on lending where tenants take turns: what pays, and what the others can cover. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from mirage.config import Policy
from mirage.control.hidden_layers import hidden_layers
from mirage.control.lending import MOST_PART, worth_keeping, worth_lending
from mirage.control.rows import TenantRow
from mirage.control.rules import Rules
from mirage.control.spilling import TurnLengths
from mirage.control.targets import most_remapped
from mirage.control.tenant_state import TenantSnapshot
from mirage.geometry import footprint


class Rotation(NamedTuple):
    """Turns of the models that have work, one after the other."""

    gaining: float
    """Part of them, 0 to 1, in which batches grow by what is lent: those of models that want more
    than their share, or whose requests waited for memory in their last turn. In the others its way
    back is paid as well."""
    apart: int
    """Turns from one way back of a layer to the next, at least 1. Who ran last lends first and runs
    again last, so that with n models a layer stays away for n - 1 turns."""


EACH_TURN = Rotation(1.0, 1)
"""Rotation with a larger batch and a way back in each turn."""


def most_lent(
    tenants: Sequence[TenantSnapshot],
    rows: Sequence[TenantRow],
    kv_bytes: int,
    turns: TurnLengths,
    rules: Rules,
) -> int:
    """Bytes that may be lent in turns, where KV memory is `kv_bytes` with all layers in place.

    What is lent is not called back because fewer turns gain: who lacks memory changes with the
    turn, and the requests that run on it would be computed anew.
    """
    most = inf if turns.drains else covered(rows)
    if rules.lend_kv is not None:
        return int(min(most, rules.lend_kv * max(0, kv_bytes)))
    link, staying, lending = 0.0, MOST_PART, False
    for t in tenants:
        if load_s := t.report.layer_load_s:
            link = max(link, t.shape.layer_bytes / load_s)
        staying = min(staying, t.staying_part)
        lending = lending or t.layers_out > 0
    gaining, apart = EACH_TURN if turns.drains else rotation(tenants, rows)
    turn_bytes = link * turns.seconds * apart
    worth = worth_lending(
        kv_bytes, turn_bytes, staying, most=most, lending=lending, gaining=gaining
    )
    if lending and not turns.drains:
        running = _grown(tenants, rows, kv_bytes)
        kept = worth_keeping(kv_bytes, turn_bytes, staying, most=most, running_bytes=running)
        worth = max(worth, kept)
    largest = max([r.unit_bytes for r in rows], default=0)
    return worth - worth % max(1, largest)  # what whole layers bring too much comes back as well


def rotation(tenants: Sequence[TenantSnapshot], rows: Sequence[TenantRow]) -> Rotation:
    """Turns of the models that have work now; as if all gained while none has any."""
    working = [(t, row) for t, row in zip(tenants, rows, strict=True) if _has_work(t)]
    short = sum(t.lacked or _wanted(t) > row.share for t, row in working)
    return Rotation(short / len(working) if working else 1.0, max(1, len(working) - 1))


def _has_work(t: TenantSnapshot) -> bool:
    return t.report.running + t.report.waiting > 0


def _wanted(t: TenantSnapshot) -> int:
    """Extents in total that all its requests want, in its turn or not."""
    return max(t.report.growth_extents, t.report.admission_extents)


def _grown(tenants: Sequence[TenantSnapshot], rows: Sequence[TenantRow], kv_bytes: int) -> int:
    """Bytes beyond `kv_bytes` that running requests grow to.

    0 while requests of a tenant wait that has less than its share: others' growth would keep from
    it what it waits for, turn after turn.
    """
    for t, row in zip(tenants, rows, strict=True):
        if t.report.waiting and t.used_extents < row.share:
            return 0
    return sum(t.growth_extents * t.shape.extent_bytes for t in tenants) - kv_bytes


def covered(rows: Sequence[TenantRow]) -> int:
    """Bytes of layers that can be away in each tenant's turn: all others', and its hidden ones."""
    every = sum(r.most * r.unit_bytes for r in rows)
    missing = max(((r.most - r.surely_hidden) * r.unit_bytes for r in rows), default=0)
    return every - missing


def covers(
    tenants: Sequence[TenantSnapshot], name: str, usable_bytes: int, policy: Policy, rules: Rules
) -> bool:
    """True if all KV in use fits beside the layers that `name` cannot hide, were it its turn.

    `usable_bytes`: of the device, what is kept for tenants that are not here not counted.
    """
    used = sum(t.used_extents * t.shape.extent_bytes for t in tenants)
    away = used + sum(footprint(t.shape, 0, 0) for t in tenants) - usable_bytes
    if away <= 0 or policy is not Policy.MIRAGE:
        return True
    capped = rules.model_copy(update={"decode_cap": True})

    def layers(t: TenantSnapshot) -> int:
        if t.name == name:
            return hidden_layers(t, t.report.layer_compute_s, capped)
        return most_remapped(t.tenant, t.shape, rules)

    return away <= sum(layers(t) * t.shape.layer_bytes for t in tenants)
