"""File of `mirage serve --cluster`: devices of several machines, and orders for their servers."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from mirage.config import Config, ConfigError
from mirage.control.placement.facts import PlaceMachine, PlacementFacts
from mirage.facts import ModelFacts
from mirage.machines.agent import AgentOrder
from mirage.machines.seam import MachineThere
from mirage.serve.access.forms import AccessKey
from mirage.serve.apply.recorded import config_record
from mirage.serve.apply.source import ConfigSource, Written
from mirage.serve.ask import Probe, ask
from mirage.serve.host_limits import host_parts
from mirage.serve.hubs import outlined
from mirage.serve.logs import LogFormat
from mirage.serve.machine.judge_scenes import judge_scenes
from mirage.serve.machine.machine_router import PROGRAM as ROUTER
from mirage.serve.machine.machine_router import RouterOrder
from mirage.serve.machine.model_facts import place_device, place_models
from mirage.serve.machine.parts import MachineFile, machine_file
from mirage.serve.machine.tethered import TetheredOrder
from mirage.serve.roster.declared import DISK_BYTES_S
from mirage.serve.said import say
from mirage.serve.stored import is_here
from mirage.serve.whatif.forms import Scene

MACHINE = "machine"
"""Key of a device's section that names its machine."""
LEASE_S = 3600.0
"""Seconds for which a device server goes on without an agent, if no option says otherwise."""
ENGINES_S = 300.0
"""Seconds for which engines go on without their server, if the file does not say otherwise."""
UNCOUNTED = 2**60
"""Bytes of host memory that are assumed for a machine that has not told its own: no limit."""


class ClusterOptions(NamedTuple):
    """Options of the command, and keys made from the cluster's secret."""

    keys: tuple[AccessKey, ...]
    token: str
    """Token of the key that opens doors; that key is one of `keys`."""
    port: int
    """Port of the router on each machine."""
    log_format: LogFormat
    lease_s: float
    program: tuple[str, ...]
    """Command line of a device's server."""


class KnownCluster(NamedTuple):
    """Facts and scenes by which the first placement is decided."""

    facts: PlacementFacts
    """Facts about devices and models, without load."""
    scenes: dict[str, Scene]
    """Scenes as `judge_scenes` makes them, by device."""


class ServedCluster(NamedTuple):
    """File whose devices are in several machines, with the options of its controller."""

    file: MachineFile
    source: ConfigSource
    folder: Path
    sections: dict[str, dict[str, Any]]
    """Sections of the devices as their servers get them, by device."""
    machine_of: dict[str, str]
    options: ClusterOptions

    @property
    def models(self) -> list[str]:
        """Names of all tenants."""
        return list(self.file.named)

    @property
    def stored(self) -> dict[str, str]:
        """Names of models in stores of weights, by tenant, for tenants whose weights are there."""
        return {one.name: one.stored for one in self.file.common.tenants if one.stored}

    def written(self, device: str, tenants: Collection[str]) -> Written:
        """Configuration for the server of a device with these tenants."""
        part = self.file.part(device, tenants)
        raw = part.raw | {"device": self.sections[device]}
        return Written(raw, part.path, self.folder)

    def order(self, device: str, address: str, wanted: Written) -> bytes:
        """Order to start a device's server at `address` with the configuration `wanted`."""
        engines_s = ENGINES_S if self.source.lease_s is None else self.source.lease_s
        options, record = self.options, config_record(self.source, wanted)
        level = logging.getLogger("mirage").getEffectiveLevel()
        server = TetheredOrder(
            device, record, engines_s, address, options.keys, level, options.log_format
        )
        return self._agent(options.program, msgspec.json.encode(server))

    def router_order(self, name: str, machine: MachineThere, doors: dict[str, str]) -> bytes:
        """Order for the router of a machine, as JSON; `name` is its name at the agent.

        `doors` are the URLs of the devices' doors, by device.
        """
        options = self.options
        return msgspec.json.encode(
            RouterOrder(
                name,
                machine.name,
                config_record(self.source, self._whole),
                machine.address,
                options.port,
                options.keys,
                options.token,
                doors,
                logging.getLogger("mirage").getEffectiveLevel(),
                options.log_format,
            )
        )

    def router_agent(self, order: bytes) -> bytes:
        """Order for the agent of a router that begins with an order."""
        return self._agent(ROUTER, order)

    def taken(self, machine: str) -> int:
        """Bytes of host memory that devices of a machine take, with their tiers."""
        devices = (name for name, at in self.machine_of.items() if at == machine)
        parts = (host_parts(self.source.declared(self.written(name, ()))) for name in devices)
        return sum(map(sum, parts))

    @property
    def common(self) -> Config:
        """All tenants as if on the first device: it has what holds for all."""
        return self.source.declared(self._whole)

    @property
    def _whole(self) -> Written:
        return Written(self.file.whole, self.file.path, self.folder)

    def _agent(self, program: tuple[str, ...], server: bytes) -> bytes:
        hang_s = self.file.common.hang_s
        return msgspec.json.encode(AgentOrder(0, self.options.lease_s, hang_s, program, server))

    def known(self, probe: Probe) -> KnownCluster:
        """Facts and scenes for the first placement. Raises `ConfigError`.

        vLLM is asked about models that are on this machine or at a hub. Of a model that only other
        machines' stores have, just the share is known, and no simulation includes it.
        """
        config = self.common
        here = [t for t in config.tenants if t.stored is None or is_here(config.weights, t.stored)]
        if not here:
            return KnownCluster(self._facts(config, {}), {})
        with outlined(config.model_copy(update={"tenants": here}), say) as seen:
            told, _ = ask(seen, probe)
            facts = self._facts(config, told)
            return KnownCluster(facts, judge_scenes(seen, told, facts, self.file.devices))

    def _facts(self, config: Config, told: Mapping[str, ModelFacts]) -> PlacementFacts:
        file, machines = self.file, dict.fromkeys(self.machine_of.values())
        return PlacementFacts(
            tuple(
                place_device(name, section, self.machine_of[name])
                for name, section in file.devices.items()
            ),
            tuple(PlaceMachine(name, UNCOUNTED, DISK_BYTES_S) for name in machines),
            tuple(place_models(config, told, file.devices, file.placement, file.named)),
            (),
        )


def served_cluster(
    source: ConfigSource, written: Written, options: ClusterOptions
) -> ServedCluster:
    """Cluster that a file describes. Raises `ConfigError`."""
    raw, machine_of = _without_machines(written.raw, written.path)
    file = machine_file(raw, written.path, written.folder)
    sections = {}
    for one in written.raw["devices"]:
        section = dict(file.part(one["name"], ()).raw["device"])
        section.pop("index", None)
        sections[one["name"]] = section | {k: one[k] for k in ("index",) if k in one}
    return ServedCluster(file, source, written.folder, sections, machine_of, options)


def _without_machines(raw: Mapping[Any, Any], path: Path) -> tuple[dict[Any, Any], dict[str, str]]:
    """File without the machines of its devices, and the machine of each device. Raises
    `ConfigError`.
    """
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
