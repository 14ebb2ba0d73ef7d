"""KV of suspended requests that goes below the device, where tenants take turns.

At the end of a turn requests that are not finished hold KV memory that the next tenant could use.
A tenant that stops is told how much of it to give up: its newest requests are preempted, and their
blocks stay cached until somebody wants the memory. What is wanted goes below the device once, and
comes back once when its owner's turn is back.
"""

from __future__ import annotations

from typing import NamedTuple

from mirage.control.lending import worth_lending
from mirage.control.prices import Layers, Price, drop, spill
from mirage.control.tenant_state import TenantSnapshot
from mirage.geometry import token_bytes

LEAST_GAIN = 0.05
"""More tokens a second, both ways paid, below which nothing is spilled."""


class TurnLengths(NamedTuple):
    """Lengths of turns, and the way in which they end."""

    seconds: float
    """Length of a turn, seconds: of those that drain as they were seen (`drained_turns`)."""
    drains: bool = False
    """True if no request is left unfinished when a turn ends."""
    below_bytes: int = 0
    """Most KV of suspended requests that is kept below the device; 0 if there is nothing."""
    young: bool = False
    """True if nobody waits for the end of one that drains, which has not lasted as long yet: it
    goes on beginning requests, and all of them still grow."""


def instead(t: TenantSnapshot) -> list[Price]:
    """Prices of an extent whose KV goes below the device or is computed anew."""
    nbytes, token_s = t.shape.extent_bytes, t.report.token_s
    ways = [_down(t, nbytes)]
    if token_s > 0:
        a_token = token_bytes(t.shape)
        ways.append(drop(nbytes, token_bytes=a_token, prefill_tokens_s=1 / token_s))
    return ways


def layers_of(t: TenantSnapshot) -> Layers:
    """A tenant's layers as `worth` sees them."""
    shape, report = t.shape, t.report
    return Layers(shape.layers, shape.layer_bytes, report.layer_load_s, report.layer_compute_s)


def worth_spilling(t: TenantSnapshot, turns: TurnLengths) -> int:
    """Bytes of KV in use that a tenant gives up when its turn ends; 0 while T_T is unknown.

    KV that is spilled is lent as a layer is: for the same gain, larger batches of the next
    tenant, and at the same price, one way over the link in each turn.
    """
    most = min(t.report.kv_used_extents * t.shape.extent_bytes, turns.below_bytes)
    kv_bytes = t.report.kv_extents * t.shape.extent_bytes
    turn_bytes = layers_of(t).link_bytes_s * turns.seconds
    return worth_lending(kv_bytes, turn_bytes, most=most, least=LEAST_GAIN)


def _down(t: TenantSnapshot, nbytes: int) -> Price:
    rate = layers_of(t).link_bytes_s
    return spill(nbytes, down_bytes_s=rate, up_bytes_s=rate)
