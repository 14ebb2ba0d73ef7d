"""A file with `devices`, taken apart: one configuration of one device for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ConfigDict, Field, model_validator

from mirage.config import Config, ConfigError, DeviceSection, Strict, made, resolved, validated
from mirage.serve.machine.placing import PlaceWish, TenantPlaced, placed

NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$"
ALL = "all"
OF_THE_FILE = frozenset({"devices", "device", "tenants", "replay"})
"""Keys that a part has not, or not as the file has them."""
OF_PLACES = frozenset({"device", "devices"})
"""Keys of a tenant that say where it is served."""


class NamedDevice(DeviceSection):
    """One of several devices."""

    name: str = Field(pattern=NAME)
    """Name by which tenants and operators know it."""


class DeviceList(Strict):
    """Key `devices` of a file."""

    devices: list[NamedDevice] = Field(min_length=1)


class TenantPlace(Strict):
    """Keys of a tenant that say where it is served; `TenantSection` has all others."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    name: str
    device: str | None = None
    devices: list[str] | None = Field(default=None, min_length=1)
    """More than one: each has an engine of it, a replica."""

    @model_validator(mode="after")
    def _one_key_says_where(self) -> TenantPlace:
        if self.device is not None and self.devices is not None:
            raise ValueError("device and devices: both say where it is served, write one")
        if twice := [name for name, times in Counter(self.devices).items() if times > 1]:
            raise ValueError(f"devices has {twice[0]!r} twice: one engine of it is there")
        return self

    @property
    def named(self) -> tuple[str, ...]:
        """Devices that it names; none leaves that to the placement."""
        return (self.device,) if self.device is not None else tuple(self.devices or ())


class TenantPlaces(Strict):
    """Key `tenants` of a file."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    tenants: list[TenantPlace]


class DevicePart(NamedTuple):
    """One device's part of a file."""

    name: str
    raw: dict[str, Any]
    """Configuration of one device."""
    path: Path
    """Name by which it is spoken of: the file's, and the device's."""


class MachineParts(NamedTuple):
    """A file with several devices."""

    devices: tuple[DevicePart, ...]
    places: dict[str, TenantPlaced]
    """Devices of each tenant, and why."""
    common: Config
    """All tenants as if on the first device: it has what holds for all."""


def machine_parts(
    raw: dict[Any, Any], path: Path, here: Path, gpus: Sequence[int] = ()
) -> MachineParts:
    """Parts of a file at `path`, whose paths are relative to `here`.

    `gpus` are the indexes that ``all`` stands for. Raises `ConfigError` with one line.
    """
    listed = {"devices": _listed(raw, path, gpus)}
    devices = validated(DeviceList, listed, path).devices
    _check_devices(devices, path)
    sections = {one["name"]: _without(one, {"name"}) for one in listed["devices"]}
    common = made(_all_on_one(raw, next(iter(sections.values()))), path, here)
    if common.tiers.peer is not None:
        raise ConfigError(f"{path}: tiers.peer is for one device: leave it out beside devices")
    wanted = validated(TenantPlaces, {"tenants": raw["tenants"]}, path).tenants
    wishes = [_wish(one, common, sections, path) for one in wanted]
    places = placed(list(sections), wishes)
    parts = tuple(_part(raw, *one, places, common, path) for one in sections.items())
    for part in parts:
        made(part.raw, part.path, here)
    return MachineParts(parts, places, common)


def _listed(raw: Mapping[Any, Any], path: Path, gpus: Sequence[int]) -> Any:
    """Sections of all devices, as they are written."""
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
    """Raises `ConfigError` for one that is there twice."""
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
    whole = {**_without(raw, {"devices"}), "device": dict(section)}
    return whole | ({"tenants": tenants} if "tenants" in raw else {})


def _wish(one: TenantPlace, common: Config, devices: Iterable[str], path: Path) -> PlaceWish:
    """Raises `ConfigError` for a device that is none."""
    known = list(devices)
    for name in one.named:
        if name not in known:
            raise ConfigError(
                f"{path}: tenant {one.name!r}: no device {name!r}: choose from {', '.join(known)}"
            )
    return PlaceWish(one.name, common.tenant(one.name).share, one.named)


def _part(
    raw: Mapping[Any, Any],
    name: str,
    section: Mapping[str, Any],
    places: Mapping[str, TenantPlaced],
    common: Config,
    path: Path,
) -> DevicePart:
    """Raises `ConfigError` for a device without a tenant."""
    tenants = [
        _without(one, OF_PLACES) for one in raw["tenants"] if name in places[one["name"]].devices
    ]
    if not tenants:
        raise ConfigError(f"{path}: device {name!r} has no tenant: name it in one, or drop it")
    own = {**_without(raw, OF_THE_FILE), "device": dict(section), "tenants": tenants}
    if (ssd := common.tiers.ssd) is not None:
        folder = str(resolved(ssd.directory, name))
        own["tiers"] = {**raw["tiers"], "ssd": {**raw["tiers"]["ssd"], "directory": folder}}
    return DevicePart(name, own, path.with_name(f"{path.name}#{name}"))


def _without(section: Mapping[Any, Any], keys: Iterable[str]) -> dict[Any, Any]:
    return {key: value for key, value in section.items() if key not in set(keys)}
