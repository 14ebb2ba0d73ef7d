"""Part of a target's KV memory that is open to waiting requests. Pure."""

from __future__ import annotations

from mirage.config import Policy
from mirage.control.rows import TenantRow
from mirage.control.tenant_rows import Terms
from mirage.units import ceil_div

TOGETHER = 1 / 4
"""Part of the memory that layers pay for which waiting requests leave free while all requests of a
turn grow together."""


def closed_bytes(terms: Terms, paid_bytes: int, kv_bytes: int) -> int:
    """Return the bytes that waiting requests leave to the growth of running ones.

    `paid_bytes`: memory that layers and experts of all tenants pay for; `kv_bytes`: KV memory with
    all layers in place. Under policy mirage with `rules.serve` growth the result is `paid_bytes`.
    With `rules.favour` latency, in a turn that is `TurnLengths.young`, it is the part `TOGETHER` of
    `paid_bytes` up to `kv_bytes`, then less and less, and 0 from twice `kv_bytes` on: there is room
    to grow then, and leaving more free cost 2 % of tokens (in C2). Otherwise it is 0.
    """
    rules, turns = terms.rules, terms.turns
    if terms.policy is not Policy.MIRAGE:
        return 0
    if rules.serve == "growth":
        return paid_bytes
    if turns is None or not turns.young or rules.favour == "throughput":
        return 0
    return int(TOGETHER * max(0, min(paid_bytes, 2 * kv_bytes - paid_bytes)))


def open_extents(row: TenantRow, closed: int) -> int | None:
    """Return the extents of a row that are open to waiting requests, which leave `closed` bytes
    free; None for all.

    It is never less than the row's share, which holds the longest request. A tenant that is `late`
    opens just its share.
    """
    extents = row.kv if row.late else ceil_div(closed, row.extent_bytes)
    found = max(row.share, row.kv - extents)
    return found if found < row.kv else None
