"""Memory of engines over time, as `mirage serve` tells it and a replay reads it.

The bodies of ``/mirage/state`` and ``/mirage/timeline`` are made of these.
"""

from __future__ import annotations

import msgspec

from mirage.counters import Counters

SCHEMA_VERSION = 3
PLACES = ("device", "peer", "host", "ssd")
"""Places of KV blocks, quickest first: fields ``tokens_from_...``."""
INTERVAL_S = 0.1
"""Between two samples, as they are taken; a long run keeps fewer of them."""


class TenantSample(Counters):
    """One tenant at one moment, from its engine's last `Report`."""

    kv_blocks: int
    """Usable KV blocks: granted and not retiring."""
    kv_used_blocks: int
    """Blocks of them that belong to a running request."""
    layers_remapped: int
    """Layers whose memory was given away."""
    stream_slots: int
    """Slots that the streamed layers share."""
    running: int
    """Requests."""
    waiting: int
    """Requests."""
    held_bytes: int
    """Device memory, parameters and KV cache together."""
    experts: int = 0
    """Experts of each layer whose memory was given away."""


class Sample(msgspec.Struct, frozen=True):
    """All tenants at `t` seconds."""

    t: float
    tenants: dict[str, TenantSample]


class TenantShape(msgspec.Struct, frozen=True):
    """Constant properties of a tenant: sizes in bytes, extents in KV blocks."""

    layers: int
    layer_bytes: int
    extent_bytes: int
    extent_blocks: int
