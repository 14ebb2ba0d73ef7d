"""`mirage serve --cluster`: devices of several machines have servers, and models go among them."""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlencode

import msgspec

from mirage.config import STORED, ConfigError
from mirage.machines.agent import AgentOrder
from mirage.machines.controller import ClusterController
from mirage.machines.seam import DeviceCall, Machines
from mirage.machines.spread import SpreadModel, spread
from mirage.serve.access.forms import AccessKey
from mirage.serve.adoption.record import ConfigRecord
from mirage.serve.apply.source import ConfigSource, Written
from mirage.serve.logs import LogFormat
from mirage.serve.machine.parts import OF_PLACES, MachineFile, machine_file
from mirage.serve.machine.tethered import TetheredOrder
from mirage.serve.said import say
from mirage.serve.together import together

MACHINE = "machine"
"""Key of a device: the machine that it is in."""
LEASE_S = 3600.0
"""Seconds for which a device server goes on without an agent, unless the command says otherwise."""
ENGINES_S = 300.0
"""Seconds for which engines go on without their server, where the file says nothing."""


class ClusterMachines(Machines, Protocol):
    """Machines that have to be kept."""

    def keep(self) -> Coroutine[Any, Any, None]:
        """Never returns."""


class ServedCluster(NamedTuple):
    """A file whose devices are in several machines, as a `ClusterPlan`."""

    written: Written
    source: ConfigSource
    raws: dict[str, dict[str, Any]]
    """Configuration of each device, with the tenants that it has first."""
    tenants: dict[str, dict[str, Any]]
    machine_of: dict[str, str]
    models: tuple[SpreadModel, ...]
    keys: tuple[AccessKey, ...]
    lease_s: float
    hang_s: float
    brings_ahead: bool
    log_format: LogFormat
    program: tuple[str, ...]

    def order(self, device: str, address: str, names: Sequence[str]) -> bytes:
        """See `ClusterPlan`."""
        told, source = self.written, self.source
        record = ConfigRecord(
            self._raw(device, names),
            str(told.path.with_name(f"{told.path.name}#{device}")),
            str(told.folder),
            "",
            source.policy,
            None,
            source.tiers,
        )
        engines_s = ENGINES_S if source.lease_s is None else source.lease_s
        server = TetheredOrder(
            device, record, engines_s, address, self.keys, logging.INFO, self.log_format
        )
        order = AgentOrder(0, self.lease_s, self.hang_s, self.program, msgspec.json.encode(server))
        return msgspec.json.encode(order)

    @property
    def stored(self) -> dict[str, str]:
        """See `ClusterPlan`."""
        models = {name: str(one.get("model")) for name, one in self.tenants.items()}
        return {n: m.removeprefix(STORED) for n, m in models.items() if m.startswith(STORED)}

    def config(self, device: str, names: Sequence[str]) -> DeviceCall:
        """See `ClusterPlan`."""
        query = urlencode({"file": f"{self.written.path}#{device}", "folder": self.written.folder})
        body = msgspec.json.encode(self._raw(device, names))
        return DeviceCall("PUT", f"/config?{query}", body)

    def _raw(self, device: str, names: Sequence[str]) -> dict[str, Any]:
        return self.raws[device] | {"tenants": [self.tenants[name] for name in names]}


def served_cluster(
    source: ConfigSource,
    written: Written,
    keys: tuple[AccessKey, ...],
    log_format: LogFormat,
    lease_s: float,
    program: tuple[str, ...],
) -> ServedCluster:
    """Devices of a file in several machines. Raises `ConfigError`."""
    raw, machine_of = _without_machines(written.raw, written.path)
    file = machine_file(raw, written.path, written.folder)
    sections = {one["name"]: dict(one) for one in written.raw["devices"]}
    raws = {}
    for name in file.devices:
        part = file.part(name, ())
        section = sections[name]
        device = part.raw["device"] | {k: section[k] for k in ("index",) if k in section}
        if "index" not in section:
            device.pop("index", None)
        raws[name] = part.raw | {"device": device}
    tenants = {
        one["name"]: {key: value for key, value in one.items() if key not in OF_PLACES}
        for one in written.raw["tenants"]
    }
    return ServedCluster(
        written, source, raws, tenants, machine_of, _models(file), keys, lease_s,
        file.common.hang_s, file.common.weights.ahead, log_format, program,
    )  # fmt: skip


def _models(file: MachineFile) -> tuple[SpreadModel, ...]:
    """Models with their homes: the devices that they name, or the one with the most room."""
    named = [
        SpreadModel(name, devices, file.common.tenant(name).share or 0.0)
        for name, devices in file.named.items()
    ]
    at = spread(named, list(file.devices), {})
    return tuple(
        one._replace(homes=tuple(device for device in at if one.name in at[device]))
        for one in named
    )


def _without_machines(raw: Mapping[Any, Any], path: Path) -> tuple[dict[Any, Any], dict[str, str]]:
    """The file as if all devices were in one machine. Raises `ConfigError`."""
    if not isinstance(devices := raw.get("devices"), list):
        raise ConfigError(f"{path}: --cluster needs a list of devices, each with its machine")
    kept, machine_of = [], {}
    for number, one in enumerate(devices):
        if not isinstance(one, dict) or not isinstance(machine := one.get(MACHINE), str):
            raise ConfigError(f"{path}: devices.{number}.machine: name the machine that it is in")
        kept.append({key: value for key, value in one.items() if key != MACHINE})
        if one.get("kind") == "cuda":
            kept[-1]["index"] = number  # GPUs of different machines may have the same one
        machine_of[str(one.get("name"))] = machine
    return {**raw, "devices": kept}, machine_of


async def serve_cluster(machines: ClusterMachines, plan: ServedCluster) -> None:
    """Have all devices served until this is cancelled: what runs goes on then.

    Raises `StaleEpoch` once another controller has begun.
    """
    controller = ClusterController(machines, plan, say)
    await together([controller.keep(), machines.keep(), _tell(machines)])


async def _tell(machines: Machines) -> None:
    async for news in machines.news():
        say(f"device {news.device!r}: {news.why}")
