"""With which programs models are served, and how long they are waited for: only tests change it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mirage.processes.child import Start
from mirage.serve.ask import PROBE, Probe
from mirage.serve.control import HELLO_S
from mirage.serve.ends.restarts import BACKOFF_S, REST_S
from mirage.serve.launcher import SERVER
from mirage.serve.outside import MARGIN_BYTES

DEVICE_SERVER = ("-m", "mirage.serve.machine.device_server")
TETHERED = ("-m", "mirage.serve.machine.tethered")
DEVICE = {"cuda": ("-m", "mirage.serve.device_answers")}


@dataclass(frozen=True)
class Means:
    """Programs that a server starts, as arguments of Python, and its times in seconds."""

    server: tuple[str, ...] = SERVER
    probe: Probe = PROBE
    """Process that is asked about the models."""
    device: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: dict(DEVICE))
    """Program by kind of device, exits with 0 if it can use one; none for one that cannot fail."""
    device_server: tuple[str, ...] = DEVICE_SERVER
    """Server of one of several devices."""
    tethered: tuple[str, ...] = TETHERED
    """Server of a device of one of several machines."""
    start: Start | None = None
    """Function that makes a server a child process; None: as `warm_starts` of the configuration has
    it."""
    hello_s: float = HELLO_S
    """For the engine of a server that is up to come to the control socket."""
    progress_s: float = 10.0
    """Between two lines about what takes long."""
    margin_bytes: int = MARGIN_BYTES
    """Bytes that have to be left beside `device.memory`, as in `Outside`."""
    grace_s: float = 8.0
    """Between SIGTERM and SIGKILL."""
    backoff_s: float = BACKOFF_S
    rest_s: float = REST_S
    """Both as in `Restarts`."""
