"""Controller of a cluster: it claims an epoch, has all served, and places what is lost."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import defaultdict
from collections.abc import Coroutine
from typing import Any, Protocol

from mirage.control.placement.facts import PlacementFacts
from mirage.machines.epoch import claimed_epoch, newest_epoch
from mirage.machines.seam import Machines, StaleEpoch
from mirage.serve.machine.cluster import ServedCluster
from mirage.serve.machine.cluster_device import ClusterDevice
from mirage.serve.machine.cluster_servers import ClusterServers
from mirage.serve.machine.first import first_placement
from mirage.serve.machine.move_book import MoveBook
from mirage.serve.machine.moving import MachineMoves
from mirage.serve.said import say
from mirage.serve.together import together


class ClusterMachines(Machines, Protocol):
    """Machines that have to be kept, and are given orders of an epoch."""

    epoch: int

    def keep(self) -> Coroutine[Any, Any, None]:
        """Never returns."""


async def serve_cluster(
    machines: ClusterMachines, plan: ServedCluster, facts: PlacementFacts
) -> None:
    """Have all devices served until this is cancelled: what runs goes on then.

    Raises `StaleEpoch` once another controller has begun, `MachineAway` if no epoch can be claimed.
    """
    who, beyond = f"{socket.gethostname()} {os.getpid()}", 0
    while True:
        machines.epoch = await claimed_epoch(machines, who, beyond)
        say(f"controller of epoch {machines.epoch}")
        try:
            await _control(machines, plan, facts)
        except StaleEpoch as error:
            if await newest_epoch(machines) != machines.epoch:
                raise
            beyond = error.epoch  # servers had a head before whose facts were lost


async def _control(machines: ClusterMachines, plan: ServedCluster, facts: PlacementFacts) -> None:
    devices = {name: ClusterDevice(name, machines, plan, ()) for name in plan.machine_of}
    servers = ClusterServers(machines, plan, devices, say)
    first = first_placement(facts, await servers.serving(), plan.file.placement.rules)
    places = defaultdict(list)
    for model, place in first.places.items():
        say(f"{model}: on {' and '.join(place.devices)}, {place.why}")
        for device in place.devices:
            places[device].append(model)
    await servers.meet(places)
    moves = MachineMoves(dict(devices), facts, plan.file.placement, MoveBook(), say, astray=True)
    moves.goes_on()
    await together([servers.keep(), machines.keep(), _tell(machines), _place(servers, moves, plan)])


async def _place(servers: ClusterServers, moves: MachineMoves, plan: ServedCluster) -> None:
    """Place while the cluster answers. Never returns."""
    if plan.file.placement.off:
        say("placement.off is true: nothing moves, also when a machine is lost")
        await asyncio.Event().wait()
    await moves.keep(servers.knows)


async def _tell(machines: Machines) -> None:
    async for news in machines.news():
        say(f"device {news.device!r}: {news.why}")
