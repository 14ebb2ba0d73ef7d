"""Limit on lending where tenants take turns: the bytes that pay, and those that the others can
cover. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from mirage.config import Policy
from mirage.control.hidden_layers import hidden_layers
from mirage.control.lending import MOST_PART, worth_keeping, worth_lending, worth_sparing
from mirage.control.rows import TenantRow
from mirage.control.rules import Rules
from mirage.control.spilling import TurnLengths
from mirage.control.targets import most_remapped
from mirage.control.tenant_state import TenantSnapshot
from mirage.geometry import footprint


class Rotation(NamedTuple):
    """Turns of the models that have work, one after the other."""

    gaining: float
    """Part of the turns, 0 to 1, in which batches grow by the lent memory: turns of models that
    want more than their share, or whose requests waited for memory in their last turn. The other
    turns pay the way back as well."""
    apart: int
    """Turns from one way back of a layer to the next, at least 1. The tenant that ran last lends
    first and runs again last, so that with n models a layer stays away for n - 1 turns."""


EACH_TURN = Rotation(1.0, 1)
"""Rotation in which every turn has a larger batch and a way back."""


def most_lent(
    tenants: Sequence[TenantSnapshot],
    rows: Sequence[TenantRow],
    kv_bytes: int,
    turns: TurnLengths,
    rules: Rules,
) -> int:
    """Return the bytes of layers that may be lent under temporal sharing. `kv_bytes` is the KV
    memory with all layers in place.

    Lent memory is not called back only because fewer turns gain than before: the tenant that lacks
    memory changes with the turn, and the requests that use the memory would have to be computed
    anew.
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
    if not (turns.drains or turns.below_bytes):
        spares = worth_sparing(
            kv_bytes,
            turn_bytes,
            staying,
            most=most,
            recomputed_part=sum(t.recomputed_part for t in tenants if _has_work(t)),
            lending=lending,
            gaining=gaining,
        )
        worth = max(worth, spares)
    if lending and not turns.drains:
        running = _grown(tenants, rows, kv_bytes)
        kept = worth_keeping(kv_bytes, turn_bytes, staying, most=most, running_bytes=running)
        worth = max(worth, kept)
    largest = max([r.unit_bytes for r in rows], default=0)
    return worth - worth % max(1, largest)  # whole layers: what they bring too much comes back too


def rotation(tenants: Sequence[TenantSnapshot], rows: Sequence[TenantRow]) -> Rotation:
    """Return the rotation of the models that have work now. If none has work, all turns count as
    gaining, and each has a way back."""
    working = [(t, row) for t, row in zip(tenants, rows, strict=True) if _has_work(t)]
    short = sum(t.lacked or _wanted(t) > row.share for t, row in working)
    return Rotation(short / len(working) if working else 1.0, max(1, len(working) - 1))


def _has_work(t: TenantSnapshot) -> bool:
    return t.report.running + t.report.waiting > 0


def _wanted(t: TenantSnapshot) -> int:
    """Return the extents, in total, that all requests of a tenant want, in its turn or not."""
    return max(t.report.growth_extents, t.report.admission_extents)


def _grown(tenants: Sequence[TenantSnapshot], rows: Sequence[TenantRow], kv_bytes: int) -> int:
    """Return the bytes beyond `kv_bytes` to which running requests grow; negative if they need
    less.

    0 while a tenant with less than its share has waiting requests: the growth of others would
    withhold the memory that they wait for, turn after turn.
    """
    for t, row in zip(tenants, rows, strict=True):
        if t.report.waiting and t.used_extents < row.share:
            return 0
    return sum(t.growth_extents * t.shape.extent_bytes for t in tenants) - kv_bytes


def covered(rows: Sequence[TenantRow]) -> int:
    """Return the bytes of layers that can be away whichever tenant has the turn: the layers of all
    others, and those of its own that its decode hides."""
    every = sum(r.most * r.unit_bytes for r in rows)
    missing = max(((r.most - r.surely_hidden) * r.unit_bytes for r in rows), default=0)
    return every - missing


def covers(
    tenants: Sequence[TenantSnapshot], name: str, usable_bytes: int, policy: Policy, rules: Rules
) -> bool:
    """True if all KV memory in use fits beside the layers that `name` cannot hide, if it had the
    turn. Always true if the policy is not mirage, since other policies take no layers.

    `usable_bytes` are the bytes of the device that are not reserved for absent tenants.
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
