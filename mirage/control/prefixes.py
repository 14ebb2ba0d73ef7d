"""Cached prefixes of a tenant: they stay where giving layers in their place costs less. Pure.

KV memory that no request uses is lent first: it costs nothing. But if it holds prefixes that are
requested again and again, they have to be computed anew. That loss is priced by the byte
(`prices`): by how often cached blocks were taken again lately, and by the time that a token takes
to compute, or to load where it is kept below the device. If layers that may go cost less by the
byte, they are given first, and cached prefixes last of all.

A tenant keeps no more than its share in this way. So the layers return as soon as demand ends, as
without cached prefixes: all shares fit beside all layers. The rule holds only under policy mirage,
and under spatial sharing: in turns, lent memory is priced as a whole (`lending`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from msgspec.structs import replace

from mirage.control.prices import KvSource, Price, dearest, idle_layers, unused
from mirage.control.rows import TenantRow
from mirage.control.spilling import layers_of
from mirage.control.tenant_state import TenantSnapshot
from mirage.geometry import block_bytes, token_bytes
from mirage.units import ceil_div

SPAN_S = 10.0
"""Seconds for which KV memory is assumed to be lent."""
FELT = 0.002
"""Least part of `SPAN_S` that must be lost with the prefixes for them to stay: preempted requests
also find some cached."""


def keeping_prefixes(
    tenants: Sequence[TenantSnapshot], rows: Sequence[TenantRow]
) -> tuple[TenantRow, ...]:
    """Return `rows`, with the extents in which a tenant keeps its cached prefixes set for each
    tenant whose prefixes are worth more, by the byte, than any layer that may be given instead."""
    layers = dearest(_given_instead(tenants, rows))
    if layers is None:
        return tuple(rows)
    return tuple(
        replace(row, cached=_extents(t, row)) if _stay(lending(t), layers) else row
        for t, row in zip(tenants, rows, strict=True)
    )


def lending(t: TenantSnapshot) -> Price:
    """Return the price of lending, for `SPAN_S` seconds, all KV memory that holds cached prefixes
    and nothing else."""
    blocks = t.report.kv_cached_blocks
    if not blocks:
        return Price(KvSource.UNUSED, 0.0, 0)
    cached = blocks * block_bytes(t.shape)
    again = t.again_blocks_s * SPAN_S / blocks
    return unused(cached, cached_bytes=cached, again=again, compute_bytes_s=_back_bytes_s(t))


def _back_bytes_s(t: TenantSnapshot) -> float:
    """Return the KV bytes a second at which dropped prefixes come back: computed, or loaded if they
    are kept below."""
    token_s = t.report.token_s
    computed = token_bytes(t.shape) / token_s if token_s > 0 else inf
    return max(computed, layers_of(t).link_bytes_s if t.report.keeps_below else 0.0)


def _stay(prefixes: Price, layers: Price) -> bool:
    return prefixes.seconds >= FELT * SPAN_S and prefixes.per_byte > layers.per_byte


def _extents(t: TenantSnapshot, row: TenantRow) -> int:
    """Return the extents that the blocks of running requests and of cached prefixes fill together
    with the null block, at most the share."""
    blocks = t.report.kv_used_blocks + t.report.kv_cached_blocks + 1
    return min(row.share, ceil_div(blocks, t.shape.extent_blocks))


def _given_instead(tenants: Iterable[TenantSnapshot], rows: Iterable[TenantRow]) -> Iterable[Price]:
    """Yield the price of a layer of each tenant that may give one; a layer that hides costs
    nothing."""
    for t, row in zip(tenants, rows, strict=True):
        model = layers_of(t)
        if row.active and row.hidden:
            yield Price(KvSource.LAYERS, 0.0, row.unit_bytes)
        elif not row.active and row.lends and model.load_s > 0:
            yield idle_layers(model, 1)
