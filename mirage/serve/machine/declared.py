"""A file with several devices, as a server's options have it: a configuration for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from mirage.config import Config, ConfigError, TenantSection, current, made
from mirage.hub.fetched import Say
from mirage.serve.admin.one_server import visible_gpus
from mirage.serve.adoption.left import left_models
from mirage.serve.apply.source import ConfigSource, Written
from mirage.serve.host_limits import host_parts
from mirage.serve.machine.parts import ALL, DevicePart, MachineParts, machine_parts
from mirage.serve.succession import device_name
from mirage.units import sizes
from vmm.host_memory import host_memory


class DeclaredDevice(NamedTuple):
    """One device with its tenants."""

    name: str
    source: ConfigSource
    written: Written

    @property
    def config(self) -> Config:
        """Its configuration, with names of models at a hub."""
        return self.source.declared(self.written)


class DeclaredMachine(NamedTuple):
    """All devices of a file."""

    parts: MachineParts
    devices: tuple[DeclaredDevice, ...]

    def fetch(self, say: Say) -> None:
        """Fetch models that they name at a hub; see `HubFolders.fetch`."""
        for device in self.devices:
            known = left_models(device_name(device.config, device.source.path))
            device.source.folders.known.update(known)
            device.source.fetch(device.written, say)

    @property
    def lines(self) -> list[str]:
        """Lines on the placement: where each tenant goes, and why."""
        return [
            f"{name}: on {' and '.join(place.devices)}, {place.why}"
            for name, place in self.parts.places.items()
        ]


def has_devices(raw: Mapping[Any, Any]) -> bool:
    """True if a file has several devices, be it a list of one."""
    return "devices" in raw


def tenants_in(raw: dict[Any, Any], path: Path) -> list[TenantSection]:
    """Tenants of a file's content, of one device or several. Raises `ConfigError`."""
    keys = current(raw, path)
    if not has_devices(keys):
        return made(keys, path, path.parent).tenants
    return machine_parts(keys, path, path.parent, _gpus(keys)).common.tenants


def declared_machine(
    source: ConfigSource, written: Written, state: Path | None = None
) -> DeclaredMachine:
    """Devices of what is `written`, under the options of `source`. Raises `ConfigError`.

    `state` is refused: nothing is applied while several devices are served.
    """
    if state is not None:
        raise ConfigError("--state keeps what is applied to one device: leave it out with devices")
    if source.memory is not None:
        raise ConfigError("--memory is for one device: write memory of each in devices")
    parts = machine_parts(written.raw, written.path, written.folder, _gpus(written.raw))
    devices = [_declared(source, written, part) for part in parts.devices]
    left = _left_beside([device.config for device in devices])
    idle = left // 2 // len(devices)
    return DeclaredMachine(parts, tuple(_keeping(device, idle) for device in devices))


def _declared(source: ConfigSource, written: Written, part: DevicePart) -> DeclaredDevice:
    own = Written(part.raw, part.path, written.folder)
    return DeclaredDevice(part.name, replace(source, path=part.path), own)


def _keeping(device: DeclaredDevice, idle_bytes: int) -> DeclaredDevice:
    """A device whose keeper of weights has a part of host memory, unless the file says which."""
    raw = device.written.raw
    keeper = {"idle_bytes": idle_bytes} | (raw.get("keeper") or {})
    return device._replace(written=replace(device.written, raw=raw | {"keeper": keeper}))


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
