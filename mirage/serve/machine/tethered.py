"""Server of one device in a cluster: a process without a parent, which an agent starts and ends.

``python -m mirage.serve.machine.tethered ORDER SOCKET EPOCH LEASE_S``. It has its own address and
router. An agent, another process of the machine, starts it and renews its lease over the *tether*,
the socket SOCKET. Without an agent it goes on until the lease ends.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from mirage.config import Config
from mirage.errors import CommandFailed, InputRefused
from mirage.machines.tether import DeviceServed, Tether
from mirage.processes.exits import exits
from mirage.processes.reaper_client import ReaperClient
from mirage.serve.access.forms import AccessKey, AccessTable
from mirage.serve.access.server_keys import OrderedKeys, ServerKeys
from mirage.serve.adoption.left import LeftRun
from mirage.serve.adoption.record import ConfigRecord
from mirage.serve.apply.applier import Origin
from mirage.serve.apply.source import ConfigSource, Written
from mirage.serve.apply.state_file import StateFile
from mirage.serve.device.domain import Domain
from mirage.serve.entry import OwnAddress
from mirage.serve.launch.programs import Means
from mirage.serve.logs.logs import LogFormat, LogPlan, log_by
from mirage.serve.logs.progress import say, speak_for
from mirage.serve.models.hubs import HubFolders
from mirage.serve.models.step_times import profiled
from mirage.serve.routing.inner import Overview
from mirage.serve.rundir.folders import RunDir
from mirage.serve.supervisor import ServeOptions, serve_behind
from mirage.serve.tasks import together

BEAT_S = 0.5
OWN_KEY = "cluster"
"""Name of the key that is made from the cluster's secret. With it routers of other machines may
connect to this device.
"""


class TetheredOrder(msgspec.Struct, frozen=True):
    """Start parameters (order) of a tethered server: configuration, address, keys and log
    settings."""

    device: str
    config: ConfigRecord
    lease_s: float | None
    """Lease in seconds of its engines if this process is killed; None leaves that of the
    configuration.
    """
    host: str
    """Address to listen on; any free port is taken."""
    keys: tuple[AccessKey, ...]
    """Keys of clients, and the cluster's own (`OWN_KEY`)."""
    log_level: int
    log_format: LogFormat
    startup_timeout_s: float | None = None


class TetheredAddress(OwnAddress):
    """Address of a device, which the agent is told over the tether, with signs of life of this
    process's event loop.
    """

    def __init__(
        self,
        tether: Tether,
        config: Config,
        domain: Domain,
        overview: Overview,
        rundir: RunDir,
        reaper: ReaperClient,
    ) -> None:
        super().__init__(config, domain, overview, rundir, reaper, door=OWN_KEY)
        self._tether = tether

    async def begin(self, host: str, port: int, keys: AccessTable, left: LeftRun | None) -> str:
        """Listen, tell the agent the URL and the operators' socket over the tether, and return the
        URL. See `RequestEntry`."""
        url = await super().begin(host, port, keys, left)
        self._tether.listens(url, self.admin_socket)
        return url

    async def keep(self) -> None:
        """Serve the address, and send signs of life. Never returns."""
        await together([super().keep(), beats(self._tether)])


async def beats(tether: Tether) -> None:
    """Send signs of life of this event loop over the tether. Never returns."""
    while True:
        tether.beats()
        await asyncio.sleep(BEAT_S)


def serve_tethered(order: TetheredOrder, tether: Tether, means: Means) -> int:
    """Serve a device until a signal; return the exit code.

    Raises `ConfigError` for errors that the user can correct, and `EngineFailed` if no engine gets
    ready.
    """
    told = order.config
    path = Path(told.path)
    written = Written(told.raw, path, Path(told.folder), told.sha256)
    folders = HubFolders({name: Path(folder) for name, folder in told.models.items()})
    source = ConfigSource(
        path, told.policy, told.memory, told.tiers, order.lease_s, proposed=written, folders=folders
    )
    source.fetch(written, say)
    config = source.config(written)
    options = ServeOptions(
        order.host,
        0,
        startup_timeout_s=order.startup_timeout_s,
        keys=ServerKeys(OrderedKeys(keys=order.keys)),
    )
    origin = Origin(source, written, told.sha256, StateFile(None))
    entry = partial(TetheredAddress, tether)
    return serve_behind(entry, config, origin, options, means, tether, profiled(config))


def main(means: Means | None = None) -> None:
    """Serve the device of an order until a signal comes, or the lease is over. `means` replaces the
    `Means()` of a server."""
    serve = partial(serve_tethered, means=means or Means())
    by_order("tethered", TetheredOrder, serve)


class NamedOrder(Protocol):
    """Attributes that all orders have with which an agent starts a server."""

    @property
    def device(self) -> str:
        """Name by which the agent knows the server."""

    @property
    def log_level(self) -> int: ...

    @property
    def log_format(self) -> LogFormat: ...


Order = TypeVar("Order", bound=NamedOrder)


def by_order(program: str, kind: type[Order], serve: Callable[[Order, Tether], int]) -> None:
    """Run `serve` with the order that the command line names, until a signal comes or the lease of
    the agent ends. The process exits with the code that `serve` returns.
    """
    parser = argparse.ArgumentParser(prog=program)
    parser.add_argument("order", type=Path)
    parser.add_argument("socket", type=Path)
    parser.add_argument("epoch", type=int)
    parser.add_argument("lease_s", type=float)
    given = parser.parse_args()
    order = msgspec.json.decode(given.order.read_bytes(), type=kind)
    log_by(LogPlan(order.log_format, device=order.device), order.log_level)
    speak_for(order.device)
    with exits(interrupted="", failures=(CommandFailed,)):
        try:
            with Tether(given.socket, given.epoch, given.lease_s) as tether:
                sys.exit(serve(order, tether))
        except DeviceServed as error:
            raise InputRefused(str(error)) from None


if __name__ == "__main__":
    main()
