"""The machine for which a configuration is explained: a hardware profile, and the reason for its
choice.
"""

from __future__ import annotations

from dataclasses import dataclass

from mirage import profiles
from mirage.config import DeviceSection
from mirage.profiles import Hardware, Sourced, SourcedPositive
from mirage.units import MIB
from vmm.driver import VmmError

BUNDLED = {"GH200": "gh200", "GB200": "gb200", "H200": "h200", "H100": "h100", "A100": "a100"}
"""Bundled profiles by a part of the driver's name of the GPU. GH200 is first, because it contains
H200.
"""
BEHIND_PCIE, WITHOUT_GPU = "h100", "gh200"


@dataclass(frozen=True)
class Machine:
    """A profile, its name or file, and the reason for its choice; the reason is empty if the
    command's option named the profile.
    """

    hardware: Hardware
    name: str
    why: str


def machine(named: str | None, device: DeviceSection) -> Machine:
    """The profile `named`, else that of `device`, else a bundled one: `host` for `device.kind`
    host, otherwise the nearest to the GPU.

    A link that the configuration imitates (`device.link_gb_s`) replaces the profile's, unless
    `named` is given.
    Raises `ConfigError` if the profile is unknown or invalid.
    """
    if named is not None:
        return Machine(profiles.hardware(named), named, "")
    if device.profile is not None:
        name, why = device.profile, "device.profile"
    elif device.kind == "host":
        name, why = "host", "of the bundled ones, the one that was measured on a host"
    else:
        name, why = nearest(_gpu(device.index))
    hardware = profiles.hardware(name)
    if device.link_gb_s is None:
        return Machine(hardware, name, why)
    link = SourcedPositive(value=device.link_gb_s, source="device.link_gb_s")
    slowed = hardware.model_copy(update={"link_gb_s": link, "link_mixed_gb_s": link})
    return Machine(slowed, name, f"{why}, with the link of device.link_gb_s")


def nearest(gpu: str | None) -> tuple[str, str]:
    """The bundled profile for a GPU of that name, or for no GPU if it is None, and the reason.
    Pure.
    """
    if gpu is None:
        return WITHOUT_GPU, "taken for device.kind cuda, since no GPU is here"
    for part, name in BUNDLED.items():
        if part in gpu.upper():
            return name, f"for the {gpu} that is here"
    why = f"no bundled profile is of this machine's {gpu}: mirage profile measures it"
    return BEHIND_PCIE, why


def _gpu(index: int) -> str | None:
    """The driver's name of a GPU; None if there is no driver, or no GPU of that index."""
    try:
        from vmm.cuda_device import device_facts

        return device_facts(index).name
    except (ImportError, VmmError):
        return None


def as_configured(hardware: Hardware, page_bytes: int) -> Hardware:
    """The profile with the configuration's page size, and nothing reserved: `device.memory` holds
    parameters and KV alone.
    """
    page = SourcedPositive(value=page_bytes / MIB, source="device.page")
    nothing = Sourced(value=0, source="device.memory leaves it out")
    return hardware.model_copy(update={"page_mib": page, "reserved_mb": nothing})
