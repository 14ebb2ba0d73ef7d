"""Servers on all machines as a controller keeps them: one for each device, a router on each
machine.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from urllib.parse import urlsplit

import msgspec

from mirage.control.placement.facts import PlacementFacts
from mirage.control.placement.host_room import refused_places
from mirage.errors import CommandFailed
from mirage.machines.seam import ROUTER, DeviceCall, MachineAway, Machines, MachineThere
from mirage.machines.weights import MachineWeights
from mirage.serve.machine.calls import DeviceAway, DeviceRefused, message_of
from mirage.serve.machine.cluster import ServedCluster
from mirage.serve.machine.cluster_device import ClusterDevice
from mirage.serve.machine.machine_router import ORDER, RouterTold
from mirage.serve.machine.served_device import DeviceStanding

log = logging.getLogger(__name__)

EVERY_S = 1.0
REACHED_S = 1.0
"""Seconds to connect to an address."""
TELL_S = 20.0
"""Seconds for all machines to hear of another plan; others hear of it later."""
FIRST_S = 60.0
"""Seconds to wait for a machine that has not been seen yet."""


class ClusterServers:
    """Starts or takes over all servers of a cluster. `keep` has to run."""

    def __init__(
        self,
        machines: Machines,
        plan: ServedCluster,
        devices: Mapping[str, ClusterDevice],
        facts: PlacementFacts,
        say: Callable[[str], None],
    ) -> None:
        """`facts` tell what models take of host memory."""
        self._machines, self._plan, self._devices, self._say = machines, plan, devices, say
        self.facts = facts
        """Facts with the host memory of all machines that have told of it."""
        self._weighed: dict[str, MachineThere] = {}
        """Machines whose host memory is counted."""
        self._checked: set[str] = set()
        """Devices whose tenants have host memory."""
        self._weights = MachineWeights(machines, say)
        self._until = time.monotonic() + FIRST_S
        self._ordered: dict[str, tuple[str, bytes]] = {}
        """Machine's life and order with which each server was started last."""
        self._told: dict[str, tuple[str, bytes]] = {}
        """Machine's life and order that each router was told last."""
        self._version = 0
        """Number of the plan, which grows with each change."""
        self._obeyed: dict[str, tuple[str, int]] = {}
        """Machine's life and version of the plan that the server of each device obeys."""
        self._met: set[str] = set()
        """Devices that have answered this controller."""
        self._urls: dict[str, str] = {}
        """Addresses that were printed, by the names of devices and routers."""
        self.knows = asyncio.Event()
        """Set while the cluster answers; models are placed only then."""

    async def keep(self, looked: Callable[[], None]) -> None:
        """Look every `EVERY_S`, and call `looked` each time. Never returns.

        Raises `StaleEpoch` once another controller has begun.
        """
        while True:
            try:
                await self.look()
                looked()
                self.knows.set()
            except MachineAway as error:
                if self.knows.is_set():
                    log.warning("nothing is placed until the cluster answers: %s", error)
                self.knows.clear()
            await asyncio.sleep(EVERY_S)

    async def look(self) -> None:
        """Look at all machines once, and start missing servers. Raises `MachineAway` and
        `StaleEpoch`.
        """
        there = {one.name: one for one in await self._machines.there()}
        devices = self._devices.values()
        await self._weigh(there.values())
        await self._check()
        await asyncio.gather(*(self._device(one, there.get(one.machine)) for one in devices))
        await asyncio.gather(*map(self._router, there.values()))
        if self._plan.file.common.weights.ahead:
            for one in devices:
                if one.standing is DeviceStanding.THERE:
                    await self._weights.bring(one.name, self._plan.stored.values())

    async def meet(self, places: Mapping[str, Collection[str]]) -> None:
        """Give devices the models of `places` (by device), beside those that they serve already.

        Raises `StaleEpoch`.
        """
        for name, device in self._devices.items():
            device.tenants = frozenset(places.get(name, ())) | device.tenants
        await self._check()
        await asyncio.gather(*map(self._meet, self._devices.values()))

    async def serving(self) -> dict[str, tuple[str, ...]]:
        """Return the devices on which each model of the file is served now.

        The host memory of the machines is read first. Raises `StaleEpoch`.
        """
        await self._weigh(await self._known())
        found: dict[str, tuple[str, ...]] = {}
        for device in self._devices.values():
            with suppress(DeviceAway, DeviceRefused):
                for one in (await device.calls.tenants()).tenants:
                    found[one.name] = (*found.get(one.name, ()), device.name)
        return {name: at for name, at in found.items() if name in self._plan.file.named}

    # -- host memory --------------------------------------------------------------------

    async def _weigh(self, there: Iterable[MachineThere]) -> None:
        """Count the host memory of machines that tell of it, beside what devices take of it."""
        anew = [m for m in there if m.host_bytes and self._weighed.get(m.name) != m]
        if not anew:
            return
        for machine in anew:
            self._weighed[machine.name] = machine
            nbytes = machine.host_bytes - await asyncio.to_thread(self._plan.taken, machine.name)
            machines = tuple(
                replace(one, nbytes=max(0, nbytes)) if one.name == machine.name else one
                for one in self.facts.machines
            )
            self.facts = replace(self.facts, machines=machines)

    async def _check(self) -> None:
        """Leave out tenants for which machines have no host memory; what is served stays."""
        weighed = {
            name: one
            for name, one in self._devices.items()
            if one.machine in self._weighed and name not in self._checked
        }
        if not weighed:
            return
        served: dict[str, frozenset[str]] = {}
        for name, device in self._devices.items():
            served[name] = frozenset[str]() if name in weighed else device.tenants
            with suppress(DeviceAway, DeviceRefused):
                if name in weighed:
                    told = await device.calls.tenants()
                    served[name] = frozenset(one.name for one in told.tenants)
        wanted = {name: one.tenants for name, one in weighed.items()}
        for place in refused_places(self.facts, served, wanted):
            self._devices[place.device].tenants -= {place.model}
            self._say(place.words)
        self._checked |= weighed.keys()

    # -- another plan -------------------------------------------------------------------

    async def would(self, plan: ServedCluster) -> None:
        """Ask all that are there whether they can have another plan. Raises `CommandFailed`."""
        there = {one.name: one for one in await self._known()}
        routers = (self._router_would(one, plan) for one in there.values())
        devices = (self._device_would(one, plan) for one in self._devices.values())
        await asyncio.gather(*routers, *devices)

    async def has(self, plan: ServedCluster) -> list[str]:
        """Have all by another plan, and certificates read again; who could not be told yet.

        Those are told once they answer.
        """
        self._plan = plan
        self._version += 1
        self._told.clear()
        for device in self._devices.values():
            device.plan = plan
        there = {one.name: one for one in await self._known()}
        devices = self._devices.values()
        with suppress(TimeoutError):
            async with asyncio.timeout(TELL_S):
                await asyncio.gather(
                    *map(self._router, there.values()),
                    *(self._obeys(d, there[d.machine]) for d in devices if d.machine in there),
                )
        machines = {*there, *plan.machine_of.values()}
        late = [f"machine {m}" for m in sorted(machines) if f"{ROUTER}{m}" not in self._told]
        behind = (d.name for d in devices if self._obeyed.get(d.name, ("", -1))[1] < self._version)
        return late + [f"device {name}" for name in behind]

    async def _known(self) -> Sequence[MachineThere]:
        """Machines that are there; none while the cluster does not answer."""
        with suppress(MachineAway):
            return await self._machines.there()
        return ()

    async def _router_would(self, machine: MachineThere, plan: ServedCluster) -> None:
        name = f"{ROUTER}{machine.name}"
        order = plan.router_order(name, machine, self._doors)
        with suppress(MachineAway):
            answer = await self._machines.call(name, DeviceCall("PUT", f"{ORDER}?dry_run=1", order))
            if answer.status >= 400:
                raise CommandFailed(f"machine {machine.name!r}: {message_of(answer.body)}")

    async def _device_would(self, device: ClusterDevice, plan: ServedCluster) -> None:
        with suppress(DeviceAway):
            try:
                await device.would(plan)
            except DeviceRefused as error:
                raise CommandFailed(f"device {device.name!r}: {error}") from None

    # -- devices ------------------------------------------------------------------------

    async def _device(self, device: ClusterDevice, machine: MachineThere | None) -> None:
        if machine is None:
            await self._missing(device)
            return
        if device.standing is DeviceStanding.LOST:
            self._say(f"device {device.name!r}: machine {machine.name!r} is back")
            device.standing = DeviceStanding.COMES
        if device.standing is DeviceStanding.COMES:
            await self._meet(device)
        await self._obeys(device, machine)
        if (url := device.calls.url) and self._urls.get(device.name) != url:
            self._urls[device.name] = url
            self._say(f"device {device.name!r} serves at {url}")

    async def _missing(self, device: ClusterDevice) -> None:
        """Note a device whose machine is missing as lost, unless its server's address still
        answers.
        """
        waits = device.standing is DeviceStanding.COMES and time.monotonic() < self._until
        if waits or device.standing is DeviceStanding.LOST:
            return
        if await _is_reached(device.calls.url):
            device.standing = DeviceStanding.COMES
        else:
            device.standing = DeviceStanding.LOST
            self._say(f"device {device.name!r} is lost: its models go elsewhere")

    async def _meet(self, device: ClusterDevice) -> None:
        """Take over the tenants that the device's server has, and let it serve those that are
        missing.
        """
        with suppress(DeviceAway):
            try:
                told = await device.calls.tenants()
                has = frozenset(one.name for one in told.tenants)
                if device.name not in self._met:
                    device.tenants |= has & set(self._plan.models)
                if device.tenants != has:
                    await device.serves(device.tenants)
            except DeviceRefused as error:
                names = ", ".join(sorted(device.tenants))
                self._say(f"device {device.name!r} refuses {names}: {error}")
            self._met.add(device.name)
            device.standing = DeviceStanding.THERE

    async def _obeys(self, device: ClusterDevice, machine: MachineThere) -> None:
        """Have its next server begin by the plan, then the one that serves go on by it."""
        begun = await self._start(device.name, machine, device.order(machine.address))
        version = machine.life, self._version
        if not begun or self._obeyed.get(device.name) == version:
            return
        with suppress(DeviceAway):
            try:
                await device.obeys()
            except DeviceRefused as error:
                self._say(f"device {device.name!r} goes on as before: {error}")
            self._obeyed[device.name] = version

    async def _start(self, name: str, machine: MachineThere, order: bytes) -> bool:
        """True if its agent knows the order."""
        if self._ordered.get(name) != (machine.life, order):
            with suppress(MachineAway):
                await self._machines.start(name, machine.name, order)
                self._ordered[name] = machine.life, order
        return self._ordered.get(name) == (machine.life, order)

    # -- routers ------------------------------------------------------------------------

    async def _router(self, machine: MachineThere) -> None:
        """Start the machine's router, and send it its order: the doors of devices, and all else.

        A router that the agent starts later begins with that order in any case.
        """
        name, doors = f"{ROUTER}{machine.name}", self._doors
        order = self._plan.router_order(name, machine, doors)
        begun = await self._start(name, machine, self._plan.router_agent(order))
        if not begun or self._told.get(name) == (machine.life, order):
            return
        with suppress(MachineAway, msgspec.DecodeError):
            answer = await self._machines.call(name, DeviceCall("PUT", ORDER, order))
            if answer.status >= 400:
                self._say(f"machine {machine.name!r}: {message_of(answer.body)}")
                self._told[name] = machine.life, order
                return
            told = msgspec.json.decode(answer.body, type=RouterTold)
            if told.doors == doors:
                self._told[name] = machine.life, order
            if told.words:
                self._say(f"machine {machine.name!r}: {told.words}")
            if self._urls.get(name) != told.url:
                self._urls[name] = told.url
                self._say(f"machine {machine.name!r} serves all models at {told.url}")

    @property
    def _doors(self) -> dict[str, str]:
        return {one.name: one.calls.url for one in self._devices.values()}


async def _is_reached(url: str) -> bool:
    """True if the address can be connected."""
    parts = urlsplit(url)
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(REACHED_S):
            if parts.hostname is not None:
                _, writer = await asyncio.open_connection(parts.hostname, parts.port)
                writer.close()
                return True
    return False
