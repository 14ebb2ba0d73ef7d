"""One device as the process above the device servers directs it: the tenants that its server shall
have.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable
from enum import Enum, auto

import msgspec

from mirage.machines.keeper import DeviceKeeper
from mirage.serve.apply.forms import ApplyTold
from mirage.serve.apply.recorded import config_record
from mirage.serve.apply.source import Written, written
from mirage.serve.machine.calls import DeviceAway, DeviceCalls, DeviceRefused
from mirage.serve.machine.declared import DeclaredMachine
from mirage.serve.machine.order import DeviceOrder
from mirage.serve.models.stored import is_here


class DeviceStanding(Enum):
    """State of a device, by the state of its machine."""

    COMES = auto()
    """The machine is awaited, or the device's server starts."""
    THERE = auto()
    LOST = auto()
    """The machine was lost."""


class DirectedDevice(ABC):
    """Device whose server is told which tenants to serve. The tenants are remembered while the
    server is away.
    """

    standing = DeviceStanding.THERE

    def __init__(self, name: str, calls: DeviceCalls, tenants: Iterable[str]) -> None:
        self.name, self.calls = name, calls
        self.tenants = frozenset(tenants)
        """Tenants that the server shall have, also while it is away."""
        self.routers = frozenset[str]()
        """Machines whose routers have to be connected to the device before it counts as serving."""
        self._changing = asyncio.Lock()

    @abstractmethod
    def stored(self, tenant: str) -> str | None:
        """Name of the tenant's model in the store of weights; None for a folder or a hub model."""

    @abstractmethod
    def lacks_weights(self, tenant: str) -> bool:
        """True if the machine's store may lack the tenant's model. It reads the disk."""

    @abstractmethod
    def written(self, tenants: frozenset[str]) -> Written:
        """Configuration for the device's server with these tenants."""

    @abstractmethod
    def begins(self, wanted: Written) -> None:
        """Set the configuration with which the server begins at its next start."""

    async def serves(self, tenants: frozenset[str], drain_s: float | None = None) -> ApplyTold:
        """Let the server serve these tenants from now on; requests of removed tenants have
        `drain_s` seconds to end, None for the server's own time.

        Raises `DeviceRefused`, with nothing changed, and `DeviceAway`: then the next server begins
        with these tenants.
        """
        told = self.written(tenants)
        text = text_of(told)
        wanted = written(text, told.path, told.folder)
        before, self.tenants = self.tenants, tenants
        self.begins(wanted)
        try:
            return await self.calls.serves(text, wanted, drain_s)
        except DeviceRefused:
            if self.tenants is tenants:  # otherwise a newer order has come meanwhile
                self.tenants = before
                self.begins(self.written(before))
            raise

    async def takes(self, tenant: str) -> None:
        """Let the server serve one more tenant; see `serves`. Changes of single tenants come one
        after the other.
        """
        async with self._changing:
            await self.serves(self.tenants | {tenant})

    async def drops(self, tenant: str, drain_s: float | None = None) -> None:
        """Let the server serve all tenants but this one; see `takes`."""
        async with self._changing:
            await self.serves(self.tenants - {tenant}, drain_s)

    async def leaves_out(self, tenant: str) -> str:
        """Remove a tenant whose start failed; return words about the result."""
        try:
            await self.drops(tenant)
        except DeviceAway:
            return f"{self.name} comes back without {tenant}"
        except DeviceRefused as error:
            return f"{self.name} still has {tenant}: {error}"
        return f"{self.name} is as it was"


class ServedDevice(DirectedDevice):
    """Device of this machine, with the part that starts its server process anew if that ends
    (`DeviceKeeper`)."""

    def __init__(
        self,
        keeper: DeviceKeeper,
        order: DeviceOrder,
        calls: DeviceCalls,
        declared: DeclaredMachine,
        tenants: Iterable[str],
    ) -> None:
        super().__init__(keeper.name, calls, tenants)
        self._keeper, self._order, self.declared = keeper, order, declared

    def written(self, tenants: frozenset[str]) -> Written:
        """Configuration for the device's server with these tenants."""
        return self.declared.device(self.name, tenants).written

    def begins(self, wanted: Written) -> None:
        """Let the next start of the server begin with this configuration: put it into the order
        with which `DeviceKeeper` starts the server."""
        source = self.declared.device(self.name, ()).source
        self._order = msgspec.structs.replace(self._order, config=config_record(source, wanted))
        self._keeper.order = msgspec.json.encode(self._order)

    def order_at(self, url: str) -> bytes:
        """Order, as JSON, by which the device's server starts, with the router's URL `url`."""
        self._order = msgspec.structs.replace(self._order, url=url)
        return msgspec.json.encode(self._order)

    def differs(self, tenants: frozenset[str], declared: DeclaredMachine) -> bool:
        """True if another file with these tenants gives this device another configuration."""
        now, then = self.written(self.tenants), declared.device(self.name, tenants).written
        return (repr(now.raw), now.folder) != (repr(then.raw), then.folder)

    async def would(
        self,
        tenants: frozenset[str],
        drain_s: float | None,
        declared: DeclaredMachine,
        *,
        facts: bool,
    ) -> ApplyTold:
        """Dry run of the file `declared` with these tenants; with `facts` the answer has the facts
        for a simulation.

        Raises `DeviceAway` if the server does not answer, and `DeviceRefused` if it refuses.
        """
        wanted = declared.device(self.name, tenants).written
        return await self.calls.serves(text_of(wanted), wanted, drain_s, dry_run=True, facts=facts)

    async def serves_of(
        self, declared: DeclaredMachine, tenants: frozenset[str], drain_s: float | None
    ) -> ApplyTold:
        """Let the server serve these tenants of another file from now on.

        Raises `DeviceAway` if it does not answer, and `DeviceRefused` if it refuses; after a
        refusal it serves as before.
        """
        before, self.declared = self.declared, declared
        try:
            return await self.serves(tenants, drain_s)
        except DeviceRefused:
            self.declared = before
            self.begins(self.written(self.tenants))
            raise

    def stored(self, tenant: str) -> str | None:
        """Name of the tenant's model in the store of weights; None for a folder or a hub model."""
        return self.declared.file.common.tenant(tenant).stored

    def lacks_weights(self, tenant: str) -> bool:
        """True if the tenant's model is from the store of weights, and the store here may lack it.
        It reads the disk."""
        model = self.stored(tenant)
        return model is not None and not is_here(self.declared.file.common.weights, model)


def text_of(wanted: Written) -> str:
    """Configuration as text that a server reads."""
    return msgspec.json.encode(wanted.raw, enc_hook=str).decode()
