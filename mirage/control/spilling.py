"""KV of suspended requests that goes below the device, where tenants take turns.

At the end of a turn unfinished requests hold KV memory that the next tenant could use. A tenant
that stops is told how much of it to give up: some of its requests are preempted, and their blocks
stay cached until other requests need the memory. Blocks whose memory is needed go below the device
once, and come back once when their owner has the turn again.
"""

from __future__ import annotations

from typing import NamedTuple

from mirage.control.lending import worth_lending
from mirage.control.prices import Layers, Price, drop, spill
from mirage.control.tenant_state import TenantSnapshot
from mirage.geometry import token_bytes

LEAST_GAIN = 0.05
"""Least relative gain in tokens a second for which KV is spilled, with one copy over the link in
each turn paid."""


class TurnLengths(NamedTuple):
    """Length of turns, and the way in which they end."""

    seconds: float
    """Length of a turn in seconds; if turns drain, as measured (`drained_turns`)."""
    drains: bool = False
    """True if in every turn the requests that it began are finished before it ends."""
    below_bytes: int = 0
    """Largest number of bytes of suspended KV that is kept below the device; 0 if there is no
    tier."""
    young: bool = False
    """True in a turn that drains, if no other tenant waits for its end and it has lasted for less
    than `seconds` yet: it still begins requests, and all of them grow."""


def instead(t: TenantSnapshot) -> list[Price]:
    """Return the prices of an extent whose KV goes below the device, or is computed anew."""
    nbytes, token_s = t.shape.extent_bytes, t.report.token_s
    ways = [_down(t, nbytes)]
    if token_s > 0:
        a_token = token_bytes(t.shape)
        ways.append(drop(nbytes, token_bytes=a_token, prefill_tokens_s=1 / token_s))
    return ways


def layers_of(t: TenantSnapshot) -> Layers:
    """Return a tenant's layers as a price needs them."""
    shape, report = t.shape, t.report
    return Layers(shape.layers, shape.layer_bytes, report.layer_load_s, report.layer_compute_s)


def worth_spilling(t: TenantSnapshot, turns: TurnLengths) -> int:
    """Return the bytes of KV in use that a tenant gives up when its turn ends; 0 while T_T is
    unknown.

    Spilled KV is priced like a lent layer: the gain is larger batches of the next tenant, the cost
    one way over the link in each turn.
    """
    most = min(t.report.kv_used_extents * t.shape.extent_bytes, turns.below_bytes)
    kv_bytes = t.report.kv_extents * t.shape.extent_bytes
    turn_bytes = layers_of(t).link_bytes_s * turns.seconds
    return worth_lending(kv_bytes, turn_bytes, most=most, least=LEAST_GAIN)


def _down(t: TenantSnapshot, nbytes: int) -> Price:
    rate = layers_of(t).link_bytes_s
    return spill(nbytes, down_bytes_s=rate, up_bytes_s=rate)
