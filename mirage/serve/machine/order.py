"""Start parameters (order) of a device server, which it reads from a JSON file."""

from __future__ import annotations

import msgspec

from mirage.serve.adoption.record import ConfigRecord
from mirage.serve.logs.logs import LogFormat


class DeviceOrder(msgspec.Struct, frozen=True):
    """Start parameters (order) of one device server: its configuration, and the options of the
    process above it, which is `mirage serve` with several devices.
    """

    device: str
    config: ConfigRecord
    """Configuration of this device alone."""
    lease_s: float | None
    """Lease of its engines in seconds; None leaves that of the configuration."""
    host: str
    url: str
    """URL of the router, which all devices share."""
    line: str
    """Path of the socket at which the router asks for this device's table."""
    admin: str
    """Path of the device's admin socket."""
    log_dir: str | None
    startup_timeout_s: float | None
    all_or_nothing: bool
    log_level: int
    log_format: LogFormat
    log_file: str | None
