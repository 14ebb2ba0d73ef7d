"""On which machine a configuration is explained: a hardware profile, and why this one."""

from __future__ import annotations

from dataclasses import dataclass

from mirage import profiles
from mirage.config import Device
from mirage.profiles import Hardware, Sourced, SourcedPositive
from mirage.units import MIB

NEAREST = {
    "host": ("host", "of the bundled ones, the one that was measured on a host"),
    "cuda": ("gh200", "taken for device.kind cuda"),
}
"""By `device.kind`: the profile that is taken if none is named, and why."""


@dataclass(frozen=True)
class Machine:
    """A profile, the name or file that it has, and why it was taken; empty if it was asked for."""

    hardware: Hardware
    name: str
    why: str


def machine(named: str | None, device: Device) -> Machine:
    """The profile of that name or file, else the one of `device`, else the nearest to it.

    A link that the configuration imitates replaces the profile's, unless one is named. Raises
    `ConfigError`.
    """
    if named is not None:
        return Machine(profiles.hardware(named), named, "")
    name, why = NEAREST[device.kind]
    if device.profile is not None:
        name, why = device.profile, "device.profile"
    hardware = profiles.hardware(name)
    if device.link_gb_s is None:
        return Machine(hardware, name, why)
    link = SourcedPositive(value=device.link_gb_s, source="device.link_gb_s")
    slowed = hardware.model_copy(update={"link_gb_s": link, "link_mixed_gb_s": link})
    return Machine(slowed, name, f"{why}, with the link of device.link_gb_s")


def as_configured(hardware: Hardware, page_bytes: int) -> Hardware:
    """With the pages of a configuration, whose `device.memory` holds parameters and KV alone."""
    page = SourcedPositive(value=page_bytes / MIB, source="device.page")
    nothing = Sourced(value=0, source="device.memory leaves it out")
    return hardware.model_copy(update={"page_mib": page, "reserved_mb": nothing})
