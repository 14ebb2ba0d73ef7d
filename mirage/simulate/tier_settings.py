"""Tiers of an experiment, and their speed by the machine's hardware profile."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from mirage.config import LARGEST_BYTES, ConfigError, Strict, parse_bytes
from mirage.profiles import Hardware
from mirage.simulate.hierarchy import Speed
from mirage.simulate.roofline import PS
from mirage.tiers.contract import Medium
from mirage.units import GIB, size

Capacity = Annotated[int, BeforeValidator(parse_bytes), Field(ge=0, le=LARGEST_BYTES)]
"""Bytes of a tier; 0 is the same as no tier."""


class SimulatedTier(Strict):
    """A part of a medium, for KV blocks."""

    bytes: Capacity


class SimulatedHostTier(SimulatedTier):
    """A part of host memory, for KV blocks."""

    policy: Literal["lru", "arc"] = "lru"
    """Order in which a tenant's own blocks are evicted, also from a peer."""


class SimulatedTiers(Strict):
    """Tiers for KV blocks that the device has no room for, under the policies that use tiers."""

    peer: SimulatedTier | None = None
    """Idle memory of another GPU."""
    host: SimulatedHostTier | None = None
    ssd: SimulatedTier | None = None
    spill: bool = True
    """True if suspended requests give up KV when a turn ends, where that saves time."""

    @model_validator(mode="after")
    def _a_disk_is_reached_through_host_memory(self) -> SimulatedTiers:
        if self.ssd is not None and self.ssd.bytes and not (self.host and self.host.bytes):
            raise ValueError("ssd needs host memory above it: set tiers.host.bytes as well")
        return self

    @property
    def policy(self) -> str:
        return self.host.policy if self.host else "lru"

    @property
    def bytes(self) -> dict[Medium, int]:
        """Bytes of each medium that is used."""
        named = {medium: getattr(self, medium.value) for medium in Medium}
        return {medium: tier.bytes for medium, tier in named.items() if tier and tier.bytes}


def speeds(tiers: SimulatedTiers | None, hardware: Hardware) -> dict[Medium, Speed]:
    """Speeds of the media that are used. Raises `ConfigError` for a medium that the hardware file
    does not describe, or of which it has less than the tier's bytes.
    """
    return {
        medium: _speed(medium, nbytes, hardware)
        for medium, nbytes in (tiers.bytes if tiers else {}).items()
    }


def _speed(medium: Medium, nbytes: int, hardware: Hardware) -> Speed:
    found = getattr(hardware.tiers, medium.value) if hardware.tiers else None
    if found is None:
        raise ConfigError(
            f"tiers.{medium.value}: the hardware file of {hardware.title!r} does not say how fast "
            f"one is: add tiers.{medium.value} to a copy of it, or leave the tier out"
        )
    most = found.capacity_gib.value
    if nbytes > most * GIB:
        raise ConfigError(
            f"tiers.{medium.value}.bytes {size(nbytes)}: {hardware.title} has {size(most * GIB)}, "
            "lower it"
        )
    latency_ps = round(found.latency_us.value * 1e-6 * PS)
    return Speed(nbytes, found.bandwidth_gb_s.value * 1e9, latency_ps)
