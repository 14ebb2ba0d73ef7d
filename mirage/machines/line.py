"""Messages between a device server and who started it as its child, over a socket that it has.

`DeviceAlive` is the sign of life: first of its process, then of its event loop.
"""

from __future__ import annotations

from mirage.wire import Message

BEAT_S = 0.5
"""Seconds between two signs of life."""


class DeviceAlive(Message, frozen=True):
    """Sign of life."""


class DeviceReady(Message, frozen=True):
    """Its first starts are over, and the router has seen its table."""


class DeviceCannot(Message, frozen=True):
    """It ends, for this reason; `refused` if it is one that the user can correct."""

    why: str
    refused: bool


class DeviceStops(Message, frozen=True):
    """Server of a device: all its engines stop; none is left to be adopted."""


FromDevice = DeviceAlive | DeviceReady | DeviceCannot
ToDevice = DeviceStops
