"""Start parameters (order) of a device server, made from its configuration and from the options of
the process above it, which is `mirage serve` with several devices.
"""

from __future__ import annotations

import logging
from pathlib import Path

from mirage.serve.apply.recorded import config_record
from mirage.serve.machine.declared import DeclaredDevice
from mirage.serve.machine.order import DeviceOrder
from mirage.serve.supervisor import ServeOptions


def device_order(
    device: DeclaredDevice,
    options: ServeOptions,
    line: Path,
    admin: Path,
    log_dir: Path | None,
) -> DeviceOrder:
    """Start parameters (order) of one device's server, which will listen at the sockets `line` and
    `admin`.

    `url` is left empty: the router's address is not known yet.
    """
    return DeviceOrder(
        device.name,
        config_record(device.source, device.written),
        device.source.lease_s,
        options.host,
        "",
        str(line),
        str(admin),
        None if log_dir is None else str(log_dir),
        options.startup_timeout_s,
        options.all_or_nothing,
        logging.getLogger("mirage").getEffectiveLevel(),
        options.logs.form,
        None if options.logs.file is None else str(options.logs.file.absolute()),
    )
