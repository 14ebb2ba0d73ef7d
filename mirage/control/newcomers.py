"""The part of a target's KV memory that is open to waiting requests. Pure."""

from __future__ import annotations

from mirage.config import Policy
from mirage.control.rows import TenantRow
from mirage.control.tenant_rows import Terms
from mirage.units import ceil_div

TOGETHER = 1 / 4
"""Part of what layers pay for that newcomers leave free in turns that drain: all that such a turn
began grows together."""


def open_extents(row: TenantRow, terms: Terms, paid_bytes: int) -> int | None:
    """Extents of a row that are open to waiting requests; None for all.

    `paid_bytes`: what layers and experts of all tenants pay for. At least its share is open: that
    holds the longest request. Of one that is late, no more than that.
    """
    closed = row.kv if row.late else ceil_div(int(_closed(terms) * paid_bytes), row.extent_bytes)
    found = max(row.share, row.kv - closed)
    return found if found < row.kv else None


def _closed(terms: Terms) -> float:
    """Part of what is paid for that is kept for the growth of running requests."""
    rules = terms.rules
    if terms.policy is not Policy.MIRAGE:
        return 0
    if rules.serve == "growth":
        return 1
    drains = terms.turns is not None and terms.turns.drains
    return TOGETHER if drains and rules.favour == "latency" else 0
