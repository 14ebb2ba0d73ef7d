"""Controller of a cluster (`mirage serve --cluster`) as a process: it runs until a signal, on a
machine that has joined the cluster.
"""

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
from mirage.machines.claim import Claimant
from mirage.machines.epoch import free_epoch, this_claimant
from mirage.machines.ray.connected import connected
from mirage.machines.ray.node import NodeFolder, NodeRecord, derived
from mirage.machines.seam import MachineAway, StaleEpoch
from mirage.processes.hangup import HangUps
from mirage.serve.access.forms import AccessKey
from mirage.serve.access.ring import digest
from mirage.serve.access.server_keys import ServerKeys
from mirage.serve.apply.source import ConfigSource
from mirage.serve.apply.state_file import KeptState, StateFile
from mirage.serve.clients.certificate import check_tls
from mirage.serve.launch.programs import Means
from mirage.serve.logs.logs import LogFormat
from mirage.serve.logs.progress import say
from mirage.serve.machine.cluster import (
    LEASE_S,
    ClusterOptions,
    served_cluster,
)
from mirage.serve.machine.cluster_admin import ClusterAdmin
from mirage.serve.machine.cluster_applying import ClusterApplier, ClusterMeans, with_own
from mirage.serve.machine.cluster_controller import ClusterController, serve_cluster
from mirage.serve.machine.tethered import OWN_KEY
from mirage.serve.service.manager import ServiceManager
from mirage.serve.tasks import together
from mirage.serve.until_signal import UntilSignal

SOCKET = "controller.sock"
"""Name of the socket for operators, in the folder of the machine."""
LEAST_LEASE_S = 60.0
"""Least seconds of a lease: after a partition Ray's node and its agents take ten to twenty seconds
to start again.
"""
LOOK_S = 1.0
"""Seconds between two looks at Ray's node of this machine."""


def serve_on_machines(
    source: ConfigSource,
    keys: ServerKeys,
    log_format: LogFormat,
    lease_s: float | None,
    startup_timeout_s: float | None,
    port: int,
    state: StateFile,
    means: Means,
    *,
    take_over: bool,
) -> int:
    """Let the machines of this cluster serve a file until a signal; return the exit code.

    Device servers go on after that. `lease_s` are the seconds for which they go on without an agent
    (None: `LEASE_S`). With `take_over` this controller replaces one that still runs. Raises
    `InputRefused` for options, keys or a file that cannot be used, and `CommandFailed` if the
    cluster does not answer, or another controller serves it.
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
    options = ClusterOptions(
        every, token, port, log_format, lease_s, means.tethered, startup_timeout_s
    )
    file = source.written()
    written, line = state.choose(file)
    if line:
        say(line)
    kept = KeptState(state, source.path, written, file.sha256)
    plan = served_cluster(source, written, options)
    check_tls(plan.common.http)
    with (
        connected(folder) as node,
        Path(os.devnull).open("w") as nobody,
        redirect_stdout(nobody),  # Ray prints traces of other machines there, which are in its logs
    ):
        try:
            by = this_claimant(node.name)
            over = asyncio.run(_over(by, take_over=take_over))
            own_means = ClusterMeans(keys, means.probe, kept)
            known = plan.known(means.probe)
            for name, model in known.models.items():
                if model.why:
                    say(f"{name}: {model.why}")
            applier = ClusterApplier(plan, written, known, own_means)
            stays = partial(_stays, folder, node)
            server = ClusterServer(applier, by, over, folder.path / SOCKET, HangUps(), stays)
            return asyncio.run(server.run())
        except StaleEpoch as error:
            raise CommandFailed(f"another controller serves this cluster now ({error})") from None
        except MachineAway as error:
            raise CommandFailed(str(error)) from None


async def _over(by: Claimant, *, take_over: bool) -> int:
    """Wait until this controller may replace the last one; return that one's epoch (the number of
    its term).

    Raises `CommandFailed` if the last controller still renews its claim, unless `take_over` is
    true, and `MachineAway` if the cluster does not answer.
    """
    from mirage.machines.ray.machines import RayMachines  # Ray reads the environment then

    return await free_epoch(RayMachines(0), by, take_over=take_over, say=say)


async def _stays(folder: NodeFolder, node: NodeRecord) -> None:
    """Raises `CommandFailed` once Ray is started anew on this machine, because this process cannot
    reach the new node."""
    while folder.node() == node:
        await asyncio.sleep(LOOK_S)
    raise CommandFailed("the node of this machine has begun anew: start the controller again")


class ClusterServer:
    """A controller that runs until a signal; device servers and routers go on after it."""

    def __init__(
        self,
        applier: ClusterApplier,
        by: Claimant,
        over: int,
        socket: Path,
        hangups: HangUps,
        stays: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """`over` is the epoch (number of the term) of the controller that this one follows,
        `socket` is for operators, and `stays` raises an error once Ray is started anew on this
        machine.
        """
        self._applier, self._by, self._over, self._socket = applier, by, over, socket
        self._hangups, self._stays = hangups, stays
        self._admin: ClusterAdmin | None = None
        self._signals: UntilSignal

    async def run(self) -> int:
        """Serve until a signal; return the exit code.

        Raises `StaleEpoch` once another controller has begun, `MachineAway` if no epoch can be
        claimed, `ConfigError` if operators cannot be served, and `CommandFailed` if running routers
        would need another address, or once Ray is started anew on this machine.
        """
        self._signals = UntilSignal(self, self._hangups, ServiceManager())
        return await self._signals.run()

    async def serve(self) -> None:
        """Keep all devices served, listen to operators, and read files again after SIGHUP. Never
        returns: it fails or is cancelled."""
        from mirage.machines.ray.machines import RayMachines  # Ray reads the environment then

        serving = serve_cluster(RayMachines(0), self._by, self._applier, self._over, self._begins)
        hearing = self._signals.hear_hangups(self._applier.after_hangup)
        await together([serving, hearing, self._stays()])

    async def _begins(self, controller: ClusterController) -> None:
        """Serve operators for `controller`. Raises `ConfigError` if it cannot listen to them."""
        self._applier.controller = controller
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
        """Do nothing: device servers and routers go on; see `SignalledServer`."""

    def kill(self) -> None:
        """Do nothing: device servers and routers go on."""

    async def stop(self) -> None:
        """Stop listening to operators; device servers and routers go on."""
        if self._admin is not None:
            await self._admin.stop()
        say("the controller ends: device servers go on")
