"""Memory of engines over time, as `mirage serve` tells it and a replay reads it.

The bodies of ``/mirage/state`` and ``/mirage/timeline`` are made of these.
"""

from __future__ import annotations

import msgspec

SCHEMA_VERSION = 1
PLACES = ("device", "peer", "host", "ssd")
"""Where KV blocks can be, quickest first: fields ``tokens_from_...``."""
INTERVAL_S = 0.1
"""Between two samples, as they are taken; a long run keeps fewer of them."""


class TenantSample(msgspec.Struct, frozen=True):
    """One tenant at one moment, from its engine's last `Report`."""

    kv_blocks: int
    """Usable KV blocks: granted and not retiring."""
    kv_used_blocks: int
    """Of them, those that belong to a running request."""
    alpha: int
    """Layers whose memory was given away."""
    beta: int
    """Slots that the streamed layers share."""
    running: int
    """Requests."""
    waiting: int
    """Requests."""
    held_bytes: int
    """Device memory, parameters and KV cache together."""
    preemptions: int
    """Since the engine started, as all that follow."""
    bytes_streamed: int
    stall_s: float
    """Seconds that compute waited for a layer to arrive."""
    steps: int = 0
    tokens: int = 0
    prefill_tokens: int = 0
    """Tokens computed of prompts, and of requests that were preempted."""
    tokens_from_device: int = 0
    """Tokens found in the device's prefix cache; those that follow came from below it."""
    tokens_from_peer: int = 0
    tokens_from_host: int = 0
    tokens_from_ssd: int = 0
    tokens_loaded: int = 0
    """Tokens whose KV came from below the device: the sum of the last three."""
    kv_bytes_up: int = 0
    kv_bytes_down: int = 0
    failed_loads: int = 0
    late_loads: int = 0
    saved_s: float = 0.0
    """Seconds of steps that the tokens loaded would have taken."""
    experts: int = 0
    """Experts of each layer whose memory was given away."""
    expert_hits: int = 0
    expert_loads: int = 0
    expert_bytes_loaded: int = 0
    expert_peer_loads: int = 0


class Sample(msgspec.Struct, frozen=True):
    """All tenants at `t` seconds."""

    t: float
    tenants: dict[str, TenantSample]


class TenantShape(msgspec.Struct, frozen=True):
    """What does not change about a tenant: sizes in bytes, extents in KV blocks."""

    layers: int
    layer_bytes: int
    extent_bytes: int
    extent_blocks: int
