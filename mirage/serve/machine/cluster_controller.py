"""Controller of a cluster: claims an epoch, keeps all devices served, and places lost models."""

from __future__ import annotations

import os
import socket
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol
from urllib.parse import urlsplit

from mirage.errors import CommandFailed
from mirage.machines.epoch import claimed_epoch, newest_epoch
from mirage.machines.seam import ROUTER, MachineAway, Machines, StaleEpoch
from mirage.machines.tether_messages import TetherTold
from mirage.serve.machine.cluster import KnownCluster, ServedCluster
from mirage.serve.machine.cluster_device import ClusterDevice
from mirage.serve.machine.cluster_servers import ClusterServers
from mirage.serve.machine.first import LEFT, Stays, first_placement
from mirage.serve.machine.move_book import MoveBook
from mirage.serve.machine.moving import MachineMoves
from mirage.serve.said import say
from mirage.serve.together import together


class ClusterMachines(Machines, Protocol):
    """Machines that need `keep` to run, and take orders of one epoch."""

    epoch: int

    async def told(self, device: str) -> TetherTold | None:
        """Server of a device or a router as its agent saw it last. Raises `MachineAway`."""

    def keep(self) -> Coroutine[Any, Any, None]:
        """Watch the machines. Never returns."""


async def serve_cluster(
    machines: ClusterMachines,
    plan: ServedCluster,
    known: KnownCluster,
    begins: Callable[[ClusterController], Awaitable[None]],
) -> None:
    """Keep all devices served until this is cancelled; servers go on after that.

    Each controller `begins` before it looks after anything. Raises `StaleEpoch` once another
    controller has begun, `MachineAway` if no epoch can be claimed, `CommandFailed` for what running
    routers cannot have; then nothing has changed.
    """
    await check_routers(machines, plan)
    who, beyond = f"{socket.gethostname()} {os.getpid()}", 0
    while True:
        machines.epoch = await claimed_epoch(machines, who, beyond)
        say(f"controller of epoch {machines.epoch}")
        try:
            controller = ClusterController(machines, plan, known, say)
            await controller.begin()
            await begins(controller)
            await together([controller.keep(), machines.keep(), _tell(machines)])
        except StaleEpoch as error:
            if await newest_epoch(machines) != machines.epoch:
                raise
            beyond = error.epoch  # servers had a head before whose facts were lost


class ClusterController:
    """Controller of one epoch. Call `begin`, then run `keep`. All methods raise `StaleEpoch`."""

    def __init__(
        self,
        machines: Machines,
        plan: ServedCluster,
        known: KnownCluster,
        say: Callable[[str], None],
    ) -> None:
        self._plan, self._scenes, self._say = plan, known.scenes, say
        self.devices = {name: ClusterDevice(name, machines, plan, ()) for name in plan.machine_of}
        self.servers = ClusterServers(machines, plan, self.devices, known.facts, say)
        self.book, section = MoveBook(), plan.file.placement
        self._moves = MachineMoves(self.devices, section, self.book, say, astray=True)
        self._facts = known.facts
        """Facts by which models move."""
        self._moves.knows(*known)

    async def begin(self) -> None:
        """Take over the servers that run, and place all models."""
        left, rules = await self.servers.serving(), self._plan.file.placement.rules
        places = defaultdict(list)
        facts = self.servers.facts
        for model, place in first_placement(facts, Stays(left, LEFT), rules).places.items():
            self._say(f"{model}: on {' and '.join(place.devices)}, {place.why}")
            for device in place.devices:
                places[device].append(model)
        await self.servers.meet(places)
        self._moves.goes_on()

    async def keep(self) -> None:
        """Keep servers running, and move models unless `placement.off` is true. Never returns."""
        work = [self.servers.keep(self._weighs)]
        if self._plan.file.placement.off:
            self._say("placement.off is true: nothing moves, also when a machine is lost")
        else:
            work.append(self._moves.keep(self.servers.knows))
        await together(work)

    async def step(self) -> None:
        """Look at servers and devices once, and do what follows. Raises `MachineAway`."""
        await self.servers.look()
        self._weighs()
        await self._moves.look()

    def _weighs(self) -> None:
        """Have models move by the host memory that is known by now."""
        if self._facts is not self.servers.facts:
            self._facts = self.servers.facts
            self._moves.knows(self._facts, self._scenes)


async def check_routers(machines: ClusterMachines, plan: ServedCluster) -> None:
    """Raises `CommandFailed` for a router that serves at another address than it shall."""
    scheme, port = "http" if plan.common.http.tls is None else "https", plan.options.port
    with suppress(MachineAway):
        for machine in await machines.there():
            with suppress(MachineAway):
                told = await machines.told(f"{ROUTER}{machine.name}")
                if told is None or not told.url:
                    continue
                parts = urlsplit(told.url)
                if parts.scheme != scheme or port not in (0, parts.port):
                    asked = f"--port {port} and http.tls in the file make it {scheme}://...:{port}"
                    raise CommandFailed(
                        f"machine {machine.name!r}: its router serves at {told.url}, and {asked}: "
                        "leave both as they were, or run mirage node leave there first"
                    )


async def _tell(machines: Machines) -> None:
    async for news in machines.news():
        say(f"device {news.device!r}: {news.why}")
