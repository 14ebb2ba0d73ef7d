"""Devices as they are seen: answers of their servers, their tenants, and ended requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from mirage.control.placement.facts import PlacementFacts
from mirage.control.placement.placed import DevicePlacement, Stand
from mirage.control.roster.states import BROKEN, GONE, LifeState
from mirage.serve.admin.forms import TenantStatus
from mirage.serve.machine.calls import DeviceAway, DeviceRefused
from mirage.serve.machine.load import LoadHistory, SeenRequest
from mirage.serve.machine.section import PlacementSection
from mirage.serve.machine.served_device import DeviceStanding, DirectedDevice
from mirage.simulate.fleet.load_log import WindowRows

ASLEEP = frozenset({*GONE, *BROKEN, LifeState.SLEEPING})


class WatchedDevice:
    """A device that is watched. Call `look` before anything else. Times are by `time.monotonic`."""

    def __init__(self, served: DirectedDevice, now: float) -> None:
        self.served, self._answered, self._now = served, now, now
        self._pid, self._since = 0, 0
        self.tenants: dict[str, TenantStatus] = {}
        """Status of each tenant at the last answer."""
        self._routers = frozenset[str]()
        """Machines whose routers were connected at the last answer."""
        self._own_router = False
        """True if the device's own router was connected at the last answer."""

    @property
    def away_s(self) -> float:
        """Seconds from the last answer to the last look; 0 while the device's server is awaited."""
        return self._now - self._answered

    def waited(self, now: float) -> None:
        """Count the device's silence from now on, because no look was possible before."""
        self._answered = self._now = now

    @property
    def is_reached(self) -> bool:
        """True if its server answered the last look, and all routers that pass requests to it were
        connected: its own one, and those of other machines."""
        there = self.served.standing is DeviceStanding.THERE and not self.away_s
        return there and self._own_router and self.served.routers <= self._routers

    def is_lost(self, away_s: float) -> bool:
        """True if its machine was lost, or its server was silent for `away_s` seconds or more."""
        return self.served.standing is DeviceStanding.LOST or self.away_s >= away_s

    async def look(self, now: float) -> list[SeenRequest]:
        """Ask the device's server again; returns the clients' requests that have ended since the
        last answer.
        """
        self._now = now
        if self.served.standing is not DeviceStanding.THERE:
            self._answered, self._routers, self._own_router = now, frozenset(), False
            return []
        ended: list[SeenRequest] = []
        try:
            told = await self.served.calls.tenants()
            if told.server.pid != self._pid:  # another server counts anew
                self._pid, self._since = told.server.pid, 0
            self.tenants = {one.name: one for one in told.tenants}
            self._routers = frozenset(told.server.routers)
            self._own_router = told.server.own_router
            while await self._read(ended):
                pass
        except (DeviceAway, DeviceRefused):
            return ended
        self._answered = now
        return ended

    async def _read(self, ended: list[SeenRequest]) -> bool:
        """Read a page of ended requests and append them; True if another page follows. Raises
        `DeviceAway` if the device's server does not answer, and `DeviceRefused` if it answers with
        an error."""
        page = await self.served.calls.past(self._since)
        self._since = page.last
        ended += [SeenRequest(r.t, r.tenant, r.prompt, r.output) for r in page.requests]
        return page.next_since is not None


class SeenLoad(NamedTuple):
    """Facts with the load of several windows, and the requests in those windows."""

    facts: PlacementFacts
    windows: tuple[WindowRows, ...]


class MachineWatch:
    """All devices under watch, and the history of their requests. Devices may be added."""

    def __init__(self, devices: Mapping[str, DirectedDevice], section: PlacementSection) -> None:
        self._away_s, self._served = section.away_s, devices
        self._devices: dict[str, WatchedDevice] = {}
        self._adds()
        self._history = LoadHistory(section.window_s, section.windows, time.time())

    def ruled(self, section: PlacementSection) -> None:
        """Use the times of `section` from now on."""
        self._away_s = section.away_s
        self._history.ruled(section.window_s, section.windows, time.time())

    def _adds(self) -> None:
        """Watch the devices that were added."""
        for name in self._served.keys() - self._devices.keys():
            self._devices[name] = WatchedDevice(self._served[name], time.monotonic())

    async def look(self) -> None:
        """Ask the servers of all devices again, and add clients' requests that have ended since
        the last answers to the history."""
        self._adds()
        now = time.monotonic()
        for ended in await asyncio.gather(*(one.look(now) for one in self._devices.values())):
            self._history.add(ended)

    def waited(self) -> None:
        """Count the silence of all devices from now on, because no look was possible before."""
        for one in self._devices.values():
            one.waited(time.monotonic())

    @property
    def lost(self) -> frozenset[str]:
        """Devices whose machines were lost, or whose servers were silent for so long that their
        models go elsewhere.
        """
        return frozenset(n for n, one in self._devices.items() if one.is_lost(self._away_s))

    @property
    def is_whole(self) -> bool:
        """True if all devices have answered the last look, but for those that are lost, and those
        whose machine or server is awaited."""
        return all(not one.away_s for name, one in self._devices.items() if name not in self.lost)

    def serves(self, model: str, device: str) -> bool:
        """True if the device answered the last look, routers reach it, and `model` is ready
        there."""
        one = self._devices[device]
        status = one.tenants.get(model)
        return one.is_reached and status is not None and status.state == LifeState.READY

    @property
    def present(self) -> DevicePlacement:
        """Present placement, without lost devices."""
        placement = DevicePlacement()
        for name, one in self._devices.items():
            for model in one.served.tenants if name not in self.lost else ():
                placement = placement.put(model, name, _stand(one.tenants.get(model)))
        return placement

    def load(self, given: PlacementFacts) -> SeenLoad:
        """The facts `given`, with only the devices that are not lost, and with the load of all
        models.

        Models of lost devices without any request get some load, because their clients cannot be
        counted now.
        """
        open_now: dict[str, int] = {}
        for name, one in self._devices.items():
            for model, status in one.tenants.items() if name not in self.lost else ():
                open_now[model] = open_now.get(model, 0) + status.running + status.waiting
        gone = {m for name in self.lost for m in self._devices[name].served.tenants}
        windows = self._history.windows(time.time(), open_now, gone)
        devices = tuple(one for one in given.devices if one.name not in self.lost)
        loads = tuple(window.load for window in windows)
        return SeenLoad(replace(given, devices=devices, windows=loads), windows)


def _stand(status: TenantStatus | None) -> Stand:
    return Stand.ASLEEP if status is not None and status.state in ASLEEP else Stand.AWAKE
