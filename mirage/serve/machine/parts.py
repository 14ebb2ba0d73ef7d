"""Parts of a file with `devices`: a configuration of one device, for any set of tenants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ConfigDict, Field, model_validator

from mirage.config import Config, ConfigError, DeviceSection, Strict, made, resolved, validated
from mirage.serve.machine.section import PlacementSection

NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$"
ALL = "all"
OF_THE_FILE = frozenset({"devices", "device", "tenants", "replay", "placement"})
"""Keys of the file that a part lacks, or has with other values."""
OF_PLACES = frozenset({"device", "devices"})
"""Keys of a tenant that name its devices."""


class NamedDevice(DeviceSection):
    """Section of one of several devices, with its name."""

    name: str = Field(pattern=NAME)
    """Name by which tenants and operators know it."""


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
            raise ValueError("device and devices: both say where it is served, write one")
        if twice := [name for name, times in Counter(self.devices).items() if times > 1]:
            raise ValueError(f"devices has {twice[0]!r} twice: one engine of it is there")
        return self

    @property
    def named(self) -> tuple[str, ...]:
        """Devices that the tenant names; empty leaves the choice to the placement."""
        return (self.device,) if self.device is not None else tuple(self.devices or ())


class TenantPlaces(Strict):
    """Key `tenants` of a file, read only for the places of tenants."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    tenants: list[TenantPlace] = Field(min_length=1)


class DevicePart(NamedTuple):
    """Part of a file that belongs to one device."""

    name: str
    raw: dict[str, Any]
    """Configuration of this device alone."""
    path: Path
    """Name of the part in messages: the file's with the device's."""


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

    `gpus` are the indexes that ``all`` stands for. Raises `ConfigError` with one line.
    """
    keys = {"devices": _listed(raw, path, gpus)} | (
        {"placement": raw["placement"]} if "placement" in raw else {}
    )
    several = validated(OfSeveral, keys, path)
    _check_devices(several.devices, path)
    sections = {one["name"]: dict(one) for one in keys["devices"]}
    common = made(_all_on_one(raw, next(iter(sections.values()))), path, here)
    if common.tiers.peer is not None:
        raise ConfigError(f"{path}: tiers.peer is for one device: leave it out beside devices")
    wanted = validated(TenantPlaces, {"tenants": raw["tenants"]}, path).tenants
    named = {one.name: _known(one, sections, path) for one in wanted}
    file = MachineFile(raw, path, {}, sections, named, several.placement, common)
    every = (file.part(device, named) for device in sections)
    devices = {part.name: made(part.raw, part.path, here).device for part in every}
    return file._replace(devices=devices)


def _listed(raw: Mapping[Any, Any], path: Path, gpus: Sequence[int]) -> Any:
    """Sections of all devices as they are written. Raises `ConfigError`."""
    if raw["devices"] != ALL:
        if "device" in raw:
            raise ConfigError(f"{path}: device and devices: write one of them")
        return raw["devices"]
    if not isinstance(section := raw.get("device"), dict) or section.get("kind") != "cuda":
        raise ConfigError(f"{path}: devices: all is every GPU: describe one in device, kind cuda")
    if "index" in section:
        raise ConfigError(f"{path}: device.index beside devices: all: leave it out")
    if not gpus:
        raise ConfigError(f"{path}: devices: all, and nvidia-smi lists no GPU here: name them")
    return [section | {"name": f"gpu{index}", "index": index} for index in gpus]


def _check_devices(devices: Sequence[NamedDevice], path: Path) -> None:
    """Raise `ConfigError` if two devices have one name, or one GPU."""
    names = Counter(one.name for one in devices)
    if (twice := names.most_common(1)[0])[1] > 1:
        raise ConfigError(f"{path}: devices: two are named {twice[0]!r}: names must differ")
    gpus = Counter(one.index for one in devices if one.kind == "cuda")
    if gpus and (most := gpus.most_common(1)[0])[1] > 1:
        raise ConfigError(f"{path}: devices: two have the GPU {most[0]}: one server has a GPU")


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
