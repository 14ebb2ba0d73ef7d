"""Messages between a device server and who started it as its child, over a socket that it has.

`DeviceAlive` is the sign of life: first of its process, then of its event loop.
"""

from __future__ import annotations

from mirage.wire import Message

BEAT_S = 0.5
"""Seconds between two signs of life."""


class DeviceAlive(Message, frozen=True):
    """Device server to its parent: sign of life."""


class DeviceReady(Message, frozen=True):
    """Device server to its parent: its first starts are over, and the router knows its tenants."""


class DeviceCannot(Message, frozen=True):
    """Device server to parent: it ends, for this reason; `refused` if the user can correct it."""

    why: str
    refused: bool


class DeviceStops(Message, frozen=True):
    """Parent to device server: stop all engines; none of them will be adopted."""


FromDevice = DeviceAlive | DeviceReady | DeviceCannot
ToDevice = DeviceStops
