"""Facts for placements: devices of a file with their speeds, models as vLLM describes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mirage import profiles
from mirage.config import Config, DeviceSection, Policy
from mirage.control.placement.facts import (
    DeviceSpeed,
    PlaceDevice,
    PlaceMachine,
    PlacementFacts,
    PlaceModel,
)
from mirage.facts import ModelFacts
from mirage.profiles import Hardware
from mirage.serve.fit.fit import Fit, fit, with_shares
from mirage.serve.machine.section import PlacementSection
from mirage.serve.roster.declared import DISK_BYTES_S, LINK_BYTES_S, bytes_of

MACHINE = "this machine"
HOST_SPEED = DeviceSpeed(80e9, 10e9, 0.005)
"""Speed of about one core of a server's processor."""
GPU_SPEED = DeviceSpeed(400e12, 2.5e12, 0.002)
"""Speed of about an H100, for a GPU that has no profile in the file, and no bundled one."""
WEIGHT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def machine_facts(
    devices: Mapping[str, DeviceSection],
    host_bytes: int,
    models: Sequence[PlaceModel],
) -> PlacementFacts:
    """Facts about one machine, without load. `host_bytes` of host memory are left for masters.

    Raises `ConfigError` for a profile that cannot be read.
    """
    return PlacementFacts(
        tuple(place_device(name, section) for name, section in devices.items()),
        (PlaceMachine(MACHINE, host_bytes, DISK_BYTES_S),),
        tuple(models),
        (),
    )


def place_device(name: str, section: DeviceSection, machine: str = MACHINE) -> PlaceDevice:
    """Device for placement, with the speeds of its profile, else of the bundled profile for the
    GPU's name, else of its kind.

    The GPU of another machine is not asked for its name. Raises `ConfigError` for a profile that
    cannot be read.
    """
    hardware, speed = (
        _hardware(section, here=machine == MACHINE),
        GPU_SPEED if section.kind == "cuda" else HOST_SPEED,
    )
    link = section.link_bytes_per_s
    if hardware is not None:
        step_s = hardware.step_overhead_ms.value / 1e3
        speed = DeviceSpeed(hardware.flop_per_s, hardware.bytes_per_s, step_s)
        link = link or hardware.link_gb_s.value * 1e9
    return PlaceDevice(name, machine, section.memory, speed, link or LINK_BYTES_S)


def _hardware(section: DeviceSection, *, here: bool) -> Hardware | None:
    if section.profile is not None:
        return profiles.hardware(section.profile)
    if section.kind == "host" or not here:
        return None
    from vmm.cuda_device import device_facts

    return profiles.of_device(device_facts(section.index).name)


def place_models(
    config: Config,
    told: Mapping[str, ModelFacts],
    devices: Mapping[str, DeviceSection],
    section: PlacementSection,
    pins: Mapping[str, tuple[str, ...]],
) -> list[PlaceModel]:
    """Models of all tenants, for placement.

    Of a model that vLLM refused, only the share is known. A share in per cent is computed from the
    largest device, so that the model fits where it may go.
    """
    config = with_shares(config, told)
    fits, _ = fit(config, told)
    largest = max(one.memory for one in devices.values())
    found = []
    for tenant in config.tenants:
        own = fits.get(tenant.name)
        least = int(largest * tenant.percent / 100)
        parameters = own.parameter_bytes if own is not None else 0
        asleep = bytes_of(config, tenant, own).asleep if own is not None else 0
        found.append(
            PlaceModel(
                tenant.name,
                parameters,
                least=least,
                asleep=min(least, asleep) if config.policy is Policy.MIRAGE else 0,
                kv_token_bytes=_token_bytes(own, tenant.max_model_len),
                token_flop=2 * parameters / WEIGHT_BYTES[config.dtype],
                ttft_s=section.ttft_s,
                tpot_s=section.tpot_s,
                pins=pins[tenant.name],
            )
        )
    return found


def _token_bytes(fit: Fit | None, tokens: int) -> float:
    """Bytes of KV for each token of the longest request; 0 if `fit` is None."""
    return fit.kv.request_blocks * fit.block_bytes / tokens if fit is not None else 0.0
