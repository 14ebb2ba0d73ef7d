"""The part of a target's KV memory that is open to waiting requests. Pure."""

from __future__ import annotations

from mirage.config import Policy
from mirage.control.rows import TenantRow
from mirage.control.tenant_rows import Terms
from mirage.units import ceil_div

TOGETHER = 1 / 4
"""Part of what layers pay for that newcomers leave free where all requests still grow together."""


def closed_bytes(terms: Terms, paid_bytes: int, kv_bytes: int) -> int:
    """Bytes that waiting requests leave to the growth of running ones.

    `paid_bytes`: what layers and experts of all tenants pay for; `kv_bytes`: KV memory with all
    layers in place. In a young turn that is less and less of what goes beyond `kv_bytes`, and
    nothing of twice as much: there is room to grow, and it cost C2 2 % of its tokens.
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
    """Extents of a row that are open to waiting requests, which leave `closed` bytes; None for all.

    Never less than its share, which holds the longest request. A tenant that is late gets just
    the share.
    """
    extents = row.kv if row.late else ceil_div(closed, row.extent_bytes)
    found = max(row.share, row.kv - extents)
    return found if found < row.kv else None
