"""Controller as a process: it runs until a signal, on a machine that has joined a cluster."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mirage.errors import CommandFailed, InputRefused
from mirage.machines.ray.connected import connected
from mirage.machines.ray.node import NodeFolder, NodeRecord, derived
from mirage.machines.seam import MachineAway, StaleEpoch
from mirage.serve.access.forms import AccessKey
from mirage.serve.access.ring import digest
from mirage.serve.access.server_keys import ServerKeys
from mirage.serve.apply.source import ConfigSource
from mirage.serve.logs import LogFormat
from mirage.serve.machine.cluster import (
    LEASE_S,
    ClusterOptions,
    KnownCluster,
    ServedCluster,
    served_cluster,
)
from mirage.serve.machine.cluster_controller import serve_cluster
from mirage.serve.machine.tethered import OWN_KEY
from mirage.serve.means import Means
from mirage.serve.said import say
from mirage.serve.together import together
from mirage.serve.until_signal import EXIT_CODES

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
    clients = keys.table.keys or ()
    if any(key.name == OWN_KEY for key in clients):
        raise InputRefused(f"--keys: a key is named {OWN_KEY!r}, as the cluster's own: rename it")
    lease_s = LEASE_S if lease_s is None else lease_s
    if lease_s < LEAST_LEASE_S:
        raise InputRefused(
            f"--lease {lease_s:g}: at least {LEAST_LEASE_S:g} with --cluster: an agent has to be "
            "back by then"
        )
    options = ClusterOptions((*clients, own), token, port, log_format, lease_s, means.tethered)
    plan = served_cluster(source, source.written(), options)
    known = plan.known(means.probe)
    with (
        connected(folder) as node,
        Path(os.devnull).open("w") as nobody,
        redirect_stdout(nobody),  # Ray prints traces of other machines there, which are in its logs
    ):
        try:
            return asyncio.run(_until_signal(plan, known, _stays(folder, node)))
        except StaleEpoch as error:
            raise CommandFailed(f"another controller serves this cluster now ({error})") from None
        except MachineAway as error:
            raise CommandFailed(str(error)) from None


async def _stays(folder: NodeFolder, node: NodeRecord) -> None:
    """Raises `CommandFailed` once Ray is started anew here: this process has no way to it."""
    while folder.node() == node:
        await asyncio.sleep(LOOK_S)
    raise CommandFailed("the node of this machine has begun anew: start the controller again")


async def _until_signal(
    plan: ServedCluster, known: KnownCluster, stays: Coroutine[Any, Any, None]
) -> int:
    from mirage.machines.ray.machines import RayMachines  # Ray reads the environment then

    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def end(code: int) -> None:
        if not ended.done():
            ended.set_result(code)

    for number in EXIT_CODES.keys() - {signal.SIGHUP}:
        loop.add_signal_handler(number, end, EXIT_CODES[number])
    work = asyncio.create_task(together([serve_cluster(RayMachines(0), plan, known), stays]))
    either: list[asyncio.Future[Any]] = [work, ended]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if work.done():
        work.result()
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    say("the controller ends: device servers go on")
    return ended.result()
