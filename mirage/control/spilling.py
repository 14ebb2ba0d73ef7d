"""In turns, with memory below the device: when KV of suspended requests goes there.

At the end of a turn requests that are not finished sit on their KV. Where it sits on layers of the
next model, that one streams them in every step of its turn; or the KV goes down once, and comes
up once when its owner's turn is back, or is computed anew where that takes less time. Which of them
costs least a byte, `worth` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mirage.control.lending import worth_lending
from mirage.control.targets import base
from mirage.control.tenant_state import TenantSnapshot
from mirage.control.worth import Layers, Price, drop, spill, worth_streaming
from mirage.geometry import token_bytes


class Turns(NamedTuple):
    """How tenants take turns."""

    seconds: float
    drains: bool = False
    """Whether no request is left unfinished when a turn ends."""
    below_bytes: int = 0
    """Most KV of suspended requests that is kept below the device; 0 if there is nothing."""


def layers_not_spilled_for(t: TenantSnapshot, hidden: int, most: int, turn_s: float) -> int:
    """Layers that the tenant streams all through its turn rather than that others' KV goes down.

    At least the `hidden` ones, at most `most`; all while T_T or T_c is unknown.
    """
    return worth_streaming(layers_of(t), hidden, most, turn_s, instead(t))


def instead(t: TenantSnapshot) -> list[Price]:
    """Of an extent whose KV goes below the device or is computed anew, by the times of `t`."""
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


def spillable(tenants: Sequence[TenantSnapshot], name: str, device_bytes: int, turns: Turns) -> int:
    """Bytes of KV that others than `name` use beyond their shares and that can go down.

    None if that, and the way back, takes longer than a turn: then their requests had better finish.
    """

    def beyond(t: TenantSnapshot) -> int:
        share = base(t.tenant, t.shape, device_bytes).kv_extents
        return max(0, t.demand.used - share) * t.shape.extent_bytes

    others = [t for t in tenants if t.name != name]
    nbytes = min(turns.below_bytes, sum(map(beyond, others)))
    seconds = max((_down(t, nbytes).seconds for t in others), default=0.0)
    return nbytes if seconds < turns.seconds else 0


def worth_spilling(
    kv_bytes: int, pool_bytes: int, room_bytes: int, *, bytes_per_s: float, turn_s: float
) -> int:
    """Bytes of `kv_bytes` that are spilled at a turn's end, at most the `room_bytes` below.

    `pool_bytes` is the KV memory that the next model has besides; `bytes_per_s` is the link's one
    way while the other is used too, since one model's KV goes down while another's comes up. KV
    that is spilled is lent like a layer: for the same gain, at the same price.
    """
    most = min(kv_bytes, room_bytes)
    return min(most, worth_lending(pool_bytes, bytes_per_s * turn_s, most=most))


def _down(t: TenantSnapshot, nbytes: int) -> Price:
    rate = layers_of(t).link_bytes_s
    return spill(nbytes, down_bytes_s=rate, up_bytes_s=rate)
