"""Bytes that a tenant takes of the device in each state, and the time from one to another. Pure."""

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
    """Bytes of the device that one tenant holds, or is kept, in each of its states."""

    awake: int
    """Its share: what it is sure of while it is awake."""
    least: int
    """Bytes with which a wake may begin: the rest of its share comes as others give back."""
    asleep: int
    """Bytes that its process cannot give."""
    start: int
    """While it starts. What is more than its share is borrowed: it goes back once it is ready. One
    that starts hollow, with what it holds asleep, sleeps then."""
    loaded: int
    """Parameters that a wake loads over the link."""
    least_extents: int = 0
    """KV extents for one request of the longest."""

    @property
    def hollow(self) -> bool:
        """True if it starts asleep."""
        return self.start <= self.asleep < self.awake

    @property
    def yields(self) -> int:
        """Bytes that others have of it when it sleeps."""
        return self.awake - self.asleep


def state_bytes(
    spec: TenantSpec, shape: ModelShape, device_bytes: int, rules: Rules, *, hollow: bool = False
) -> StateBytes:
    """Bytes of a tenant whose model has that shape.

    A share need not hold all layers: it holds at least those that may not be given away and the KV
    cache of the longest request. A start takes them all, unless the engine starts `hollow`.
    Raises `DoesNotFitError` for a smaller share.
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
    """A tenant that the device has no room for, even if all others but pinned ones yield."""


def check_served(name: str, own: StateBytes, pinned: Iterable[StateBytes], device: int) -> None:
    """Raises `NeverServedError` with the bytes that are missing; `pinned` are the others' alone."""
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
    """Numbers of tenants that can be awake at the same time, all others asleep."""

    surely: int
    """Number that fits whichever they are."""
    at_most: int
    """Number that fits if they are the smallest."""
    missing: int
    """Bytes by which not even all can be asleep: some are stopped then. Else 0."""


def at_once(every: Iterable[StateBytes], device_bytes: int) -> AtOnce:
    """Numbers that fit on the device."""
    every = list(every)
    free = device_bytes - sum(each.asleep for each in every)
    rising = sorted(each.yields for each in every)
    return AtOnce(_fitting(rising[::-1], free), _fitting(rising, free), max(0, -free))


def _fitting(amounts: list[int], free: int) -> int:
    """Number of the first `amounts` that add up to no more than `free`."""
    return sum(total <= free for total in accumulate(amounts)) if free >= 0 else 0


@dataclass(frozen=True, slots=True)
class SwitchTimes:
    """Seconds that one tenant takes from state to state, with the link to itself."""

    sleep_s: float
    wake_s: float
    stop_s: float
    warm_s: float
    """A start whose weights are in host memory."""
    cold_s: float
    """A start that reads them from the disk."""
    load_s: float = 0.0
    """Seconds of a wake in which the link brings the weights."""
    beside_s: float = 0.0
    """Seconds of a wake beside its weights and memory: messages, the step behind the last layer."""

    def measured(self, sleep_s: float, wake_s: float) -> SwitchTimes:
        """Times by those in which memory was given in a sleep and had in a wake; 0 if unknown.

        Weights are loaded while memory comes, so that a wake takes as long as the slower of both.
        """
        return replace(
            self,
            sleep_s=sleep_s or self.sleep_s,
            wake_s=max(self.load_s, wake_s) + self.beside_s if wake_s else self.wake_s,
        )


@dataclass(frozen=True, slots=True)
class SwitchSpeeds:
    """Speeds of a machine: bytes a second, and seconds beside the bytes."""

    link_bytes_s: float
    disk_bytes_s: float
    sleep_s: float = 0.1
    wake_s: float = 0.05
    stop_s: float = 1.0
    warm_s: float = 5.0
    cold_s: float = 30.0
    copies_out: bool = False
    """True if a sleep copies the weights to host memory, for want of a copy there."""

    def times(self, own: StateBytes) -> SwitchTimes:
        """Seconds of a tenant with those bytes."""
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
