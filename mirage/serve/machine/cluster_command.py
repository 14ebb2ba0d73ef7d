"""The controller as a process: until a signal, on a machine that has joined a cluster."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mirage.errors import CommandFailed, InputRefused
from mirage.machines.epoch import claimed_epoch
from mirage.machines.ray.connected import connected
from mirage.machines.ray.node import NodeFolder, derived
from mirage.machines.seam import MachineAway, StaleEpoch
from mirage.serve.access.forms import AccessKey
from mirage.serve.access.ring import digest
from mirage.serve.access.server_keys import ServerKeys
from mirage.serve.apply.source import ConfigSource
from mirage.serve.logs import LogFormat
from mirage.serve.machine.cluster import LEASE_S, ServedCluster, serve_cluster, served_cluster
from mirage.serve.machine.tethered import OWN_KEY
from mirage.serve.said import say
from mirage.serve.supervisor import EXIT_CODES

LEAST_LEASE_S = 60.0
"""After a partition Ray's node and its agents start anew, in ten to twenty seconds."""


def serve_on_machines(
    source: ConfigSource,
    keys: ServerKeys,
    log_format: LogFormat,
    lease_s: float | None,
    program: tuple[str, ...],
) -> int:
    """Have the machines of this one's cluster serve a file until a signal; the exit code.

    Device servers go on then. Raises `InputRefused` and `CommandFailed`.
    """
    if find_spec("ray") is None:
        raise InputRefused("--cluster needs ray: run pip install '.[cluster]' in the checkout")
    folder = NodeFolder()
    own = AccessKey(
        OWN_KEY, digest(derived(folder.secret(), "devices")), None, admin=True, metrics=True
    )
    held = (*(keys.table.keys or ()), own)
    lease_s = LEASE_S if lease_s is None else lease_s
    if lease_s < LEAST_LEASE_S:
        raise InputRefused(
            f"--lease {lease_s:g}: at least {LEAST_LEASE_S:g} with --cluster: an agent has to be "
            "back by then"
        )
    plan = served_cluster(source, source.written(), held, log_format, lease_s, program)
    with connected(folder), Path(os.devnull).open("w") as nobody, redirect_stdout(nobody):
        try:  # Ray prints traces of other machines there, which are in its logs
            return asyncio.run(_until_signal(plan))
        except StaleEpoch as error:
            raise CommandFailed(f"another controller serves this cluster now ({error})") from None
        except MachineAway as error:
            raise CommandFailed(str(error)) from None


async def _until_signal(plan: ServedCluster) -> int:
    from mirage.machines.ray.machines import RayMachines  # Ray reads the environment then

    machines = RayMachines(0)
    machines.epoch = await claimed_epoch(machines, f"{socket.gethostname()} {os.getpid()}")
    say(f"controller of epoch {machines.epoch}")
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def end(code: int) -> None:
        if not ended.done():
            ended.set_result(code)

    for number in EXIT_CODES.keys() - {signal.SIGHUP}:
        loop.add_signal_handler(number, end, EXIT_CODES[number])
    work = asyncio.create_task(serve_cluster(machines, plan))
    either: list[asyncio.Future[Any]] = [work, ended]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if work.done():
        work.result()
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    say("the controller ends: device servers go on")
    return ended.result()
