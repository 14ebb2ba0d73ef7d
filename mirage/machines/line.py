"""Messages between a device server and its parent process, over a socket that it inherits.

`DeviceAlive` is the sign of life: first of the process, then of its event loop.
"""

from __future__ import annotations

from mirage.wire import Message

BEAT_S = 0.5
"""Seconds between two signs of life."""


class DeviceAlive(Message, frozen=True):
    """Device server to its parent: sign of life."""


class DeviceReady(Message, frozen=True):
    """Device server to its parent: the first starts of its engines are over, and the router knows
    its tenants.
    """


class DeviceCannot(Message, frozen=True):
    """Device server to its parent: it ends for the reason `why`; `refused` is True if the user can
    correct it.
    """

    why: str
    refused: bool


class DeviceStops(Message, frozen=True):
    """Parent to device server: the machine stops, so engines that the server leaves from now on are
    ended without a lease. No later server will adopt them.
    """


FromDevice = DeviceAlive | DeviceReady | DeviceCannot
ToDevice = DeviceStops
