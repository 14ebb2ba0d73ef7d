"""A file with several devices, as a server's options have it: placed, a configuration for each."""

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
from mirage.serve.apply.source import ConfigSource, Written
from mirage.serve.ask import Probe
from mirage.serve.host_limits import host_parts
from mirage.serve.hubs import outlined
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
from mirage.serve.machine.parts import ALL, MachineFile, machine_file
from mirage.serve.succession import device_name
from mirage.serve.whatif.forms import Scene
from mirage.units import sizes
from vmm.host_memory import host_memory


class DeclaredDevice(NamedTuple):
    """A device with its tenants, as a file declares them."""

    name: str
    source: ConfigSource
    written: Written

    @property
    def tenants(self) -> list[str]:
        """Names of its tenants."""
        return [one["name"] for one in self.written.raw["tenants"]]

    @property
    def config(self) -> Config:
        """Its configuration, with names of models at a hub."""
        return self.source.declared(self.written)

    @property
    def identity(self) -> str:
        """Name of the device in records of runs."""
        return device_name(self.config, self.source.path)


class PlacedMachine(NamedTuple):
    """All devices of a file, and where its tenants are at first."""

    declared: DeclaredMachine
    first: FirstPlacement
    facts: PlacementFacts | None
    """Facts without load; None where all tenants name their devices, so that nothing moves."""
    scenes: Mapping[str, Scene] = MappingProxyType({})
    """Scene of each device with all models that fit there, for the judge of moves."""
    known: KnownModels = NONE_KNOWN
    """Models of which vLLM was asked."""

    @property
    def devices(self) -> list[DeclaredDevice]:
        """Each device with its first tenants."""
        places = self.first.places
        return [
            self.declared.device(device, [n for n, at in places.items() if device in at.devices])
            for device in self.declared.file.devices
        ]

    @property
    def lines(self) -> list[str]:
        """Lines on the placement: where each tenant goes, and why."""
        placed = self.first.places.items()
        named = [f"{name}: on {' and '.join(at.devices)}, {at.why}" for name, at in placed]
        return named + self.first.lines


class DeclaredMachine:
    """A file with several devices, under the options of a server."""

    def __init__(self, source: ConfigSource, file: MachineFile, written: Written) -> None:
        """Raises `ConfigError` for devices that take more than the host has."""
        self.file, self.source, self.written = file, source, written
        self._idle_bytes: int | None = None
        empty = [self.device(name, ()) for name in file.devices]
        self._left_bytes = _left_beside([device.config for device in empty])
        self._idle_bytes = self._left_bytes // 2 // len(empty)
        self._identities = {device.name: device.identity for device in empty}

    def instead(self, wanted: Written) -> DeclaredMachine:
        """Another file for the same devices, known by the name of this one.

        Raises `ConfigError`, and `CommandFailed` for one that is not for these devices as they are.
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

    def device(self, name: str, tenants: Collection[str]) -> DeclaredDevice:
        """A device with these tenants; its keeper of weights has a part of host memory."""
        part = self.file.part(name, tenants)
        idle = {} if self._idle_bytes is None else {"idle_bytes": self._idle_bytes}
        keeper = idle | (part.raw.get("keeper") or {})
        raw = part.raw | ({"keeper": keeper} if keeper else {})
        return DeclaredDevice(
            name, replace(self.source, path=part.path), Written(raw, part.path, self.written.folder)
        )

    def fetch(self, say: Say) -> None:
        """Fetch models that it names at a hub; see `HubFolders.fetch`."""
        for identity in self._identities.values():
            self.source.folders.known.update(left_models(identity))
        self.source.fetch(self._whole, say)

    def placed(self, probe: Probe) -> PlacedMachine:
        """The file with a place for each tenant; models were fetched. Raises `ConfigError`."""
        return self._placed(self.source.config(self._whole), probe)

    def outlined(self, probe: Probe) -> PlacedMachine:
        """The same, without weights of models at a hub. Raises as `outlined`."""
        with outlined(self.source.declared(self._whole), lambda line: None) as seen:
            return self._placed(seen, probe)

    def placed_beside(
        self, present: Mapping[str, tuple[str, ...]], known: KnownModels, probe: Probe
    ) -> PlacedMachine:
        """The file with a place for each tenant; those `present` stay unless they name another.

        Models that are `known` are not asked about again. Raises `ConfigError`.
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
        """Devices of models whose engines a server that died has left."""
        found: dict[str, tuple[str, ...]] = {}
        for device, identity in self._identities.items():
            for name in left_tenants(identity):
                found[name] = (*found.get(name, ()), device)
        return found


def has_devices(raw: Mapping[Any, Any]) -> bool:
    """True if a file has several devices, be it a list of one."""
    return "devices" in raw


def tenants_in(raw: dict[Any, Any], path: Path) -> list[TenantSection]:
    """Tenants of a file's content, of one device or several. Raises `ConfigError`."""
    keys = current(raw, path)
    if not has_devices(keys):
        return made(keys, path, path.parent).tenants
    return machine_file(keys, path, path.parent, _gpus(keys)).common.tenants


def declared_machine(
    source: ConfigSource, written: Written, state: Path | None = None
) -> DeclaredMachine:
    """Devices of what is `written`, under the options of `source`. Raises `ConfigError`.

    `state` is refused: what is applied to several devices ends with their server.
    """
    if state is not None:
        raise ConfigError("--state keeps what is applied to one device: leave it out with devices")
    if source.memory is not None:
        raise ConfigError("--memory is for one device: write memory of each in devices")
    file = machine_file(written.raw, written.path, written.folder, _gpus(written.raw))
    return DeclaredMachine(source, file, written)


def _fixed(before: MachineFile, after: MachineFile) -> list[str]:
    """Keys in which two files differ that cannot change while a server runs."""
    keys = difference(before.common, after.common).fixed
    own = {"devices": before.devices == after.devices, "placement": _rules(before) == _rules(after)}
    return [key for key in keys if key.split(".")[0] != "device"] + [k for k in own if not own[k]]


def _rules(file: MachineFile) -> str:
    return repr(file.placement)


def _gpus(raw: Mapping[Any, Any]) -> Sequence[int]:
    return visible_gpus() if raw["devices"] == ALL else ()


def _left_beside(configs: Sequence[Config]) -> int:
    """Bytes of host memory beside all devices and tiers. Raises `ConfigError` if they take more."""
    has, taken = host_memory(), sum(sum(host_parts(config)) for config in configs)
    if taken > has.bytes:
        wanted, there = sizes(taken, has.bytes)
        raise ConfigError(
            f"devices and their tiers take {wanted} of host memory, {has.whose} {there}: lower them"
        )
    return has.bytes - taken
