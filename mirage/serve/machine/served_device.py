"""One device as the machine directs it: the tenants that its server has, and shall have."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from mirage.machines.keeper import DeviceKeeper
from mirage.serve.apply.recorded import config_record
from mirage.serve.apply.source import written
from mirage.serve.machine.calls import DeviceAway, DeviceCalls, DeviceRefused
from mirage.serve.machine.declared import DeclaredMachine
from mirage.serve.machine.order import DeviceOrder
from mirage.serve.stored import is_here


class ServedDevice:
    """A device with its keeper. What it shall serve outlives its server."""

    def __init__(
        self,
        keeper: DeviceKeeper,
        order: DeviceOrder,
        calls: DeviceCalls,
        declared: DeclaredMachine,
        tenants: Iterable[str],
    ) -> None:
        self._keeper, self._order = keeper, order
        self.calls, self._declared = calls, declared
        self.tenants = frozenset(tenants)
        """Tenants that its server shall have, be it away or not."""

    @property
    def name(self) -> str:
        return self._keeper.name

    def stored(self, tenant: str) -> str | None:
        """Name of a tenant's model in the store of weights; None for a folder or a hub's."""
        return self._declared.file.common.tenant(tenant).stored

    def lacks_weights(self, tenant: str) -> bool:
        """True if the store of its machine lacks a tenant's model."""
        model = self.stored(tenant)
        return model is not None and not is_here(self._declared.file.common.weights, model)

    async def serves(self, tenants: frozenset[str], drain_s: float | None = None) -> None:
        """Have its server serve these from now on; requests of others have `drain_s` to end.

        Raises `DeviceRefused`, and then all is as before; `DeviceAway`, and then the next server
        begins with these.
        """
        device = self._declared.device(self.name, tenants)
        text = msgspec.json.encode(device.written.raw, enc_hook=str).decode()
        wanted = written(text, device.written.path, device.written.folder)
        before = self._order, self.tenants
        record = config_record(device.source, wanted)
        self._begins(msgspec.structs.replace(self._order, config=record), tenants)
        try:
            await self.calls.serves(text, wanted, drain_s)
        except DeviceRefused:
            self._begins(*before)
            raise

    def _begins(self, order: DeviceOrder, tenants: frozenset[str]) -> None:
        """Have the next server begin by this order, with these tenants."""
        self._order, self.tenants = order, tenants
        self._keeper.order = msgspec.json.encode(order)

    async def leaves_out(self, tenant: str) -> str:
        """Have it without a tenant that never came; how that went, in words."""
        try:
            await self.serves(self.tenants - {tenant})
        except DeviceAway:
            return f"{self.name} comes back without {tenant}"
        except DeviceRefused as error:
            return f"{self.name} still has {tenant}: {error}"
        return f"{self.name} is as it was"
