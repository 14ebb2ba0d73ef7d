"""Connections of a router, its lines: to the only supervisor, or also to the servers of several
devices.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mirage.control.routes.replica import Replica
from mirage.control.routes.routing import RequestFate, Routes
from mirage.serve.access.forms import AccessTable
from mirage.serve.routed.replicas import replica_of
from mirage.serve.routed.tenants import RoutedTenant
from mirage.serve.router.link import AGAIN_S, SupervisorLink
from mirage.serve.router.peer_silence import PeerSilence
from mirage.serve.router.reach import DoorAway, DoorReach, Reach
from mirage.serve.router.ticket import RouterTicket
from mirage.serve.tasks import together
from mirage.wire import Broken

DRAIN_LOOK_S = 0.05


class _OtherDuties:
    """Receiver of the orders of one of several devices' servers. It ignores orders about keys,
    limits, doors and the certificate, which come from the process above the device servers.
    """

    def __init__(self, link: SupervisorLink) -> None:
        self._link = link

    def holds(self, keys: AccessTable) -> None:
        """Do nothing."""

    def opens(self, doors: dict[str, str]) -> None:
        """Do nothing."""

    def limits(self, http: dict[str, Any]) -> None:
        """Do nothing."""

    def renews(self) -> None:
        """Do nothing."""

    async def drain(self) -> None:
        """Send this device no new requests; return when the last one that runs there has ended."""
        self._link.drains = True
        while any(one.in_flight for one in self._link.tenants):
            await asyncio.sleep(DRAIN_LOOK_S)


class RoutedDevices:
    """Tenants of all devices, as their servers tell them over the lines. Each model has one tenant,
    or replicas on several devices.
    """

    def __init__(self, first: SupervisorLink, silence: PeerSilence) -> None:
        """`first` is the line to the supervisor, which has answered this router's hello. `silence`
        breaks connections with machines that are silent for too long.
        """
        self.first = first
        self.routes = Routes()
        self.rerouted: Counter[tuple[str, RequestFate]] = Counter()
        """Number of requests that were sent to another replica, by tenant and cause."""
        devices, beyond = first.welcome.devices, first.welcome.beyond
        self._doors = (
            {}
            if beyond is None
            else {name: DoorReach(beyond.token, beyond.machine, silence) for name in devices}
        )
        self.several = {
            name: SupervisorLink(
                Path(path),
                device=name,
                quarantine=self.routes.quarantine,
                reach=self._doors.get(name),
                guest="" if beyond is None else beyond.machine,
            )
            for name, path in devices.items()
        }
        """Lines by the names of devices; empty if there is only one device."""
        self.links = self.several or {"": first}
        """Lines to the servers that have tenants, by device; with only one its name is empty."""

    async def keep(self) -> None:
        """Keep the lines to several devices, and connect again to each that is away. Never returns,
        unless there is only one device: then immediately.
        """
        await together(_kept(link) for link in self.several.values())

    def opens(self, doors: dict[str, str]) -> None:
        """Replace the URLs of doors, at which devices of all machines are reached; `doors` maps a
        device's name to its URL. A device that is missing there cannot be reached.
        """
        for name, reach in self._doors.items():
            reach.moves(doors.get(name, ""))

    def reach(self, tenant: RoutedTenant) -> Reach:
        """Way to the sockets of the tenant's device."""
        return self.links[tenant.device].reach

    # -- tenants ------------------------------------------------------------------------

    def __iter__(self) -> Iterator[RoutedTenant]:
        return (one for link in self.links.values() for one in link.tenants)

    def __contains__(self, name: str) -> bool:
        return any(name in link.tenants for link in self.links.values())

    def __getitem__(self, name: str) -> RoutedTenant:
        """First tenant or replica of that name. Raises `StopIteration` if there is none."""
        return next(one for one in self if one.name == name)

    @property
    def served(self) -> list[RoutedTenant]:
        """Tenants that were not removed, on devices that take new requests; each replica is one."""
        links = (link for link in self.links.values() if not link.drains)
        return [one for link in links for one in link.tenants.served]

    @property
    def models(self) -> list[str]:
        """All names that requests may use, each once: of models, aliases and adapters."""
        return list(dict.fromkeys(name for one in self.served for name in one.row.names))

    def serving(self, model: str) -> list[RoutedTenant]:
        """Tenants that have `model` among their names, those that can serve immediately first."""
        found = [
            one
            for link in self.links.values()
            if not link.drains and (one := link.tenants.serving(model)) is not None
        ]
        return sorted(found, key=_sleepiness) if len(found) > 1 else found

    def replica(self, one: RoutedTenant, now: float) -> Replica:
        """A tenant in the form that routes choose from; `now` is monotonic seconds."""
        return replica_of(one, now, heard=self.links[one.device].is_up)

    def away(self, model: str) -> list[str]:
        """Devices that may have `model` although none serves it now: their servers start or are
        away, or serve it but are about to end.
        """
        return [
            name
            for name, link in self.several.items()
            if not link.has_table.is_set()
            or (link.drains and link.tenants.serving(model) is not None)
        ]

    def ask(self, tenant: RoutedTenant) -> RouterTicket:
        """Ticket for a new request to a tenant. Raises `NotInTime` if it is refused now."""
        return self.links[tenant.device].requests.ask(tenant)

    # -- what is told -------------------------------------------------------------------

    def health(self, *, reasons: bool) -> dict[str, Any]:
        """Body of ``/health``. `reasons` adds lines of logs, which not everybody may see."""
        if not self.several:
            return _health(self.first, reasons=reasons)
        devices = {name: _health(link, reasons=reasons) for name, link in self.several.items()}
        served = self.served
        well = {one.name for one in served if one.row.well}
        status = "degraded" if well else "down"
        if all(one["status"] == "ok" for one in devices.values()):
            status = "ok"
        tenants: dict[str, dict[str, str]] = {}
        for one in served:
            tenants.setdefault(one.name, {})[one.device] = one.row.state.value
        return {"status": status, "tenants": tenants, "devices": devices}


def _sleepiness(one: RoutedTenant) -> tuple[bool, bool]:
    return not one.row.at_once, not one.row.well


def _health(link: SupervisorLink, *, reasons: bool) -> dict[str, Any]:
    if not link.has_table.is_set():
        return {"status": "down", "tenants": {}, "supervisor": "away"}
    body = link.tenants.table.health(reasons=reasons)
    return body if link.is_up else body | {"supervisor": "away"}


async def _kept(link: SupervisorLink) -> None:
    """Keep the line to the server of one of several devices. Never returns."""
    while True:
        try:
            await link.connect()
            await link.keep_once(_OtherDuties(link))
        except DoorAway:
            link.gone()
        except (OSError, Broken):
            pass
        await asyncio.sleep(AGAIN_S)
