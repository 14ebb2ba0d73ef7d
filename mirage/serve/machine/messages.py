"""Order by which a device server is started, and the messages between it and who started it.

The order is a file, as JSON. The messages go over a socket that the server has from its start, by
`mirage.wire`. `DeviceAlive` is the sign of life: first of its process, then of its event loop.
"""

from __future__ import annotations

import msgspec

from mirage.serve.adoption.record import ConfigRecord
from mirage.serve.logs import LogFormat
from mirage.wire import Message

BEAT_S = 0.5
"""Seconds between two signs of life."""


class DeviceOrder(msgspec.Struct, frozen=True):
    """All that one device server has to know."""

    device: str
    config: ConfigRecord
    """Configuration of this device alone."""
    lease_s: float | None
    """Instead of that of the configuration, unless None."""
    host: str
    url: str
    """Address of the router, that all devices have."""
    line: str
    """Socket at which the router comes for this device's table."""
    admin: str
    """Socket at which operators are heard."""
    log_dir: str | None
    startup_timeout_s: float | None
    all_or_nothing: bool
    log_level: int
    log_format: LogFormat
    log_file: str | None


class DeviceAlive(Message, frozen=True):
    """Sign of life."""


class DeviceReady(Message, frozen=True):
    """Its first starts are over, and the router has seen its table."""


class DeviceCannot(Message, frozen=True):
    """It ends, for this reason; `refused` if it is one that the user can correct."""

    why: str
    refused: bool


class DeviceStops(Message, frozen=True):
    """All stop: nobody will go on with engines that it leaves."""


FromDevice = DeviceAlive | DeviceReady | DeviceCannot
ToDevice = DeviceStops
