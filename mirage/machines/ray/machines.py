"""`Machines` of a Ray cluster: labelled nodes, one actor for each device, facts in Ray's GCS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import ray
from ray.experimental import internal_kv

from mirage.machines.agent import AgentOrder
from mirage.machines.board import NewsBoard
from mirage.machines.ray import threads
from mirage.machines.ray.actor import HOST_BYTES, MACHINE, RELEASE, DeviceActor
from mirage.machines.seam import (
    DeviceAnswer,
    DeviceCall,
    DeviceNews,
    MachineAway,
    MachineThere,
    ServerCannot,
    StaleEpoch,
)
from mirage.machines.tether_messages import TetherTold

NAMESPACE = "mirage"
AWAY_S = 5.0
"""Seconds to wait for an agent, or for the cluster itself."""
CALL_S = 640.0
"""Seconds to wait for a device's server to answer another request than GET, which may change its
configuration; an answer to GET has `AWAY_S`.
"""
LOOK_S = 0.5
"""Seconds between two checks for lost machines."""
OWN = ("agent",)
"""Keys of an actor's answer that do not describe its server."""
DEVICE, LEAVES = "device:", "leaves:"
"""Prefixes of facts: the machine of each started device, and `life` of each machine that leaves."""
T = TypeVar("T")


class RayMachines:
    """`Machines` of the cluster that this process has connected to. `news` yields only while `keep`
    runs."""

    def __init__(self, epoch: int) -> None:
        """`epoch` goes with each order; device servers refuse older epochs than the newest they
        know.
        """
        self.epoch, self._board = epoch, NewsBoard()
        self._devices: dict[str, str] = {}
        """Machine of each device that was started through this object."""

    # -- operations ---------------------------------------------------------------------

    async def there(self) -> Sequence[MachineThere]:
        """Machines whose node is alive in Ray, and which are not told to leave. See `Machines`."""
        leave = {life.decode() for life in (await self.facts(LEAVES)).values()}
        return [
            MachineThere(
                node["Labels"][MACHINE],
                node["NodeManagerAddress"],
                node["NodeID"],
                int(node["Labels"].get(HOST_BYTES, 0)),
            )
            for node in await _of_cluster(ray.nodes)
            if node["Alive"] and MACHINE in node["Labels"] and node["NodeID"] not in leave
        ]

    async def start(self, device: str, machine: str, order: bytes) -> None:
        """Start a device's server on a machine by an order, or adopt the running one. If it ends,
        another one is started by the order that was given last.

        `order` is an `AgentOrder` as JSON; its epoch is replaced by this controller's. See
        `Machines` for the errors.
        """
        self._devices[device] = machine
        own = msgspec.structs.replace(msgspec.json.decode(order, type=AgentOrder), epoch=self.epoch)
        await self.put(f"{DEVICE}{device}", machine.encode())
        actor = await _of_cluster(lambda: _actor(device, machine))
        _check(await _answer(actor.obeys.remote(msgspec.json.encode(own))))

    async def call(self, device: str, call: DeviceCall) -> DeviceAnswer:
        """Send a request to a device's server, through the actor of the device. Raises
        `MachineAway` if the actor or the server does not answer, `ServerCannot` if the server has
        refused to start, and `StaleEpoch` if a newer controller has given orders."""
        actor = await self._known(device)
        asked = actor.call.remote(self.epoch, call.method, call.path, call.body)
        kind, told = await _answer(asked, AWAY_S if call.method == "GET" else CALL_S)
        if kind == "stale":
            raise StaleEpoch(told)
        if kind == "cannot":
            raise ServerCannot(told)
        if kind == "away":
            raise MachineAway(f"device {device!r}: {told}")
        return DeviceAnswer(*told)

    async def put(self, key: str, value: bytes, *, absent: bool = False) -> bool:
        """Keep a fact, a small value by key, in the store of Ray's head. With `absent`, keep it
        only if the key has none; False if it has one. Raises `MachineAway` if the cluster does not
        answer.
        """
        return await _of_cluster(
            lambda: (
                not internal_kv._internal_kv_put(
                    key, value, overwrite=not absent, namespace=NAMESPACE
                )
                or not absent
            )
        )

    async def facts(self, prefix: str) -> Mapping[str, bytes]:
        """Facts whose keys begin with `prefix`, from the store of Ray's head. Raises `MachineAway`
        if the cluster does not answer."""
        return await _of_cluster(lambda: _facts(prefix))

    def news(self) -> AsyncIterator[DeviceNews]:
        """Each device that is lost or back, from the first wait on; never ends. A device is lost
        when its machine is."""
        return self._board.news()

    # -- beside the operations ----------------------------------------------------------

    async def devices(self) -> dict[str, str]:
        """Machine of each device that any controller has started. Raises `MachineAway` if the
        cluster does not answer.
        """
        told = await self.facts(DEVICE)
        return {key.removeprefix(DEVICE): value.decode() for key, value in told.items()}

    async def releases(self) -> dict[str, dict[str, str]]:
        """Installed releases of each live machine, by machine and by package. Raises `MachineAway`
        if the cluster does not answer.
        """
        return {
            node["Labels"][MACHINE]: {
                key.removeprefix(RELEASE): told
                for key, told in sorted(node["Labels"].items())
                if key.startswith(RELEASE)
            }
            for node in await _of_cluster(ray.nodes)
            if node["Alive"] and MACHINE in node["Labels"]
        }

    async def leaves(self, machine: str) -> None:
        """Hide a machine from all controllers until it joins again. Raises `MachineAway` if the
        cluster does not answer.
        """
        for one in await self.there():
            if one.name == machine:
                await self.put(f"{LEAVES}{machine}", one.life.encode())

    async def told(self, device: str) -> TetherTold | None:
        """State of a device's server as its agent last saw it; None if it did not answer. Raises
        `MachineAway` if the agent does not answer.
        """
        told = await _answer((await self._known(device)).told.remote())
        if told is None:
            return None
        return TetherTold(**{key: value for key, value in told.items() if key not in OWN})

    async def end(self, device: str) -> None:
        """Have a device's server drain and end, and end its agent. Raises `MachineAway` if the
        agent or the cluster does not answer, and `StaleEpoch` if a newer controller has given
        orders.
        """
        actor = await self._known(device)
        _check(await _answer(actor.end.remote(self.epoch)))
        await _of_cluster(lambda: ray.kill(actor))
        await _of_cluster(lambda: _forget(device))
        self._devices.pop(device, None)

    async def keep(self) -> None:
        """Watch the machines, and tell of devices whose machines are lost or back. Never
        returns.
        """
        before: set[str] | None = None
        while True:
            try:
                machines = {one.name for one in await self.there()}
            except MachineAway:  # nobody knows: those that were there are taken for there
                machines = before or set()
            if before is not None:
                for device, machine in self._devices.items():
                    if (machine in machines) != (machine in before):
                        self._tell(device, machine, is_there=machine in machines)
            before = machines
            await asyncio.sleep(LOOK_S)

    def _tell(self, device: str, machine: str, *, is_there: bool) -> None:
        why = f"machine {machine!r} {'is back' if is_there else 'was lost'}"
        self._board.tell(DeviceNews(device, is_there, why))

    async def _known(self, device: str) -> Any:
        """Actor of a device. Raises `MachineAway` if there is none, or the cluster does not answer
        it within `AWAY_S` seconds.
        """
        return await _of_cluster(lambda: ray.get_actor(_name(device), namespace=NAMESPACE))


def _name(device: str) -> str:
    return f"device:{device}"


def _actor(device: str, machine: str) -> Any:
    """Actor of a device, created on `machine` if there is none."""
    remote: Any = ray.remote  # its types know no class by its name
    made = remote(num_cpus=0, max_restarts=-1, max_task_retries=0, max_concurrency=4)
    return (
        made(DeviceActor)
        .options(
            name=_name(device),
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            label_selector={MACHINE: machine},
        )
        .remote(device)
    )


def _facts(prefix: str) -> dict[str, bytes]:
    keys = internal_kv._internal_kv_list(prefix, namespace=NAMESPACE)
    found = {key.decode(): internal_kv._internal_kv_get(key, namespace=NAMESPACE) for key in keys}
    return {key: value for key, value in found.items() if value is not None}


def _forget(device: str) -> None:
    internal_kv._internal_kv_del(f"{DEVICE}{device}", namespace=NAMESPACE)


async def _of_cluster(ask: Callable[[], T]) -> T:
    """Result of `ask`, a call to the cluster itself, run in a thread. Raises `MachineAway` if the
    cluster does not answer within `AWAY_S` seconds, or with an error.
    """
    try:
        return await threads.within(AWAY_S, ask)
    except TimeoutError:
        raise MachineAway(f"the cluster does not answer within {AWAY_S:g} s") from None
    except (ray.exceptions.RayError, ValueError, RuntimeError, ConnectionError) as error:
        raise MachineAway(f"the cluster does not answer ({_line(error)})") from None


async def _answer(asked: Any, timeout_s: float = AWAY_S) -> Any:
    """Answer of an agent to a remote call. Raises `MachineAway` if the call fails, or has no answer
    within `timeout_s` seconds.
    """
    try:
        return await threads.within(timeout_s, lambda: ray.get(asked, timeout=timeout_s))
    except (ray.exceptions.RayError, TimeoutError) as error:
        raise MachineAway(f"its agent does not answer ({_line(error)})") from None


def _check(newer: int) -> None:
    if newer:
        raise StaleEpoch(newer)


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
