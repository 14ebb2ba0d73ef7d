"""Whether a tenant's cached prefixes stay while layers are given in their place. Pure.

KV memory that no request uses is lent first: it costs nothing. But where it holds prefixes that are
asked for again and again, whoever asks computes them anew. `worth` prices that loss a byte, by how
often cached blocks were taken again lately and by what a token takes to compute, or to load where
it is kept below the device. Where layers that may go cost less a byte, they are given first, and
cached prefixes last of all.

A tenant keeps no more than its share in this way. So the layers return as soon as demand ends, as
without cached prefixes: all shares fit beside all layers. Only under policy mirage, and while
tenants run at once: in turns, what is lent is priced as a whole (`lending`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from mirage.control.spilling import layers_of
from mirage.control.tenant_state import TenantSnapshot
from mirage.control.water_filling import Ask
from mirage.control.worth import Price, Way, dearest, idle_layers, unused
from mirage.geometry import block_bytes, token_bytes
from mirage.units import ceil_div

SPAN_S = 10.0
"""For which KV memory is taken to be lent."""
FELT = 0.002
"""Part of that time that must be lost with the prefixes: preempted requests find some as well."""


def keeping_prefixes(tenants: Sequence[TenantSnapshot], asks: Sequence[Ask]) -> tuple[Ask, ...]:
    """`asks`, with the extents in which each tenant keeps its cached prefixes."""
    layers = dearest(_given_instead(tenants, asks))
    if layers is None:
        return tuple(asks)
    return tuple(
        ask._replace(cached=_extents(t, ask)) if _stay(lending(t), layers) else ask
        for t, ask in zip(tenants, asks, strict=True)
    )


def lending(t: TenantSnapshot) -> Price:
    """Of all KV memory in which the tenant has cached prefixes and nothing else, for `SPAN_S`."""
    blocks = t.report.kv_cached_blocks
    if not blocks:
        return Price(Way.UNUSED, 0.0, 0)
    cached = blocks * block_bytes(t.shape)
    again = t.again_blocks_s * SPAN_S / blocks
    return unused(cached, cached_bytes=cached, again=again, compute_bytes_s=_back_bytes_s(t))


def _back_bytes_s(t: TenantSnapshot) -> float:
    """KV bytes a second that are there again, computed or, where they are kept below, loaded."""
    token_s = t.report.token_s
    computed = token_bytes(t.shape) / token_s if token_s > 0 else inf
    return max(computed, layers_of(t).link_bytes_s if t.report.keeps_below else 0.0)


def _stay(prefixes: Price, layers: Price) -> bool:
    return prefixes.seconds >= FELT * SPAN_S and prefixes.per_byte > layers.per_byte


def _extents(t: TenantSnapshot, ask: Ask) -> int:
    """With blocks of running requests or of cached prefixes, within the share."""
    blocks = t.report.kv_used_blocks + t.report.kv_cached_blocks + 1
    return min(ask.share, ceil_div(blocks, t.shape.extent_blocks))


def _given_instead(tenants: Iterable[TenantSnapshot], asks: Iterable[Ask]) -> Iterable[Price]:
    """A layer of each tenant that may give one; what hides costs nothing."""
    for t, ask in zip(tenants, asks, strict=True):
        model = layers_of(t)
        if ask.active and ask.hidden:
            yield Price(Way.LAYERS, 0.0, ask.layer_bytes)
        elif not ask.active and ask.lends and model.load_s > 0:
            yield idle_layers(model, 1)
