"""Bytes of the device that a tenant takes in each state, and the seconds from one to another.
Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from mirage.control.roster.specs import AUTO, TenantSpec
from mirage.control.rules import Rules
from mirage.control.targets import DoesNotFitError, most_remapped
from mirage.errors import InputRefused
from mirage.geometry import asleep_bytes, footprint
from mirage.protocol import ModelShape


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes of the device that one tenant holds, or that are reserved for it, in each of its
    states."""

    awake: int
    """Bytes of its share, which it is sure of while it is awake."""
    least: int
    """Bytes with which a wake may begin; the other bytes of its share come as others give them
    back."""
    asleep: int
    """Bytes that its process holds while it sleeps, since it cannot give them."""
    start: int
    """Bytes while it starts. Bytes beyond its share are borrowed and go back once it is ready. A
    tenant that starts hollow holds the bytes of a sleeping one, and sleeps then."""
    loaded: int
    """Bytes of parameters that a wake loads over the link."""
    least_extents: int = 0
    """KV extents that a request of the greatest length needs."""

    @property
    def hollow(self) -> bool:
        """True if the tenant starts hollow: with no more bytes than asleep, so that it sleeps once
        it has started."""
        return self.start <= self.asleep < self.awake

    @property
    def yields(self) -> int:
        """Bytes that become free for others when an awake tenant sleeps."""
        return self.awake - self.asleep


def state_bytes(
    spec: TenantSpec, shape: ModelShape, device_bytes: int, rules: Rules, *, hollow: bool = False
) -> StateBytes:
    """Return the bytes of a tenant whose model has this shape.

    A share need not hold all layers: it holds at least those that may not be given away and the KV
    cache of the longest request. Raise `DoesNotFitError` for a smaller share. A start takes all
    layers, unless the engine starts `hollow`.
    """
    whole = footprint(shape, 0, shape.min_extents)
    least = footprint(shape, most_remapped(spec.entitled, shape, rules), shape.min_extents)
    auto = spec.share is AUTO
    awake = whole if auto else spec.entitled.share_bytes(device_bytes)
    if awake < least:
        raise DoesNotFitError(
            f"tenant {spec.name!r} needs {least} bytes to be awake and its share of "
            f"{spec.share:g} % is {awake} bytes: {least - awake} are missing, raise its share"
        )
    asleep = asleep_bytes(shape)
    kept = min(awake, whole) - shape.min_extents * shape.extent_bytes
    start = asleep if hollow else max(awake, whole)
    loaded = kept - shape.fixed_bytes if shape.movable_layers else 0
    return StateBytes(awake, least, asleep, start, loaded, shape.min_extents)


class NeverServedError(InputRefused):
    """Error: the device has no room for a tenant, even if all others but pinned ones yield."""


def check_served(name: str, own: StateBytes, pinned: Iterable[StateBytes], device: int) -> None:
    """Raise `NeverServedError` with the missing bytes if a tenant can never start on a device of
    `device` bytes; `pinned` are the other pinned tenants."""
    held = sum(other.awake for other in pinned)
    most = max(own.start, own.awake)
    if (missing := most + held - device) <= 0:
        return
    beside = f", beside {held} of tenants that are pinned" if held else ""
    raise NeverServedError(
        f"tenant {name!r} can never start: it takes {most} bytes{beside}, and the device has "
        f"{device}: {missing} are missing"
    )


class AtOnce(NamedTuple):
    """Numbers of tenants that can be awake at the same time, with all others asleep, and the bytes
    that are missing if not even all can sleep."""

    surely: int
    """Number that can be awake, whichever tenants they are."""
    at_most: int
    """Number that can be awake if they are the smallest tenants."""
    missing: int
    """Bytes that are missing for all to be asleep, so that some have to be stopped; else 0."""


def at_once(every: Iterable[StateBytes], device_bytes: int) -> AtOnce:
    """Return how many of the tenants can be awake at the same time on a device of
    `device_bytes`."""
    every = list(every)
    free = device_bytes - sum(each.asleep for each in every)
    rising = sorted(each.yields for each in every)
    return AtOnce(_fitting(rising[::-1], free), _fitting(rising, free), max(0, -free))


def _fitting(amounts: list[int], free: int) -> int:
    """Return how many of the first `amounts` add up to no more than `free`."""
    return sum(total <= free for total in accumulate(amounts)) if free >= 0 else 0


@dataclass(frozen=True, slots=True)
class SwitchTimes:
    """Seconds that one tenant takes from state to state, if no other uses the link."""

    sleep_s: float
    wake_s: float
    stop_s: float
    warm_s: float
    """Seconds of a start with the weights in host memory."""
    cold_s: float
    """Seconds of a start that reads the weights from the disk."""
    load_s: float = 0.0
    """Seconds of a wake in which the link loads the weights."""
    beside_s: float = 0.0
    """Seconds of a wake besides weights and memory: messages, and the step after the last layer."""

    def measured(self, sleep_s: float, wake_s: float) -> SwitchTimes:
        """Return the times corrected by measured ones: seconds in which a sleep gave memory and a
        wake got it; 0 if unknown.

        Weights are loaded while memory comes, so a wake takes as long as the slower of both.
        """
        return replace(
            self,
            sleep_s=sleep_s or self.sleep_s,
            wake_s=max(self.load_s, wake_s) + self.beside_s if wake_s else self.wake_s,
        )


@dataclass(frozen=True, slots=True)
class SwitchSpeeds:
    """Speeds of a machine: bytes a second, and fixed seconds that do not depend on the bytes."""

    link_bytes_s: float
    disk_bytes_s: float
    sleep_s: float = 0.1
    wake_s: float = 0.05
    stop_s: float = 1.0
    warm_s: float = 5.0
    cold_s: float = 30.0
    copies_out: bool = False
    """True if a sleep copies the weights to host memory, because host memory has no copy."""

    def times(self, own: StateBytes) -> SwitchTimes:
        """Return the times of a tenant with these bytes."""
        load_s = own.loaded / self.link_bytes_s
        whole_s = (own.loaded + own.asleep) / self.disk_bytes_s
        return SwitchTimes(
            sleep_s=self.sleep_s + (load_s if self.copies_out else 0.0),
            wake_s=self.wake_s + load_s,
            stop_s=self.stop_s,
            warm_s=self.warm_s + load_s,
            cold_s=self.cold_s + max(load_s, whole_s),
            load_s=load_s,
            beside_s=self.wake_s,
        )
