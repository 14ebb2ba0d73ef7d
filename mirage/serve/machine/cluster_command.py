"""Controller as a process: it runs until a signal, on a machine that has joined a cluster."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from contextlib import redirect_stdout
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mirage.config import ConfigError
from mirage.errors import CommandFailed, InputRefused
from mirage.machines.ray.connected import connected
from mirage.machines.ray.node import NodeFolder, NodeRecord, derived
from mirage.machines.seam import MachineAway, StaleEpoch
from mirage.processes.hangup import HangUps
from mirage.serve.access.forms import AccessKey
from mirage.serve.access.ring import digest
from mirage.serve.access.server_keys import ServerKeys
from mirage.serve.apply.source import ConfigSource
from mirage.serve.clients.certificate import check_tls
from mirage.serve.logs import LogFormat
from mirage.serve.machine.cluster import (
    LEASE_S,
    ClusterOptions,
    KnownCluster,
    served_cluster,
)
from mirage.serve.machine.cluster_admin import ClusterAdmin
from mirage.serve.machine.cluster_applying import ClusterApplier, with_own
from mirage.serve.machine.cluster_controller import ClusterController, serve_cluster
from mirage.serve.machine.tethered import OWN_KEY
from mirage.serve.means import Means
from mirage.serve.said import say
from mirage.serve.service.manager import ServiceManager
from mirage.serve.together import together
from mirage.serve.until_signal import UntilSignal

SOCKET = "controller.sock"
"""Name of the socket for operators, in the folder of the machine."""
LEAST_LEASE_S = 60.0
"""Least seconds of a lease: after a partition Ray's node and its agents take ten to twenty seconds
to start again.
"""
LOOK_S = 1.0
"""Seconds between two looks at the node of this machine."""


def serve_on_machines(
    source: ConfigSource,
    keys: ServerKeys,
    log_format: LogFormat,
    lease_s: float | None,
    port: int,
    means: Means,
) -> int:
    """Let the machines of this cluster serve a file until a signal; return the exit code.

    Device servers go on after that. Raises `InputRefused` and `CommandFailed`.
    """
    if find_spec("ray") is None:
        raise InputRefused("--cluster needs ray: run pip install '.[cluster]' in the checkout")
    folder = NodeFolder()
    token = derived(folder.secret(), "devices")
    own = AccessKey(OWN_KEY, digest(token), None, admin=True, metrics=True)
    every = with_own(keys.table.keys, own)
    lease_s = LEASE_S if lease_s is None else lease_s
    if lease_s < LEAST_LEASE_S:
        raise InputRefused(
            f"--lease {lease_s:g}: at least {LEAST_LEASE_S:g} with --cluster: an agent has to be "
            "back by then"
        )
    options = ClusterOptions(every, token, port, log_format, lease_s, means.tethered)
    written = source.written()
    plan = served_cluster(source, written, options)
    check_tls(plan.common.http)
    applier = ClusterApplier(plan, written, keys)
    known, socket = plan.known(means.probe), folder.path / SOCKET
    with (
        connected(folder) as node,
        Path(os.devnull).open("w") as nobody,
        redirect_stdout(nobody),  # Ray prints traces of other machines there, which are in its logs
    ):
        server = ClusterServer(applier, known, socket, HangUps(), partial(_stays, folder, node))
        try:
            return asyncio.run(server.run())
        except StaleEpoch as error:
            raise CommandFailed(f"another controller serves this cluster now ({error})") from None
        except MachineAway as error:
            raise CommandFailed(str(error)) from None


async def _stays(folder: NodeFolder, node: NodeRecord) -> None:
    """Raises `CommandFailed` once Ray is started anew here: this process has no way to it."""
    while folder.node() == node:
        await asyncio.sleep(LOOK_S)
    raise CommandFailed("the node of this machine has begun anew: start the controller again")


class ClusterServer:
    """A controller that runs until a signal; device servers and routers go on after it."""

    def __init__(
        self,
        applier: ClusterApplier,
        known: KnownCluster,
        socket: Path,
        hangups: HangUps,
        stays: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """`socket` is for operators. `stays` raises an error once the node has begun anew."""
        self._applier, self._known, self._socket = applier, known, socket
        self._hangups, self._stays = hangups, stays
        self._admin: ClusterAdmin | None = None
        self._signals: UntilSignal

    async def run(self) -> int:
        """Serve until a signal; return the exit code. Raises as `serve_cluster` does."""
        self._signals = UntilSignal(self, self._hangups, ServiceManager())
        return await self._signals.run()

    async def serve(self) -> None:
        """See `SignalledServer`."""
        from mirage.machines.ray.machines import RayMachines  # Ray reads the environment then

        plan = self._applier.plan
        serving = serve_cluster(RayMachines(0), plan, self._known, self._begins)
        hearing = self._signals.hear_hangups(self._applier.after_hangup)
        await together([serving, hearing, self._stays()])

    async def _begins(self, controller: ClusterController) -> None:
        """Serve operators for `controller`. Raises `ConfigError`."""
        self._applier.servers = controller.servers
        if self._admin is not None:
            await self._admin.stop()
        self._admin = ClusterAdmin(controller, self._applier)
        try:
            await self._admin.start(self._socket)
        except OSError as error:
            why = error.strerror or error
            raise ConfigError(f"{self._socket}: cannot listen to operators ({why})") from None
        say(f"operators: --socket {self._socket}")

    def stops(self) -> None:
        """See `SignalledServer`: nothing of it has to end."""

    def kill(self) -> None:
        """See `SignalledServer`."""

    async def stop(self) -> None:
        """See `SignalledServer`."""
        if self._admin is not None:
            await self._admin.stop()
        say("the controller ends: device servers go on")
