"""Controller of a cluster: claims an epoch (the number of its term), has a server run for each
device and a router on each machine, and places models, those of lost devices anew.

Each new controller claims a greater epoch, and servers refuse orders of smaller ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Protocol
from urllib.parse import urlsplit

from mirage.errors import CommandFailed
from mirage.machines.claim import Claimant
from mirage.machines.epoch import (
    claimed_epoch,
    give_up,
    keep_claim,
    newest_epoch,
)
from mirage.machines.seam import ROUTER, MachineAway, Machines, StaleEpoch
from mirage.machines.tether_messages import TetherTold
from mirage.serve.logs.progress import say
from mirage.serve.machine.cluster import KnownCluster, ServedCluster
from mirage.serve.machine.cluster_change import ClusterChange, ClusterNow, with_memory
from mirage.serve.machine.cluster_device import ClusterDevice
from mirage.serve.machine.cluster_servers import ClusterServers
from mirage.serve.machine.first import LEFT, Stays, first_placement
from mirage.serve.machine.move_book import MoveBook
from mirage.serve.machine.moving import MachineMoves
from mirage.serve.machine.served_device import DeviceStanding
from mirage.serve.tasks import together


class ClusterMachines(Machines, Protocol):
    """Machines of a cluster, as the controller of epoch `epoch` uses them. `keep` has to run."""

    epoch: int

    async def told(self, device: str) -> TetherTold | None:
        """State of a device server or a router, as the agent that started it saw it last; None if
        it did not answer the agent. Raises `MachineAway` if the agent does not answer.
        """

    def keep(self) -> Coroutine[Any, Any, None]:
        """Watch the machines. Never returns."""


class HasPlan(Protocol):
    """Holder of the cluster's file and options in force (`plan`), which may change while the
    cluster is served."""

    plan: ServedCluster
    known: KnownCluster


async def serve_cluster(
    machines: ClusterMachines,
    by: Claimant,
    has: HasPlan,
    over: int,
    begins: Callable[[ClusterController], Awaitable[None]],
) -> None:
    """Keep all devices served by the controller `by` until this is cancelled; servers go on after
    that.

    `over` is the epoch of the controller that this one follows. `begins` is awaited with each new
    `ClusterController` before that one keeps any server. Raises `StaleEpoch` once another
    controller has begun after this one, and `MachineAway` if no epoch can be claimed. Raises
    `CommandFailed`, before any order of a new epoch, if running routers would need another address,
    or if another controller has claimed an epoch after `over`.
    """
    await check_routers(machines, has.plan)
    beyond = 0
    while True:
        over = machines.epoch = await claimed_epoch(machines, by, over, beyond)
        say(f"controller of epoch {machines.epoch}")
        try:
            controller = ClusterController(machines, has.plan, has.known, say)
            serving = _serve(machines, controller, begins)
            await together([serving, keep_claim(machines, machines.epoch, by)])
        except StaleEpoch as error:
            if await newest_epoch(machines) != machines.epoch:
                raise
            beyond = error.epoch  # of an earlier controller whose facts were lost
        finally:
            await give_up(machines, machines.epoch, by)


async def _serve(
    machines: ClusterMachines,
    controller: ClusterController,
    begins: Callable[[ClusterController], Awaitable[None]],
) -> None:
    await controller.begin()
    await begins(controller)
    await together([controller.keep(), machines.keep(), _tell(machines)])


class ClusterController:
    """Controller of a cluster during one epoch, its term. Call `begin`, then run `keep`. These,
    `step` and `still` raise `StaleEpoch` once another controller has begun.
    """

    def __init__(
        self,
        machines: Machines,
        plan: ServedCluster,
        known: KnownCluster,
        say: Callable[[str], None],
    ) -> None:
        self._machines, self._plan, self._scenes, self._say = machines, plan, known.scenes, say
        self.devices = {name: ClusterDevice(name, machines, plan, ()) for name in plan.machine_of}
        self.calls = {name: one.calls for name, one in self.devices.items()}
        """Clients of the devices' servers, by device."""
        self.servers = ClusterServers(machines, plan, self.devices, known.facts, say)
        self.book, section = MoveBook(), plan.file.placement
        self._moves = MachineMoves(self.devices, section, self.book, say, astray=True)
        self._facts = known.facts
        """Facts by which models move."""
        self._moves.knows(known.facts, known.scenes)

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
        """Keep servers running, and move models; while `placement.off` is true, only those whose
        devices a changed file names. Never returns."""
        if self._plan.file.placement.off:
            self._say("placement.off is true: nothing moves, also when a machine is lost")
        await together([self.servers.keep(self._weighs), self._moves.keep(self.servers.knows)])

    # -- another file ---------------------------------------------------------------------

    @property
    def now(self) -> ClusterNow:
        """State that an apply begins with."""
        devices = self.devices.items()
        return ClusterNow(
            {name: one.tenants for name, one in devices},
            self._moves.stand_ins,
            frozenset(name for name, one in devices if one.standing is DeviceStanding.LOST),
            self.servers.facts,
            self.servers.host_bytes,
        )

    def still(self) -> AbstractAsyncContextManager[None]:
        """Context inside which no model moves; see `MachineMoves.still`."""
        return self._moves.still()

    def holds(self, change: ClusterChange) -> None:
        """Place models by the file of `change` from now on, and carry out the steps of `change`
        next. The caller has sent the file to the servers before; those of added devices start now.
        """
        facts = with_memory(
            change.known.facts,
            self.servers.facts,
            self.servers.host_bytes,
            self._plan,
            change.plan,
        )
        self._plan, self._scenes = change.plan, change.known.scenes
        self._facts = self.servers.facts = facts
        for name in change.above.devices:
            tenants = change.change.tenants[name]
            one = ClusterDevice(name, self._machines, change.plan, tenants)
            self.devices[name], self.calls[name] = one, one.calls
        if change.above.devices:
            self.servers.more()
        self._moves.knows(self._facts, self._scenes, self._plan.file.placement)
        self._moves.orders(change.change)

    async def step(self) -> None:
        """Look at servers and devices once, and do what follows. Raises `MachineAway` if the
        cluster does not answer."""
        await self.servers.look()
        self._weighs()
        await self._moves.look()

    def _weighs(self) -> None:
        """Pass newly known host memory on to the decisions about moves, once it has changed."""
        if self._facts is not self.servers.facts:
            self._facts = self.servers.facts
            self._moves.knows(self._facts, self._scenes)


async def check_routers(machines: ClusterMachines, plan: ServedCluster) -> None:
    """Raises `CommandFailed` if a running router has another scheme or port than `plan` says."""
    scheme, port = "http" if plan.common.http.tls is None else "https", plan.options.port
    with suppress(MachineAway):
        for machine in await machines.there():
            with suppress(MachineAway):
                told = await machines.told(f"{ROUTER}{machine.name}")
                if told is None or not told.url:
                    continue
                parts = urlsplit(told.url)
                if parts.scheme != scheme or port not in (0, parts.port):
                    asked = f"--port {port} and the TLS of this start make it {scheme}://...:{port}"
                    raise CommandFailed(
                        f"machine {machine.name!r}: its router serves at {told.url}, and {asked}: "
                        "leave both as they were, or run mirage node leave there first"
                    )


async def _tell(machines: Machines) -> None:
    async for news in machines.news():
        say(f"device {news.device!r}: {news.why}")
