"""Controller of a cluster: servers on all machines, and models of lost machines elsewhere."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from mirage.machines.seam import DeviceCall, MachineAway, Machines, MachineThere
from mirage.machines.spread import Spread, SpreadModel, on_the_way, spread
from mirage.machines.weights import MachineWeights

log = logging.getLogger(__name__)

EVERY_S = 1.0
REACHED_S = 1.0
"""Seconds to reach an address."""
FIRST_S = 60.0
"""Seconds for which a machine that was not seen yet is waited for."""
AGAIN_S = 30.0
"""Seconds after which what a device refused is tried again."""
WELL = frozenset({"ready", "sleeping", "waking"})
"""States in which a model serves, at once or when it is asked."""


class _Tenant(msgspec.Struct):
    name: str
    state: str
    running: int
    waiting: int


class _Server(msgspec.Struct):
    url: str


class _Told(msgspec.Struct):
    """Part of the answer of ``GET /tenants``."""

    server: _Server
    tenants: list[_Tenant]


class ClusterPlan(Protocol):
    """Plan of what is served: models, devices, and how a device is told."""

    @property
    def models(self) -> Sequence[SpreadModel]:
        """All models."""

    @property
    def machine_of(self) -> dict[str, str]:
        """Machine of each device."""

    def order(self, device: str, address: str, names: Sequence[str]) -> bytes:
        """Order for a server at an address that begins with these models."""

    @property
    def stored(self) -> dict[str, str]:
        """Names in the stores of weights, of the models that have their weights there."""

    @property
    def brings_ahead(self) -> bool:
        """True if each machine gets all weights before one of the models goes there."""

    def config(self, device: str, names: Sequence[str]) -> DeviceCall:
        """Call by which a server has these models."""


class ClusterController:
    """Controller of one cluster. `keep` has to run."""

    def __init__(self, machines: Machines, plan: ClusterPlan, say: Callable[[str], None]) -> None:
        self._machines, self._plan, self._say = machines, plan, say
        self._weights = MachineWeights(machines, say)
        self._wanted: Spread = {}
        self._pressure: dict[str, float] = {}
        self._ordered: dict[str, tuple[str, bytes]] = {}
        """Life of the machine and order, of each device that was started."""
        self._refused: dict[str, tuple[tuple[str, ...], float]] = {}
        """Models that a device refused, and the time until which they are not tried again."""
        self._awaited, self._until = set(plan.machine_of), time.monotonic() + FIRST_S
        """Devices whose machines were not seen yet, and until when they are waited for."""
        self._urls: dict[str, str] = {}
        """Addresses of servers, as they were told last."""

    async def keep(self) -> None:
        """Never returns. Raises `StaleEpoch` once another controller has begun."""
        while True:
            try:
                await self.step()
            except MachineAway as error:  # nothing is placed until the cluster answers
                log.warning("%s", error)
            await asyncio.sleep(EVERY_S)

    async def step(self) -> None:
        """Look once, and do what follows. Raises `MachineAway` and `StaleEpoch`."""
        machines = {one.name: one for one in await self._machines.there()}
        devices = self._plan.machine_of
        near = [device for device, machine in devices.items() if machine in machines]
        told = dict(zip(near, await asyncio.gather(*map(self._told, near)), strict=True))
        away = [device for device in devices if device not in near]
        serve = await asyncio.gather(*map(self._is_reached, away))
        self._awaited -= set(near)
        if time.monotonic() > self._until:
            self._awaited.clear()
        there = {
            *near,
            *self._awaited,
            *(device for device, does in zip(away, serve, strict=True) if does),
        }
        self._place([device for device in devices if device in there])
        for device in near:
            await self._start(device, machines[devices[device]])
        known = {device: one for device, one in told.items() if one is not None}
        has = {
            device: {tenant.name: tenant.state in WELL for tenant in one.tenants}
            for device, one in known.items()
        }
        for device, names in on_the_way(self._wanted, has).items():
            if names and set(names) != has[device].keys():
                await self._change(device, names)
        if self._plan.brings_ahead:
            for device in known:
                await self._weights.bring(device, self._plan.stored.values())

    async def _told(self, device: str) -> _Told | None:
        try:
            answer = await self._machines.call(device, DeviceCall("GET", "/tenants"))
            told = msgspec.json.decode(answer.body, type=_Told)
        except (MachineAway, msgspec.DecodeError):
            return None
        if self._urls.get(device) != told.server.url:
            self._say(f"device {device!r} serves at {told.server.url}")
        self._urls[device] = told.server.url
        for tenant in told.tenants:
            self._pressure[tenant.name] = float(tenant.running + tenant.waiting)
        return told

    async def _is_reached(self, device: str) -> bool:
        """True if a server answers although its machine is lost to the cluster."""
        if not (url := self._urls.get(device)):
            return False
        parts = urlsplit(url)
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(REACHED_S):
                _, writer = await asyncio.open_connection(parts.hostname, parts.port)
                writer.close()
                return True
        return False

    def _place(self, there: Sequence[str]) -> None:
        models = [
            one._replace(pressure=self._pressure.get(one.name, 0.0)) for one in self._plan.models
        ]
        before, self._wanted = self._wanted, spread(models, there, self._wanted)
        for device in (*self._wanted, *(one for one in before if one not in self._wanted)):
            if device not in self._wanted:
                self._say(f"device {device!r} is lost: its models go elsewhere")
            elif device not in before:
                self._say(f"device {device!r} has {', '.join(self._wanted[device]) or 'nothing'}")
            elif more := [one for one in self._wanted[device] if one not in before[device]]:
                self._say(f"device {device!r} gets {', '.join(more)}")
            elif less := [one for one in before[device] if one not in self._wanted[device]]:
                self._say(f"device {device!r} gives up {', '.join(less)} once others serve it")

    async def _start(self, device: str, machine: MachineThere) -> None:
        names = self._wanted.get(device, ())
        ordered = machine.life, self._plan.order(device, machine.address, names)
        if names and self._ordered.get(device) != ordered:
            with suppress(MachineAway):
                await self._machines.start(device, machine.name, ordered[1])
                self._ordered[device] = ordered

    async def _change(self, device: str, names: tuple[str, ...]) -> None:
        tried, until = self._refused.get(device, ((), 0.0))
        if tried == names and time.monotonic() < until:
            return
        stored = self._plan.stored
        if not await self._weights.are_there(device, [stored[n] for n in names if n in stored]):
            return
        with suppress(MachineAway):
            answer = await self._machines.call(device, self._plan.config(device, names))
            if answer.status >= 400:
                self._refused[device] = names, time.monotonic() + AGAIN_S
                why = answer.body.decode(errors="replace")[:300]
                self._say(f"device {device!r} refuses {', '.join(names)}: {why}")
