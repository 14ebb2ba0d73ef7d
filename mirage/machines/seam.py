"""Five verbs by which machines are had: whoever decides knows these alone, and no cluster.

Nothing of a request, of weights or of KV memory passes through them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

import msgspec

ROUTER = "router@"
"""Begin of the name of a machine's router, which is started as a device's server; no device's name
begins so.
"""


class MachineAway(Exception):
    """A machine, or the server of one of its devices, cannot be asked now."""


class StaleEpoch(Exception):
    """A newer controller has given orders since: this one has to end."""

    def __init__(self, epoch: int) -> None:
        """`epoch` is the newer one's."""
        super().__init__(f"epoch {epoch} has begun")
        self.epoch = epoch


class MachineThere(msgspec.Struct, frozen=True):
    """A machine that answers."""

    name: str
    address: str
    """Address at which other machines reach it."""
    life: str
    """Another one each time it joins."""


class DeviceCall(msgspec.Struct, frozen=True):
    """A request at a device server's socket for operators."""

    method: str
    path: str
    body: bytes = b""


class DeviceAnswer(msgspec.Struct, frozen=True):
    """Answer to a `DeviceCall`."""

    status: int
    body: bytes


class DeviceNews(msgspec.Struct, frozen=True):
    """A device whose server was lost, or is back."""

    device: str
    is_there: bool
    why: str


class Machines(Protocol):
    """Machines as they are seen from one place."""

    async def there(self) -> Sequence[MachineThere]:
        """Machines that answer now. Raises `MachineAway` if that is unknown."""

    async def start(self, device: str, machine: str, order: bytes) -> None:
        """Have a server of a device by an order, or adopt the one that is there. Idempotent.

        Another server follows one that ends. Raises `MachineAway` and `StaleEpoch`.
        """

    async def call(self, device: str, call: DeviceCall) -> DeviceAnswer:
        """Ask a device's server. Raises `MachineAway` and `StaleEpoch`."""

    async def put(self, key: str, value: bytes, *, absent: bool = False) -> bool:
        """Keep a small fact; false if it was there and shall be `absent`. Raises `MachineAway`."""

    async def facts(self, prefix: str) -> Mapping[str, bytes]:
        """Facts whose keys begin so. Raises `MachineAway`."""

    def news(self) -> AsyncIterator[DeviceNews]:
        """Each device that is lost or back, from now on, without an end."""
