"""Forms of an overview. Bytes of device memory, seconds; `t` and `since` in seconds since 1970."""

from __future__ import annotations

import msgspec

FORM_VERSION = 1


class RoleBytes(msgspec.Struct, frozen=True):
    """Device memory of one tenant by its role; together it is what the tenant holds."""

    weights: int = 0
    """Parameters, adapters, and slots of layers that stream."""
    kv_used: int = 0
    """KV blocks of requests that run."""
    kv_cached: int = 0
    """KV blocks that no request has and that hold a cached prefix."""
    kv_free: int = 0
    """The rest of its KV memory."""


class EngineRates(msgspec.Struct, frozen=True):
    """Work of one engine over the last seconds, per second."""

    requests: float
    """Requests that began to run."""
    tokens: float
    """Tokens of answers."""
    prompt_tokens: float


class Latencies(msgspec.Struct, frozen=True):
    """Latencies of requests that have ended lately; None where no request tells them."""

    requests: int
    ttft_p50_s: float | None = None
    """Time to first token; likewise the others, of streams alone."""
    ttft_p99_s: float | None = None
    tpot_p50_s: float | None = None
    """Time per output token after the first one."""
    tpot_p99_s: float | None = None


class Decision(msgspec.Struct, frozen=True):
    """A decision about memory, or a change of a state."""

    t: float
    tenant: str
    text: str
    why: str = ""
    """Sentence, or a line of a log; empty if no reason was given."""


class OverviewTenant(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant in an overview: its memory, rates and latencies."""

    name: str
    state: str
    since: float
    reason: str
    """Reason of its state; empty if there is none, or if it is not told."""
    next: str
    """Event that ends its state by itself, in words; ``-`` without one."""
    memory: RoleBytes
    share_bytes: int | None
    """Bytes that it is sure of while it is awake; None if nobody knows."""
    layers: int
    """Decoder layers; 0 while no engine has told them."""
    layers_remapped: int
    """Layers of them whose memory is given away."""
    running: int
    """Requests in its running batch, or on their way there."""
    waiting: int
    """Requests that wait for it to be awake, or for room in its engine."""
    rates: EngineRates | None
    """None without an engine that has reported for some seconds."""
    latencies: Latencies


class OverviewTold(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of ``GET /overview`` on the admin socket, and of ``GET /mirage/overview``."""

    form_version: int = FORM_VERSION
    t: float
    policy: str
    device: str
    device_bytes: int
    status: str
    """``ok`` or ``failed``: the device."""
    reason: str
    """Reason of its failure; empty if there is none, or if it is not told."""
    tenants: list[OverviewTenant]
    decisions: list[Decision]
    """The newest first."""
