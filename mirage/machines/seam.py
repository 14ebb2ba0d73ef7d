"""Interface to machines: five verbs, the only ones that deciding code uses; it knows no cluster.

Requests, weights and KV memory do not pass through them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

import msgspec

ROUTER = "router@"
"""Prefix of the name of a machine's router, which is started like a device's server. No device's
name begins with it.
"""


class MachineAway(Exception):
    """A machine, or the server of one of its devices, cannot be reached now."""


class StaleEpoch(Exception):
    """A newer controller has given orders: this one has to end."""

    def __init__(self, epoch: int) -> None:
        """`epoch` is that of the newer controller."""
        super().__init__(f"epoch {epoch} has begun")
        self.epoch = epoch


class MachineThere(msgspec.Struct, frozen=True):
    """A machine that answers."""

    name: str
    address: str
    """Address at which other machines reach it."""
    life: str
    """Identifier of the machine's membership; it changes each time the machine joins."""
    host_bytes: int = 0
    """Bytes of the machine's host memory; 0 if it has not told them."""


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
    """The machines as seen by one controller."""

    async def there(self) -> Sequence[MachineThere]:
        """Machines that answer now. Raises `MachineAway` if that is unknown."""

    async def start(self, device: str, machine: str, order: bytes) -> None:
        """Start a device's server by an order, or adopt the running one. Idempotent.

        If the server ends, another one is started. Raises `MachineAway` and `StaleEpoch`.
        """

    async def call(self, device: str, call: DeviceCall) -> DeviceAnswer:
        """Send a request to a device's server. Raises `MachineAway` and `StaleEpoch`."""

    async def put(self, key: str, value: bytes, *, absent: bool = False) -> bool:
        """Keep a small fact. With `absent`, keep it only if the key has none; False if it has one.
        Raises `MachineAway`.
        """

    async def facts(self, prefix: str) -> Mapping[str, bytes]:
        """Facts whose keys begin with `prefix`. Raises `MachineAway`."""

    def news(self) -> AsyncIterator[DeviceNews]:
        """Each device that is lost or back, from now on; never ends."""
