"""One device of a cluster, asked and directed by calls to its machine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from aiohttp import web

from mirage.machines.seam import DeviceCall, MachineAway, Machines, ServerCannot
from mirage.serve.admin.forms import TenantsTold
from mirage.serve.apply.forms import ApplyTold
from mirage.serve.apply.source import Written
from mirage.serve.machine.calls import ANSWER_S, DeviceAway, DeviceCalls
from mirage.serve.machine.cluster import ServedCluster
from mirage.serve.machine.served_device import DeviceStanding, DirectedDevice, text_of


class ClusterCalls(DeviceCalls):
    """Requests to a device's server on its machine.

    All methods also raise `StaleEpoch`, once a newer controller has given orders.
    """

    def __init__(self, device: str, machines: Machines) -> None:
        super().__init__(device, None)
        self._machines, self.url = machines, ""
        """Address of the server at its last answer; empty before the first."""
        self.cannot = ""
        """Line with which the server refuses to start; empty once it has answered."""

    async def tenants(self) -> TenantsTold:
        """All tenants of the device, with facts about its server."""
        told = await super().tenants()
        self.url = told.server.url
        return told

    async def answer(
        self, method: str, path: str, body: bytes = b"", timeout_s: float = ANSWER_S
    ) -> web.Response:
        """Answer of the server as it came, of any status, to a request with this `body`. Raises
        `StaleEpoch` once a newer controller has given orders, and `DeviceAway` if the server cannot
        be reached or does not answer within `timeout_s` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._machines.call(self.device, DeviceCall(method, path, body))
        except (TimeoutError, MachineAway) as error:
            if isinstance(error, ServerCannot):
                self.cannot = str(error)
            raise DeviceAway(f"the server of device {self.device!r} is away: {error}") from None
        self.cannot = ""
        return web.Response(body=answer.body, status=answer.status)


class ClusterDevice(DirectedDevice):
    """Device of a cluster. An agent on its machine starts its server by `order`."""

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
        """True if the model comes from a store of weights: this process cannot see what the store
        of the device's machine has.
        """
        return self.stored(tenant) is not None

    @property
    def label(self) -> str:
        """Name of the device with its machine, for sentences."""
        return f"{self.name} on {self.machine}"

    def differs(self, tenants: frozenset[str], plan: ServedCluster) -> bool:
        """True if the file of `plan` with these tenants gives this device another configuration."""
        now, then = self.written(self.tenants), plan.written(self.name, tenants)
        return (repr(now.raw), now.folder) != (repr(then.raw), then.folder)

    async def obeys(self, drain_s: float | None = None) -> ApplyTold:
        """Send the device's server the keys of clients and the cluster's own, and the configuration
        with the tenants that it shall have. Running requests of tenants that stop have `drain_s`
        seconds, None for the server's own time.

        Raises `DeviceAway` if the server does not answer, `DeviceRefused` if it refuses, and
        `StaleEpoch` once a newer controller has begun.
        """
        await self.calls.holds(self.plan.options.keys)
        async with self._changing:
            wanted = self.written(self.tenants)
            return await self.calls.serves(text_of(wanted), wanted, drain_s)

    async def would(
        self, tenants: frozenset[str], plan: ServedCluster, drain_s: float | None, *, facts: bool
    ) -> ApplyTold:
        """Dry run of the file of `plan` with these tenants; with `facts` the answer has the facts
        for a simulation.

        Raises `DeviceAway` if the server does not answer, and `DeviceRefused` if it refuses.
        """
        await self.calls.tenants()  # which fails in seconds if the server is away
        wanted = plan.written(self.name, tenants)
        return await self.calls.serves(text_of(wanted), wanted, drain_s, dry_run=True, facts=facts)

    def order(self, address: str) -> bytes:
        """Order, as JSON for the agent, to start the device's server at `address` with its present
        tenants."""
        return self.plan.order(self.name, address, self.written(self.tenants))
