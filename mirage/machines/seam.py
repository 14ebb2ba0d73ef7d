"""Interface to machines, without a cluster: six operations, the only ones that deciding code uses.

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
    """Error: a machine, or the server of one of its devices, cannot be reached now."""


class ServerCannot(MachineAway):
    """Error: the server of a device is away, because it refused to start the last time. The message
    is the one with which it ended.
    """


class StaleEpoch(Exception):
    """Error: a newer controller has given orders, so the controller that gets this has to end."""

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
    """HTTP request to the admin socket of a device server, as operators' commands send it."""

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
    """The machines as seen by one controller.

    Methods raise `MachineAway` if the cluster, the machine or the server does not answer, and
    `StaleEpoch` if a newer controller has given orders.
    """

    async def there(self) -> Sequence[MachineThere]:
        """Machines that answer now. Raises `MachineAway` if that is unknown."""

    async def start(self, device: str, machine: str, order: bytes) -> None:
        """Start a device's server by an order, or adopt the running one. Idempotent.

        If the server ends, another one is started, by the order that was given last.
        """

    async def call(self, device: str, call: DeviceCall) -> DeviceAnswer:
        """Send a request to a device's server."""

    async def put(self, key: str, value: bytes, *, absent: bool = False) -> bool:
        """Keep a fact, a small value by key that outlives the controller. With `absent`, keep it
        only if the key has none; False if it has one.
        """

    async def facts(self, prefix: str) -> Mapping[str, bytes]:
        """Facts whose keys begin with `prefix`."""

    def news(self) -> AsyncIterator[DeviceNews]:
        """Each device that is lost or back, from the first wait on; never ends."""
