"""How much KV of suspended requests is better copied below the device at the end of a turn.

What is spilled crosses the link once in each direction and turn; what stays takes memory from the
model whose turn it is, which would have to stream as many bytes of its layers in every step.
"""

from __future__ import annotations

from mirage.control.lending import worth_lending


def worth_spilling(
    kv_bytes: int, pool_bytes: int, room_bytes: int, *, bytes_per_s: float, turn_s: float
) -> int:
    """Bytes of `kv_bytes` that are spilled, at most the `room_bytes` that lie below.

    `pool_bytes` is the KV memory that the next model has besides; `bytes_per_s` is the link's one
    way while the other is used too, since one model's KV goes down while another's comes up. KV
    that is spilled is lent like a layer: for the same gain, at the same price.
    """
    most = min(kv_bytes, room_bytes)
    return min(most, worth_lending(pool_bytes, bytes_per_s * turn_s, most=most))
