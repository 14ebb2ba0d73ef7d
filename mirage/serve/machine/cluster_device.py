"""One device of a cluster, asked and directed by calls to its machine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from aiohttp import web

from mirage.machines.seam import DeviceCall, MachineAway, Machines
from mirage.serve.admin.forms import TenantsTold
from mirage.serve.apply.source import Written
from mirage.serve.machine.calls import ANSWER_S, DeviceAway, DeviceCalls
from mirage.serve.machine.cluster import ServedCluster
from mirage.serve.machine.served_device import DeviceStanding, DirectedDevice, text_of


class ClusterCalls(DeviceCalls):
    """Requests to a device's server on its machine. Methods raise `StaleEpoch` too."""

    def __init__(self, device: str, machines: Machines) -> None:
        super().__init__(device, None)
        self._machines, self.url = machines, ""
        """Address of the server at its last answer; empty before the first."""

    async def tenants(self) -> TenantsTold:
        """All tenants of the device, with facts about its server."""
        told = await super().tenants()
        self.url = told.server.url
        return told

    async def answer(
        self, method: str, path: str, body: bytes = b"", timeout_s: float = ANSWER_S
    ) -> web.Response:
        """Answer of the server as it came, of any status, to a request with this `body`. Raises
        `StaleEpoch`, and `DeviceAway`, also after `timeout_s` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._machines.call(self.device, DeviceCall(method, path, body))
        except (TimeoutError, MachineAway) as error:
            raise DeviceAway(f"the server of device {self.device!r} is away: {error}") from None
        return web.Response(body=answer.body, status=answer.status)


class ClusterDevice(DirectedDevice):
    """Device of a cluster. Its server starts by `order`."""

    calls: ClusterCalls

    def __init__(
        self, name: str, machines: Machines, plan: ServedCluster, tenants: Iterable[str]
    ) -> None:
        super().__init__(name, ClusterCalls(name, machines), tenants)
        self.plan, self.machine = plan, plan.machine_of[name]
        self.standing = DeviceStanding.COMES

    def written(self, tenants: frozenset[str]) -> Written:
        """Configuration for the device's server with these tenants."""
        return self.plan.written(self.name, tenants)

    def begins(self, wanted: Written) -> None:
        """Do nothing: the agent gets the configuration with the next `order`."""

    def stored(self, tenant: str) -> str | None:
        """Name of the tenant's model in the store of weights; None for a folder or a hub model."""
        return self.plan.stored.get(tenant)

    def lacks_weights(self, tenant: str) -> bool:
        """True if the model is in stores of weights: its machine tells when they are brought."""
        return self.stored(tenant) is not None

    async def obeys(self) -> None:
        """Have its server hold the keys of the plan, and serve by its file what it has.

        Raises `DeviceAway`, `DeviceRefused` and `StaleEpoch`.
        """
        await self.calls.holds(self.plan.options.keys)
        wanted = self.written(self.tenants)
        await self.calls.serves(text_of(wanted), wanted)

    async def would(self, plan: ServedCluster) -> None:
        """Ask its server whether it can have another plan. Raises as `obeys`."""
        wanted = plan.written(self.name, self.tenants)
        await self.calls.serves(text_of(wanted), wanted, dry_run=True)

    def order(self, address: str) -> bytes:
        """Order to start the device's server at `address`, with its present tenants."""
        return self.plan.order(self.name, address, self.written(self.tenants))
