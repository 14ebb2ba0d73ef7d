"""Counters of an engine since its start. Reports and samples extend them."""

from __future__ import annotations

import msgspec


class Counters(msgspec.Struct, kw_only=True):
    """Counters of one engine; none falls while the engine lives."""

    started: int = 0
    """Requests that began to run. A preempted request that runs again is not counted again."""
    preemptions: int = 0
    """Requests preempted."""
    steps: int = 0
    """Steps processed."""
    tokens: int = 0
    """Tokens scheduled, of prompts and of answers; drafts count once they are accepted."""
    prefill_tokens: int = 0
    """Prefilled tokens among `tokens`: those of prompts, and those computed again after a
    preemption.
    """
    recomputed_tokens: int = 0
    """Tokens among `prefill_tokens` that were computed before a preemption, and are computed
    again."""
    tokens_from_device: int = 0
    """Tokens found in the device's prefix cache, and so not computed."""
    tokens_from_peer: int = 0
    """Tokens whose KV was loaded from a peer; the next two fields count host memory and SSD."""
    tokens_from_host: int = 0
    tokens_from_ssd: int = 0
    bytes_streamed: int = 0
    """Bytes of layers loaded from host memory."""
    stall_s: float = 0.0
    """Seconds that compute waited for a layer to arrive."""
    tokens_loaded: int = 0
    """Tokens whose KV was loaded from below the device: from peers, host memory and SSD
    together.
    """
    kv_bytes_up: int = 0
    """KV bytes loaded from below the device."""
    kv_bytes_down: int = 0
    """KV bytes stored below the device."""
    failed_loads: int = 0
    """Requests that computed tokens because a load failed."""
    late_loads: int = 0
    """Requests that computed tokens because a load did not arrive in time."""
    saved_s: float = 0.0
    """Seconds of steps that computing the loaded tokens would have taken."""
    expert_hits: int = 0
    """Experts that were given away, were routed to, and lay in a spare frame."""
    expert_loads: int = 0
    """Experts that were loaded while a step waited."""
    expert_bytes_loaded: int = 0
    """Bytes of `expert_loads`."""
    expert_peer_loads: int = 0
    """Loads among `expert_loads` that came from a peer."""
