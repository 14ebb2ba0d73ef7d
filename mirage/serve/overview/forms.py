"""Forms of an overview. Bytes are of device memory, times in seconds; `t` and `since` in seconds
since 1970.
"""

from __future__ import annotations

import msgspec

FORM_VERSION = 1


class RoleBytes(msgspec.Struct, frozen=True):
    """Device memory of one tenant by its role; the sum is all that the tenant holds."""

    weights: int = 0
    """Parameters, adapters, and slots of streamed layers."""
    kv_used: int = 0
    """KV blocks of running requests."""
    kv_cached: int = 0
    """KV blocks of no running request that hold a cached prefix."""
    kv_free: int = 0
    """The rest of the tenant's KV memory."""


class EngineRates(msgspec.Struct, frozen=True):
    """Work of one engine over the last seconds, per second."""

    requests: float
    """Requests that began to run."""
    tokens: float
    """Output tokens."""
    prompt_tokens: float


class Latencies(msgspec.Struct, frozen=True):
    """Latencies of recently ended requests; None if no such request had the measure."""

    requests: int
    ttft_p50_s: float | None = None
    """Time to the first token. This and the other times are of streamed answers only; `requests`
    counts all answers.
    """
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
    """Reason as a sentence, or as a line of a log; empty if none was given."""


class OverviewTenant(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant in an overview: its memory, rates and latencies."""

    name: str
    state: str
    since: float
    reason: str
    """Reason of the state; empty if there is none, or if the client may not see it."""
    next: str
    """Event that will end the state by itself, in words; ``-`` if there is none."""
    memory: RoleBytes
    share_bytes: int | None
    """Bytes that are guaranteed to it while it is awake; None if unknown."""
    layers: int
    """Number of decoder layers; 0 until an engine has reported it."""
    layers_remapped: int
    """Number of layers whose memory was given away."""
    running: int
    """Number of requests in its running batch, or on their way there."""
    waiting: int
    """Number of requests that wait until it is awake, or in its engine's queue."""
    rates: EngineRates | None
    """Rates; None until an engine has reported for some seconds."""
    latencies: Latencies


class OverviewTold(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of ``GET /overview`` at the admin socket, and of ``GET /mirage/overview``."""

    form_version: int = FORM_VERSION
    t: float
    policy: str
    device: str
    device_bytes: int
    status: str
    """State of the device: ``ok`` or ``failed``."""
    reason: str
    """Reason of the device's failure; empty if there is none, or if the client may not see it."""
    tenants: list[OverviewTenant]
    decisions: list[Decision]
    """Last decisions, the newest first."""
