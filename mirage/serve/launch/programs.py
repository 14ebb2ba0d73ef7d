"""Programs that a server starts, and the times for which it waits; tests replace both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mirage.processes.child import Start
from mirage.serve.ends.restarts import BACKOFF_S, REST_S
from mirage.serve.fit.outside_grants import MARGIN_BYTES
from mirage.serve.launch.launcher import SERVER
from mirage.serve.launch.vllm_facts import PROBE, Probe

HELLO_S = 10.0
"""Seconds in which a new connection to the control server has to say hello, and in which an engine
has to connect once its API server is up.
"""
DEVICE_SERVER = ("-m", "mirage.serve.machine.device_server")
TETHERED = ("-m", "mirage.serve.machine.tethered")
DEVICE = {"cuda": ("-m", "mirage.serve.health.device_answers")}


@dataclass(frozen=True)
class Means:
    """Programs that a server starts, as arguments of Python, and times in seconds."""

    server: tuple[str, ...] = SERVER
    probe: Probe = PROBE
    """Process that is asked about the models."""
    device: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: dict(DEVICE))
    """Programs that try a device, by its kind: exit code 0 if it works. A kind without one cannot
    fail.
    """
    device_server: tuple[str, ...] = DEVICE_SERVER
    """Device server of one of several devices on a machine."""
    tethered: tuple[str, ...] = TETHERED
    """Device server of a device in a cluster of machines."""
    start: Start | None = None
    """Function that starts a child process; None leaves it to `warm_starts` of the
    configuration.
    """
    hello_s: float = HELLO_S
    """Seconds for an engine to connect to the control server, after its API server is up."""
    progress_s: float = 10.0
    """Seconds between two log lines about something that takes long."""
    margin_bytes: int = MARGIN_BYTES
    """Bytes that have to be left beside `device.memory`, as in `Outside`."""
    grace_s: float = 8.0
    """Seconds between SIGTERM and SIGKILL for an engine."""
    backoff_s: float = BACKOFF_S
    rest_s: float = REST_S
    """First pause and first rest in seconds, as in `Restarts`."""
