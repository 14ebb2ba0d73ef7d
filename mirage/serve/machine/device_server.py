"""Server process of one of several devices: `python -m mirage.serve.machine.device_server ORDER
SOCKET PARENT`.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import socket
import sys
from functools import partial
from pathlib import Path

import msgspec

from mirage.errors import CommandFailed, InputRefused
from mirage.processes.exits import exits
from mirage.serve.apply.applier import Origin
from mirage.serve.apply.source import ConfigSource, Written
from mirage.serve.apply.state_file import StateFile
from mirage.serve.launch.programs import Means
from mirage.serve.logs.logs import LogPlan, log_by
from mirage.serve.logs.progress import speak_for
from mirage.serve.machine.device_entry import DeviceEntry
from mirage.serve.machine.device_line import DeviceLine
from mirage.serve.machine.order import DeviceOrder
from mirage.serve.models.hubs import HubFolders
from mirage.serve.models.step_times import profiled
from mirage.serve.supervisor import ServeOptions, serve_behind

PR_SET_PDEATHSIG = 1


def serve_device(order: DeviceOrder, line: DeviceLine, means: Means) -> int:
    """Serve a device until a signal; return the exit code.

    Raises `ConfigError` for errors that the user can correct, and `EngineFailed` if no engine gets
    ready or, with `all_or_nothing` in the order, if one does not.
    """
    told = order.config
    path = Path(told.path)
    written = Written(told.raw, path, Path(told.folder), told.sha256)
    folders = HubFolders({name: Path(folder) for name, folder in told.models.items()})
    source = ConfigSource(
        path,
        told.policy,
        tiers=told.tiers,
        lease_s=order.lease_s,
        proposed=written,
        folders=folders,
    )
    config = source.config(written)
    origin = Origin(source, written, told.sha256, StateFile(None))
    options = ServeOptions(
        order.host,
        log_dir=None if order.log_dir is None else Path(order.log_dir),
        startup_timeout_s=order.startup_timeout_s,
        all_or_nothing=order.all_or_nothing,
        device=order.device,
    )
    entry = partial(DeviceEntry, order, line)
    return serve_behind(entry, config, origin, options, means, line, profiled(config))


def main(means: Means | None = None) -> None:
    """Serve the device of an order until a signal comes, or the parent process ends. `means`
    replaces the `Means()` of a server."""
    parser = argparse.ArgumentParser(prog="device_server")
    parser.add_argument("order", type=Path)
    parser.add_argument("socket", type=int)
    parser.add_argument("parent", type=int)
    given = parser.parse_args()
    # Engines go on for their lease then, and the next server takes them over.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != given.parent:
        return
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    line = DeviceLine(socket.socket(fileno=given.socket))
    order = msgspec.json.decode(given.order.read_bytes(), type=DeviceOrder)
    file = None if order.log_file is None else Path(order.log_file)
    log_by(LogPlan(order.log_format, file, device=order.device), order.log_level)
    speak_for(order.device)
    with exits(interrupted="", failures=(CommandFailed,)):
        try:
            sys.exit(serve_device(order, line, means or Means()))
        except (InputRefused, CommandFailed) as error:
            line.cannot(str(error), refused=isinstance(error, InputRefused))
            raise


if __name__ == "__main__":
    main()
