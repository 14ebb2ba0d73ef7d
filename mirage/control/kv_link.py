"""Bytes of KV blocks that may cross the link to host memory beside streamed layers. Pure."""

from __future__ import annotations

from math import inf


def spare_bytes(
    *, layers: int, streamed: int, layer_bytes: int, load_s: float, compute_s: float
) -> float:
    """Return the bytes that the link can carry in one step beside the layers that are streamed.

    A step computes for `compute_s` * `layers` seconds (T_c n), of which `streamed` layers take the
    link for `load_s` each (T_T m); `layer_bytes` in `load_s` is the link's speed. Infinite if no
    layer is streamed, since KV blocks then delay no load, and while a time is 0, which means not
    measured.
    """
    if streamed <= 0 or load_s <= 0 or compute_s <= 0:
        return inf
    spare_s = compute_s * layers - load_s * streamed
    return max(0.0, spare_s) * layer_bytes / load_s


def bytes_in(seconds: float, *, layer_bytes: int, load_s: float) -> float:
    """Return the bytes that the link carries in `seconds`; infinite while its speed is unknown."""
    return seconds * layer_bytes / load_s if load_s > 0 and layer_bytes > 0 else inf
