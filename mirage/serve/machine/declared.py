"""File with several devices, under a server's options: placed, with a configuration for each
device.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from mirage.config import Config, ConfigError, TenantSection, current, made
from mirage.control.placement.facts import PlacementFacts
from mirage.errors import CommandFailed
from mirage.hub.fetched import Say
from mirage.serve.admin.one_server import visible_gpus
from mirage.serve.adoption.left import left_models, left_tenants
from mirage.serve.apply.difference import difference
from mirage.serve.apply.said import fixed
from mirage.serve.apply.source import ConfigSource, Written, has_devices
from mirage.serve.launch.host_limits import host_parts
from mirage.serve.launch.vllm_facts import Probe
from mirage.serve.machine.first import (
    LEFT,
    STAYS,
    FirstPlacement,
    Stays,
    as_named,
    first_placement,
)
from mirage.serve.machine.judge_scenes import judge_scenes
from mirage.serve.machine.known import NONE_KNOWN, KnownModels, asked
from mirage.serve.machine.model_facts import machine_facts, place_models
from mirage.serve.machine.parts import (
    ALL,
    MachineFile,
    machine_file,
    names_machines,
    without_machines,
)
from mirage.serve.models.hubs import outlined
from mirage.serve.succession import device_name
from mirage.serve.whatif.forms import Scene
from mirage.units import sizes
from vmm.host_memory import host_memory


class DeclaredDevice(NamedTuple):
    """One device of a file, with its tenants."""

    name: str
    source: ConfigSource
    written: Written

    @property
    def tenants(self) -> list[str]:
        """Names of the device's tenants."""
        return [one["name"] for one in self.written.raw["tenants"]]

    @property
    def config(self) -> Config:
        """Configuration of the device, in which hub models have their names and no folders yet."""
        return self.source.declared(self.written)

    @property
    def identity(self) -> str:
        """Name of the device in records of runs."""
        return device_name(self.config, self.source.path)


class PlacedMachine(NamedTuple):
    """All devices of a file, and the first places of its tenants."""

    declared: DeclaredMachine
    first: FirstPlacement
    facts: PlacementFacts | None
    """Facts without load; None if each tenant names its devices, so that no model moves."""
    scenes: Mapping[str, Scene] = MappingProxyType({})
    """Inputs for the simulations of the judge (scenes), by device: each has all models that fit on
    the device.
    """
    known: KnownModels = NONE_KNOWN
    """Models that vLLM was asked about."""

    @property
    def devices(self) -> list[DeclaredDevice]:
        """Each device with the tenants that `first` places there."""
        places = self.first.places
        return [
            self.declared.device(device, [n for n, at in places.items() if device in at.devices])
            for device in self.declared.file.devices
        ]

    @property
    def lines(self) -> list[str]:
        """Lines about the placement: the place of each tenant, and the reason."""
        placed = self.first.places.items()
        named = [f"{name}: on {' and '.join(at.devices)}, {at.why}" for name, at in placed]
        return named + self.first.lines


class DeclaredMachine:
    """File with several devices, under the options of a server."""

    def __init__(self, source: ConfigSource, file: MachineFile, written: Written) -> None:
        """Raises `ConfigError` if devices and tiers take more memory than the host has."""
        self.file, self.source, self.written = file, source, written
        self._idle_bytes: int | None = None
        empty = [self.device(name, ()) for name in file.devices]
        self._left_bytes = _left_beside([device.config for device in empty])
        self._idle_bytes = self._left_bytes // 2 // len(empty)
        self._identities = {device.name: device.identity for device in empty}

    def instead(self, wanted: Written) -> DeclaredMachine:
        """Another file for the same devices, which keeps the path of this one in messages.

        Raises `ConfigError` for an invalid file, and `CommandFailed` if it changes the devices or
        other keys that are fixed while a server runs.
        """
        if not has_devices(wanted.raw):
            raise CommandFailed(fixed(["devices"]))
        file = machine_file(wanted.raw, wanted.path, wanted.folder, _gpus(wanted.raw))
        if keys := _fixed(self.file, file):
            raise CommandFailed(fixed(keys))
        other = copy(self)
        other.file, other.written = file._replace(path=self.file.path), wanted
        return other

    @property
    def _whole(self) -> Written:
        return Written(self.file.whole, self.file.path, self.written.folder)

    @property
    def common(self) -> Config:
        """Configuration as if all tenants were on the first device, for the sections that hold for
        all devices.
        """
        return self.source.declared(self._whole)

    def device(self, name: str, tenants: Collection[str]) -> DeclaredDevice:
        """Device with these tenants.

        Unless the file says otherwise, the device's keeper may hold weights that no engine uses in
        an equal part of half the host memory that all devices and tiers leave.
        """
        part = self.file.part(name, tenants)
        part.raw.pop("http", None)  # clients are at the router above
        idle = {} if self._idle_bytes is None else {"idle_bytes": self._idle_bytes}
        keeper = idle | (part.raw.get("keeper") or {})
        raw = part.raw | ({"keeper": keeper} if keeper else {})
        return DeclaredDevice(
            name, replace(self.source, path=part.path), Written(raw, part.path, self.written.folder)
        )

    def fetch(self, say: Say) -> None:
        """Fetch the models that the file names by a hub's or a store's name, so that their folders
        are on this machine; `say` prints progress."""
        for identity in self._identities.values():
            self.source.folders.known.update(left_models(identity))
        self.source.fetch(self._whole, say)

    def placed(self, probe: Probe) -> PlacedMachine:
        """The file with a first place for each tenant. Raises `ConfigError` if the file is invalid
        or vLLM cannot be asked about the models.

        Hub models have to be fetched before.
        """
        return self._placed(self.source.config(self._whole), probe)

    def outlined(self, probe: Probe) -> PlacedMachine:
        """The placed machine before weights of hub models are fetched: only their other files are.

        Raises `ConfigError` if the file cannot be served, `HubRefused` and `WeightsRefused` for
        errors that the user can correct at a hub or the store of weights, else `CommandFailed`.
        """
        with outlined(self.source.declared(self._whole), lambda line: None) as seen:
            return self._placed(seen, probe)

    def placed_beside(
        self, present: Mapping[str, tuple[str, ...]], known: KnownModels, probe: Probe
    ) -> PlacedMachine:
        """The file with a place for each tenant. Raises `ConfigError` if the file is invalid or
        vLLM cannot be asked about the models.

        `present` are the devices of tenants that are served now; they stay unless they name others.
        vLLM is not asked again about models in `known`, unless keys of their tenants have changed.
        """
        config = self.source.config(self._whole)
        return self._placed(config, probe, known, Stays(present, STAYS))

    def _placed(
        self,
        config: Config,
        probe: Probe,
        known: KnownModels = NONE_KNOWN,
        stays: Stays | None = None,
    ) -> PlacedMachine:
        file = self.file
        if all(file.named.values()):
            return PlacedMachine(self, as_named(file.named), None, known=known)
        known = asked(config, probe, known)
        told = {name: one.facts for name, one in known.items() if one.facts is not None}
        models = place_models(config, told, file.devices, file.placement, file.named)
        facts = machine_facts(file.devices, self._left_bytes, models)
        stays = stays or Stays(self._left_places(), LEFT)
        first = first_placement(facts, stays, file.placement.rules)
        scenes = judge_scenes(config, told, facts, file.devices)
        return PlacedMachine(self, first, facts, scenes, known)

    def _left_places(self) -> dict[str, tuple[str, ...]]:
        """Devices of models whose engines were left by a server that died."""
        found: dict[str, tuple[str, ...]] = {}
        for device, identity in self._identities.items():
            for name in left_tenants(identity):
                found[name] = (*found.get(name, ()), device)
        return found


def tenants_in(raw: dict[Any, Any], path: Path) -> list[TenantSection]:
    """Tenants in the keys `raw` of a file for one device, several devices, or several machines.
    Raises `ConfigError` for an invalid file.
    """
    keys = current(raw, path)
    if not has_devices(keys):
        return made(keys, path, path.parent).tenants
    if names_machines(keys):
        keys = without_machines(keys, path)[0]
    return machine_file(keys, path, path.parent, _gpus(keys)).common.tenants


def declared_machine(source: ConfigSource, written: Written) -> DeclaredMachine:
    """Devices of the configuration `written`, under the options of `source`.

    Raises `ConfigError` for an invalid configuration, one that needs more memory than the host has,
    or an option that several devices cannot have.
    """
    if source.memory is not None:
        raise ConfigError(
            "--memory cannot be used with several devices: write memory in each of devices"
        )
    file = machine_file(written.raw, written.path, written.folder, _gpus(written.raw))
    return DeclaredMachine(source, file._replace(path=source.path), written)


def _fixed(before: MachineFile, after: MachineFile) -> list[str]:
    """Changed keys of a file that cannot change while a server runs."""
    keys = difference(before.common, after.common).fixed
    own = [] if before.devices == after.devices else ["devices"]
    return [key for key in keys if key.split(".")[0] != "device"] + own


def _gpus(raw: Mapping[Any, Any]) -> Sequence[int]:
    return visible_gpus() if raw["devices"] == ALL else ()


def _left_beside(configs: Sequence[Config]) -> int:
    """Bytes of host memory left beside all devices and tiers. Raises `ConfigError` if these take
    more than the host has."""
    has, taken = host_memory(), sum(sum(host_parts(config)) for config in configs)
    if taken > has.bytes:
        wanted, there = sizes(taken, has.bytes)
        raise ConfigError(
            f"devices and their tiers take {wanted} of host memory, {has.whose} {there}: lower them"
        )
    return has.bytes - taken
