"""Bounds of silence between machines, all of which follow from one key, `http.silent_s`. Pure.

A connection with another machine is broken off when that machine has acknowledged nothing for
`silent_s` seconds.
"""

from __future__ import annotations

MISSED_S = 2
"""Seconds after which Ray misses a machine (`SYSTEM` in `machines/ray/node.py`)."""


def door_s(silent_s: float) -> float:
    """Seconds that a router waits for the *door* of a device on another machine to answer: the
    request that turns a connection to that device's own router into a line for bytes both ways.
    """
    return silent_s * 2 / 3


def address_s(silent_s: float) -> float:
    """Seconds for which the controller of a cluster tries the address of a device whose machine Ray
    has missed, before the device counts as lost; at least 1. With the time until Ray misses the
    machine they add up to `silent_s`, if that is 3 or more.
    """
    return max(1.0, silent_s - MISSED_S)
