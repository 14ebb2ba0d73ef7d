"""Servers on all machines as a controller keeps them: one for each device, a router on each
machine.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from mirage.control.machine_silence import address_s
from mirage.control.placement.facts import PlacementFacts
from mirage.control.placement.host_room import refused_places
from mirage.errors import CommandFailed
from mirage.machines.seam import (
    ROUTER,
    DeviceCall,
    MachineAway,
    Machines,
    MachineThere,
    ServerCannot,
)
from mirage.machines.weights import MachineWeights
from mirage.serve.apply.forms import ApplyTold
from mirage.serve.machine.calls import DeviceAway, DeviceRefused, message_of
from mirage.serve.machine.cluster import ServedCluster
from mirage.serve.machine.cluster_device import ClusterDevice
from mirage.serve.machine.machine_router import ORDER, RouterTold
from mirage.serve.machine.served_device import DeviceStanding
from mirage.serve.tasks import Crew

log = logging.getLogger(__name__)

EVERY_S = 1.0
LOOK_S = 3.0
"""Most seconds for which a look waits for the devices' servers, and then again for the routers; a
server that has not told its tenants after two seconds (`calls.LOOK_S`) counts as away.
"""
REACHED_S = 1.0
"""Seconds of one try to connect to an address."""
TELL_S = 20.0
"""Most seconds for sending all servers the cluster's file, unless the caller gives another limit;
those that do not answer in time get it later.
"""
FIRST_S = 60.0
"""Seconds to wait for a machine that has not been seen yet, before its devices count as lost. They
count from the controller's start, and anew when devices are added.
"""


class PlanTold(NamedTuple):
    """Answers of servers that were sent a changed file of the cluster."""

    parts: dict[str, ApplyTold]
    """Answers of the devices that have applied it."""
    refused: dict[str, DeviceRefused]
    """Refusals of devices, which go on as before."""
    late: list[str]
    """Names of machines, for their routers, and of devices that could not be told yet."""


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
        """`facts` has the bytes of host memory that a copy of each model's parameters takes."""
        self._machines, self._plan, self._devices, self._say = machines, plan, devices, say
        self.facts = facts
        """Facts with the host memory of all machines that have told of it."""
        self._weighed: dict[str, MachineThere] = {}
        """Machines whose host memory is counted."""
        self._checked: set[str] = set()
        """Devices for whose tenants the host memory was checked, once."""
        self._weights = MachineWeights(machines, say)
        self._until = time.monotonic() + FIRST_S
        self._ordered: dict[str, tuple[str, bytes]] = {}
        """Machine's life (an identifier of its membership) and order with which the agent of each
        server was started last."""
        self._told: dict[str, tuple[str, bytes]] = {}
        """Machine's life (an identifier of its membership) and order that each router was told
        last."""
        self._telling: set[str] = set()
        """Devices whose servers are being sent a changed file."""
        self._version = 0
        """Version of the cluster's file, which grows with each change."""
        self._obeyed: dict[str, tuple[str, int]] = {}
        """Machine's life (an identifier of its membership) and version of the file that the server
        of each device has applied or refused."""
        self._met: set[str] = set()
        """Devices that have answered this controller."""
        self._crew = Crew()
        """Work at the servers, by their names: each one's goes on by itself."""
        self._lives: dict[str, str] = {}
        """Machine's life for which the work of `_crew` at each server began last; empty for a
        machine that is missing."""
        self._silent: dict[str, float] = {}
        """Time at which the address of each device whose machine is missing fell silent, by
        `time.monotonic`."""
        self._urls: dict[str, str] = {}
        """Addresses that were printed, by the names of devices and routers."""
        self._cannot: dict[str, str] = {}
        """Lines with which servers refuse to start, by the names of devices and routers."""
        self.knows = asyncio.Event()
        """Set while the cluster answers; models are placed only then."""

    async def keep(self, looked: Callable[[], None]) -> None:
        """Look every `EVERY_S`, and call `looked` after each look that the cluster has answered.
        Never returns.

        Raises `StaleEpoch` once another controller has begun.
        """
        try:
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
        finally:
            await self._crew.stop()

    async def look(self) -> None:
        """Look at all machines once, and start missing servers. The work at a server that answers
        slowly goes on after the look. Raises `MachineAway` if the cluster does not answer, and
        `StaleEpoch` once a newer controller has begun.
        """
        there = {one.name: one for one in await self._machines.there()}
        await self._weigh(there.values())
        await self._check()
        devices, begun = list(self._devices.values()), list[str]()
        for one in devices:
            machine = there.get(one.machine)
            if await self._work(one.name, machine, partial(self._device, one, machine)):
                begun.append(one.name)
        await self._waits(begun)
        begun = []
        for machine in there.values():
            name = f"{ROUTER}{machine.name}"
            if await self._work(name, machine, partial(self._router, machine)):
                begun.append(name)
        await self._waits(begun)
        reach = frozenset(name for name in there if f"{ROUTER}{name}" in self._told)
        for one in devices:
            one.routers = reach

    def more(self) -> None:
        """Note that devices were added: wait for machines that have not been seen yet for `FIRST_S`
        from now on, and count the host memory of all machines again."""
        self._until = time.monotonic() + FIRST_S
        self._weighed.clear()

    async def _work(
        self,
        name: str,
        machine: MachineThere | None,
        work: Callable[[], Coroutine[Any, Any, None]],
    ) -> bool:
        """Begin `work` at the server `name` as a task; false if work of an earlier look still runs
        there.

        Earlier work is given up if the server's machine was lost, or has joined again, since it
        began.
        """
        life = "" if machine is None else machine.life
        if self._lives.get(name) != life:
            await self._crew.end(name)
        self._lives[name] = life
        if self._crew.has(name):
            return False
        self._crew.begin(name, work())
        return True

    async def _waits(self, names: Collection[str]) -> None:
        """Wait for the work at these servers, for `LOOK_S` seconds at most.

        Raises the first error of any work: `StaleEpoch` once another controller has begun.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await self._crew.ended(names)
        self._crew.check()

    async def meet(self, places: Mapping[str, Collection[str]]) -> None:
        """Give devices the models of `places` (by device), beside those that they serve already.
        Their servers are told at the next look.

        Raises `StaleEpoch` once a newer controller has begun.
        """
        for name, device in self._devices.items():
            device.tenants = frozenset(places.get(name, ())) | device.tenants
        await self._check()

        async def looks(device: ClusterDevice) -> None:
            with suppress(DeviceAway):
                await self._takes_over(device)

        await asyncio.gather(*map(looks, self._devices.values()))

    async def serving(self) -> dict[str, tuple[str, ...]]:
        """Return the devices on which each model of the file is served now.

        The host memory of the machines is read first. Raises `StaleEpoch` once a newer controller
        has begun.
        """
        await self._weigh(await self._known())
        found: dict[str, tuple[str, ...]] = {}
        devices = self._devices.values()
        for device, served in zip(
            devices, await asyncio.gather(*map(_served, devices)), strict=True
        ):
            for name in sorted(served or ()):
                found[name] = (*found.get(name, ()), device.name)
        return {name: at for name, at in found.items() if name in self._plan.file.named}

    # -- host memory --------------------------------------------------------------------

    @property
    def host_bytes(self) -> dict[str, int]:
        """Bytes of host memory of all machines that have told of it."""
        return {name: one.host_bytes for name, one in self._weighed.items()}

    async def _weigh(self, there: Iterable[MachineThere]) -> None:
        """Count the host memory of machines that tell of it, without the part that their devices
        take.
        """
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
        served = {name: device.tenants for name, device in self._devices.items()}
        asked = await asyncio.gather(*map(_served, weighed.values()))
        served |= {name: has or frozenset() for name, has in zip(weighed, asked, strict=True)}
        wanted = {name: one.tenants for name, one in weighed.items()}
        for place in refused_places(self.facts, served, wanted):
            self._devices[place.device].tenants -= {place.model}
            self._say(place.words)
        self._checked |= weighed.keys()

    # -- another plan -------------------------------------------------------------------

    async def would(self, plan: ServedCluster) -> None:
        """Ask the routers that are there, in a dry run, whether they can follow the changed file of
        `plan`. Raises `CommandFailed` if one cannot.
        """
        await asyncio.gather(*(self._router_would(one, plan) for one in await self._known()))

    async def has(
        self,
        plan: ServedCluster,
        tenants: Mapping[str, frozenset[str]],
        drain_s: float | None = None,
        limit_s: float = TELL_S,
    ) -> PlanTold:
        """Send all servers the changed file of `plan`, with the `tenants` of each device, and have
        them read their certificates again.

        Servers that do not answer within `limit_s` seconds get it once they answer. Running
        requests of tenants that stop have `drain_s` seconds, None for the servers' own time.
        """
        self._plan = plan
        self._version += 1
        self._told.clear()
        for name, device in self._devices.items():
            device.plan, device.tenants = plan, tenants[name]
        there = {one.name: one for one in await self._known()}
        told = PlanTold({}, {}, [])
        devices = [d for d in self._devices.values() if d.machine in there]
        self._telling = {one.name for one in devices}
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await asyncio.gather(
                        *map(self._router, there.values()),
                        *(self._hears(d, there[d.machine], drain_s, told) for d in devices),
                    )
        finally:
            self._telling = set()
        have_it = {name for name, machine in there.items() if self._router_has_order(machine)}
        late = {*there, *plan.machine_of.values()} - have_it
        told.late.extend(f"machine {name}" for name in sorted(late))
        known = {*told.parts, *told.refused}
        told.late.extend(f"device {name}" for name in self._devices if name not in known)
        return told

    async def _hears(
        self, device: ClusterDevice, machine: MachineThere, drain_s: float | None, told: PlanTold
    ) -> None:
        """Give a device's agent its order, let the running server apply the present file, and note
        the server's answer in `told`."""
        if await self._start(device.name, machine, device.order(machine.address)):
            with suppress(DeviceAway):
                try:
                    await device.calls.tenants()  # which fails in seconds if the server is away
                    told.parts[device.name] = await device.obeys(drain_s)
                    self._obeyed[device.name] = machine.life, self._version
                except DeviceRefused as error:
                    told.refused[device.name] = error

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

    # -- devices ------------------------------------------------------------------------

    async def _device(self, device: ClusterDevice, machine: MachineThere | None) -> None:
        if machine is None:
            await self._missing(device)
            return
        self._silent.pop(device.name, None)
        if device.name in self._telling:
            return
        if device.standing is DeviceStanding.LOST:
            self._say(f"device {device.name!r}: machine {machine.name!r} is back")
            device.standing = DeviceStanding.COMES
        if device.standing is DeviceStanding.COMES:
            await self._meet(device)
        await self._obeys(device, machine)
        words = f"device {device.name!r} on {device.machine}"
        self._refuses(device.name, words, device.calls.cannot)
        if (url := device.calls.url) and self._urls.get(device.name) != url:
            self._urls[device.name] = url
            self._say(f"device {device.name!r} serves at {url}")
        if self._plan.file.common.weights.ahead and device.standing is DeviceStanding.THERE:
            await self._weights.bring(device.name, self._plan.stored.values())

    async def _missing(self, device: ClusterDevice) -> None:
        """Note a device whose machine is missing as lost, unless its server's address still
        answers, or has been silent for a short time only.
        """
        waits = device.name not in self._met and time.monotonic() < self._until
        if waits or device.standing is DeviceStanding.LOST:
            return
        device.standing, begun = DeviceStanding.COMES, time.monotonic()
        since = self._silent.setdefault(device.name, begun)
        if (answers := await _answers(device.calls.url)) is True:
            del self._silent[device.name]
            return
        patience_s = address_s(self._plan.file.common.http.silent_s)
        if answers is None and time.monotonic() + REACHED_S <= since + patience_s:
            return  # there is time for another try
        del self._silent[device.name]
        device.standing = DeviceStanding.LOST
        self._say(f"device {device.name!r} is lost: its models go elsewhere")

    async def _meet(self, device: ClusterDevice) -> None:
        """Take over the tenants that the device's server has, and let the server serve all tenants
        that the device shall have.
        """
        with suppress(DeviceAway):
            if (has := await self._takes_over(device)) is None:
                return
            try:
                if device.tenants != has:
                    await device.serves(device.tenants)
            except DeviceRefused as error:
                names = ", ".join(sorted(device.tenants))
                self._say(f"device {device.name!r} refuses {names}: {error}")
            self._met.add(device.name)
            device.standing = DeviceStanding.THERE

    def _refuses(self, name: str, words: str, why: str) -> None:
        """Print the line `why` with which the server `name` refuses to start, unless this line was
        printed last; `why` is empty for a server that has answered.
        """
        if why != self._cannot.get(name, ""):
            self._cannot[name] = why
            if why:
                self._say(f"{words} does not start: {why}")

    async def _takes_over(self, device: ClusterDevice) -> frozenset[str] | None:
        """Ask the device's server for its tenants, and return them; None if the server refuses to
        tell. A device that has not answered this controller before keeps those that the file has.

        Raises `DeviceAway` if it does not answer, and `StaleEpoch` once a newer controller has
        begun.
        """
        try:
            told = await device.calls.tenants()
        except DeviceRefused as error:
            log.warning("device %r refuses to tell its tenants: %s", device.name, error)
            return None
        has = frozenset(one.name for one in told.tenants)
        if device.name not in self._met:
            device.tenants |= has & set(self._plan.models)
        return has

    async def _obeys(self, device: ClusterDevice, machine: MachineThere) -> None:
        """Send the present file to a device, unless it has it: first the agent gets the order for
        the next server, then the running server applies the file.
        """
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
        """Send the order to the agent of the server `name`, of a device or a router, unless the
        agent has it. True if the agent has the order now.
        """
        if self._ordered.get(name) != (machine.life, order):
            with suppress(MachineAway):
                await self._machines.start(name, machine.name, order)
                self._ordered[name] = machine.life, order
        return self._ordered.get(name) == (machine.life, order)

    # -- routers ------------------------------------------------------------------------

    async def _router(self, machine: MachineThere) -> None:
        """Start the machine's router, and send it its order, which has the doors of all devices.

        A router that the agent starts later begins with that order in any case.
        """
        name, doors = f"{ROUTER}{machine.name}", self._doors
        order = self._plan.router_order(name, machine, doors)
        begun = await self._start(name, machine, self._plan.router_agent(order))
        if not begun or self._router_has_order(machine):
            return
        with suppress(MachineAway, msgspec.DecodeError):
            try:
                answer = await self._machines.call(name, DeviceCall("PUT", ORDER, order))
            except ServerCannot as error:
                self._refuses(name, f"the router of machine {machine.name!r}", str(error))
                return
            if answer.status >= 400:
                self._say(f"machine {machine.name!r}: {message_of(answer.body)}")
                self._told[name] = machine.life, order
                return
            told = msgspec.json.decode(answer.body, type=RouterTold)
            self._cannot.pop(name, None)
            if told.doors == doors:
                self._told[name] = machine.life, order
            if told.words:
                self._say(f"machine {machine.name!r}: {told.words}")
            if self._urls.get(name) != told.url:
                self._urls[name] = told.url
                self._say(f"machine {machine.name!r} serves all models at {told.url}")

    def _router_has_order(self, machine: MachineThere) -> bool:
        """True if the order that the machine's router was told last is the present one. A call that
        began before a change may have told the router an older order.
        """
        name = f"{ROUTER}{machine.name}"
        order = self._plan.router_order(name, machine, self._doors)
        return self._told.get(name) == (machine.life, order)

    @property
    def _doors(self) -> dict[str, str]:
        return {one.name: one.calls.url for one in self._devices.values()}


async def _served(device: ClusterDevice) -> frozenset[str] | None:
    """Tenants of the device's server; None if it does not answer or refuses. Raises `StaleEpoch`
    once a newer controller has begun."""
    with suppress(DeviceAway, DeviceRefused):
        return frozenset(one.name for one in (await device.calls.tenants()).tenants)
    return None


async def _answers(url: str) -> bool | None:
    """True if the address can be connected; False if there is no such address, or its machine
    refuses; None if nothing answers within `REACHED_S`.
    """
    parts = urlsplit(url)
    if parts.hostname is None:
        return False
    try:
        async with asyncio.timeout(REACHED_S):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port)
            writer.close()
            return True
    except (ConnectionRefusedError, socket.gaierror):
        return False
    except (OSError, TimeoutError):
        return None
