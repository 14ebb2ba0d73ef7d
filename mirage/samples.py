"""Samples of engines' memory over time: `mirage serve` returns them, and a replay reads them.

The bodies of ``/mirage/state`` and ``/mirage/timeline`` consist of them.
"""

from __future__ import annotations

import msgspec

from mirage.counters import Counters

SCHEMA_VERSION = 3
PLACES = ("device", "peer", "host", "ssd")
"""Places of KV blocks, the fastest first; counters ``tokens_from_...`` are named after them."""
INTERVAL_S = 0.1
"""Seconds between two samples when they are taken. Over a long run some are discarded."""


class TenantSample(Counters):
    """One tenant at one moment, from its engine's last `Report`."""

    kv_blocks: int
    """Usable KV blocks: granted and not retiring."""
    kv_used_blocks: int
    """Blocks among `kv_blocks` that belong to a request."""
    layers_remapped: int
    """Layers whose memory is given away."""
    stream_slots: int
    """Slots that the streamed layers share."""
    running: int
    """Requests that run."""
    waiting: int
    """Requests that wait."""
    held_bytes: int
    """Bytes of device memory, of parameters and KV cache together."""
    experts: int = 0
    """Experts of each layer whose memory is given away."""


class Sample(msgspec.Struct, frozen=True):
    """All tenants at time `t`, in seconds since the server was ready."""

    t: float
    tenants: dict[str, TenantSample]


class TenantShape(msgspec.Struct, frozen=True):
    """Constant properties of a tenant: sizes in bytes, extents in KV blocks."""

    layers: int
    layer_bytes: int
    extent_bytes: int
    extent_blocks: int
