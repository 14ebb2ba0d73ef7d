"""Counters of an engine since its start. Reports and samples extend them."""

from __future__ import annotations

import msgspec


class Counters(msgspec.Struct, kw_only=True):
    """Counters of one engine; none falls while the engine lives."""

    started: int = 0
    """Requests that began to run; one that was preempted began once."""
    preemptions: int = 0
    """Requests preempted."""
    steps: int = 0
    """Steps processed."""
    tokens: int = 0
    """Tokens scheduled, of prompts and answers."""
    prefill_tokens: int = 0
    """Tokens of them that belong to prompts, and to requests that were preempted and computed
    again.
    """
    tokens_from_device: int = 0
    """Tokens that were found in the device's prefix cache instead."""
    tokens_from_peer: int = 0
    """Tokens whose KV was loaded from a peer; the next two likewise."""
    tokens_from_host: int = 0
    tokens_from_ssd: int = 0
    bytes_streamed: int = 0
    """Bytes of layers loaded from host memory."""
    stall_s: float = 0.0
    """Seconds that compute waited for a layer to arrive."""
    tokens_loaded: int = 0
    """Tokens whose KV came from below the device: of peers, host and SSD together."""
    kv_bytes_up: int = 0
    """KV bytes loaded from below the device."""
    kv_bytes_down: int = 0
    """KV bytes stored below the device."""
    failed_loads: int = 0
    """Requests that computed what they could not load."""
    late_loads: int = 0
    """Requests that computed what did not come in time."""
    saved_s: float = 0.0
    """Seconds of steps that the tokens loaded would have taken."""
    expert_hits: int = 0
    """Experts that were given away, routed to, and in a spare frame."""
    expert_loads: int = 0
    """Experts that had to be loaded while a step waited."""
    expert_bytes_loaded: int = 0
    """Bytes of those loads."""
    expert_peer_loads: int = 0
    """Loads of them from a peer."""
