"""Order by which a device server is started: a file, as JSON."""

from __future__ import annotations

import msgspec

from mirage.serve.adoption.record import ConfigRecord
from mirage.serve.logs import LogFormat


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
