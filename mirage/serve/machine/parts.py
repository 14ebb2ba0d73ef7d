"""Parts of a file with `devices`: a configuration of one device, for any set of tenants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ConfigDict, Field, model_validator

from mirage.config import Config, ConfigError, DeviceSection, Strict, made, resolved, validated
from mirage.serve.apply.edits import OF_PLACES
from mirage.serve.machine.section import PlacementSection

NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$"
ALL = "all"
MACHINE = "machine"
"""Key of a device's section that names its machine, in a file for `mirage serve --cluster`."""
OF_THE_FILE = frozenset({"devices", "device", "tenants", "replay", "placement"})
"""Keys of the file that a part lacks, or has with other values."""


class NamedDevice(DeviceSection):
    """Section of one of several devices, with its name."""

    name: str = Field(pattern=NAME)
    """Name by which tenants and operators refer to the device."""


class OfSeveral(Strict):
    """Keys that only files with several devices have."""

    devices: list[NamedDevice] = Field(min_length=1)
    placement: PlacementSection = PlacementSection()


class TenantPlace(Strict):
    """Keys of a tenant that name its devices; `TenantSection` has the others."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    name: str
    device: str | None = None
    devices: list[str] | None = Field(default=None, min_length=1)
    """Devices of a tenant; each gets an engine of it, a replica."""

    @model_validator(mode="after")
    def _one_key_says_where(self) -> TenantPlace:
        if self.device is not None and self.devices is not None:
            raise ValueError("device and devices are both written: write only one of them")
        if twice := [name for name, times in Counter(self.devices).items() if times > 1]:
            raise ValueError(f"devices names {twice[0]!r} twice: name each device once")
        return self

    @property
    def named(self) -> tuple[str, ...]:
        """Devices that the tenant names; empty leaves the choice to the placement."""
        return (self.device,) if self.device is not None else tuple(self.devices or ())


class TenantPlaces(Strict):
    """Key `tenants` of a file, of which only the devices that tenants name are read here."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    tenants: list[TenantPlace] = Field(min_length=1)


class DevicePart(NamedTuple):
    """Part of a file that belongs to one device."""

    name: str
    raw: dict[str, Any]
    """Configuration of this device alone."""
    path: Path
    """Name of the part in messages: the file's path with the device's name."""


class MachineFile(NamedTuple):
    """File with several devices, checked."""

    raw: dict[Any, Any]
    path: Path
    devices: dict[str, DeviceSection]
    sections: dict[str, dict[str, Any]]
    """Sections of the devices as they are written, by device."""
    named: dict[str, tuple[str, ...]]
    """Devices that each tenant names, in the order of the file; empty if it names none."""
    placement: PlacementSection
    common: Config
    """Configuration as if all tenants were on the first device; it has the sections that hold for
    all.
    """

    @property
    def whole(self) -> dict[Any, Any]:
        """Keys from which `common` is made."""
        return _all_on_one(self.raw, next(iter(self.sections.values())))

    def part(self, device: str, tenants: Collection[str]) -> DevicePart:
        """Configuration of one device with these tenants."""
        own = [_without(one, OF_PLACES) for one in self.raw["tenants"] if one["name"] in tenants]
        section = dict(self.sections[device])
        raw = {**_without(self.raw, OF_THE_FILE), "device": section, "tenants": own}
        if (ssd := self.common.tiers.ssd) is not None:
            folder = str(resolved(ssd.directory, device))
            tiers = self.raw["tiers"]
            raw["tiers"] = {**tiers, "ssd": {**tiers["ssd"], "directory": folder}}
        return DevicePart(device, raw, self.path.parent / f"{self.path.name}#{device}")


def machine_file(
    raw: dict[Any, Any], path: Path, here: Path, gpus: Sequence[int] = ()
) -> MachineFile:
    """Check the keys `raw` of the file at `path`; paths in it are relative to `here`.

    `gpus` are the indexes that ``all`` stands for. Raises `ConfigError` for a wrong key or value,
    and if a device names a machine, which only a cluster has.
    """
    if names_machines(raw):
        raise ConfigError(
            f"{path}: devices have a machine: mirage serve --cluster serves this file, or leave "
            f"{MACHINE} out"
        )
    keys = {"devices": _listed(raw, path, gpus)} | (
        {"placement": raw["placement"]} if "placement" in raw else {}
    )
    several = validated(OfSeveral, keys, path)
    _check_devices(several.devices, path)
    sections = {one["name"]: dict(one) for one in keys["devices"]}
    common = made(_all_on_one(raw, next(iter(sections.values()))), path, here)
    if common.tiers.peer is not None:
        raise ConfigError(f"{path}: tiers.peer cannot be used with devices: leave it out")
    wanted = validated(TenantPlaces, {"tenants": raw["tenants"]}, path).tenants
    named = {one.name: _known(one, sections, path) for one in wanted}
    file = MachineFile(raw, path, {}, sections, named, several.placement, common)
    every = (file.part(device, named) for device in sections)
    devices = {part.name: made(part.raw, part.path, here).device for part in every}
    return file._replace(devices=devices)


def names_machines(raw: Mapping[Any, Any]) -> bool:
    """True if a device of the file has a machine: `mirage serve --cluster` serves it."""
    devices = raw.get("devices")
    return isinstance(devices, list) and any(
        isinstance(one, dict) and MACHINE in one for one in devices
    )


def without_machines(raw: Mapping[Any, Any], path: Path) -> tuple[dict[Any, Any], dict[str, str]]:
    """File without the machines of its devices, and the machine of each device. The `index` of a
    GPU is replaced by its place in the list.

    Raises `ConfigError` for devices that are no list, or a device without a machine.
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


def _listed(raw: Mapping[Any, Any], path: Path, gpus: Sequence[int]) -> Any:
    """Sections of all devices as they are written; with ``devices: all``, those of `gpus`, made of
    the section `device`. Raises `ConfigError` for keys that do not go together, or if `gpus` is
    empty then."""
    if raw["devices"] != ALL:
        if "device" in raw:
            raise ConfigError(
                f"{path}: device and devices are both written: write only one of them"
            )
        return raw["devices"]
    if not isinstance(section := raw.get("device"), dict) or section.get("kind") != "cuda":
        raise ConfigError(
            f"{path}: devices: all needs a section device with kind: cuda: describe one GPU there"
        )
    if "index" in section:
        raise ConfigError(
            f"{path}: device.index {section['index']}: leave it out, because devices: all takes "
            "every GPU"
        )
    if not gpus:
        raise ConfigError(
            f"{path}: devices: all: nvidia-smi lists no GPU here: write a list of devices"
        )
    return [section | {"name": f"gpu{index}", "index": index} for index in gpus]


def _check_devices(devices: Sequence[NamedDevice], path: Path) -> None:
    """Raise `ConfigError` if two devices have one name, or one GPU."""
    names = Counter(one.name for one in devices)
    if (twice := names.most_common(1)[0])[1] > 1:
        raise ConfigError(f"{path}: devices: two are named {twice[0]!r}: give each another name")
    owners: dict[int, str] = {}
    for one in devices:
        if one.kind == "cuda" and (other := owners.setdefault(one.index, one.name)) != one.name:
            raise ConfigError(
                f"{path}: devices: {other!r} and {one.name!r} have the same GPU, index "
                f"{one.index}: give each another index"
            )


def _all_on_one(raw: Mapping[Any, Any], section: Mapping[str, Any]) -> dict[Any, Any]:
    tenants = raw.get("tenants")
    if isinstance(tenants, list):
        tenants = [_without(one, OF_PLACES) if isinstance(one, dict) else one for one in tenants]
    whole = {**_without(raw, {"devices", "placement"}), "device": dict(section)}
    return whole | ({"tenants": tenants} if "tenants" in raw else {})


def _known(one: TenantPlace, devices: Iterable[str], path: Path) -> tuple[str, ...]:
    """Devices that a tenant names. Raises `ConfigError` if the file lacks one of them."""
    known = list(devices)
    for name in one.named:
        if name not in known:
            raise ConfigError(
                f"{path}: tenant {one.name!r}: no device {name!r}: choose from {', '.join(known)}"
            )
    return one.named


def _without(section: Mapping[Any, Any], keys: Iterable[str]) -> dict[Any, Any]:
    return {key: value for key, value in section.items() if key not in set(keys)}
