"""Bins of a packing: the demand on each device in each window, summed over its replicas."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from mirage.control.placement.pressure import DeviceWant, Pressures


class Bins:
    """Bins, one for each device. A model's replicas get equal parts of its requests."""

    def __init__(self, pressures: Pressures, replicas: Mapping[str, int]) -> None:
        self._pressures, self._replicas = pressures, replicas
        self._windows = range(len(pressures.facts.windows))
        self._sums = {
            each.name: [DeviceWant(0.0, 0.0, 0.0) for _ in self._windows]
            for each in pressures.facts.devices
        }

    def add(self, device: str, model: str) -> None:
        """Place one more replica of a model on a device."""
        self._sums[device] = self._with(device, model)

    def _with(self, device: str, model: str) -> list[DeviceWant]:
        part = 1 / self._replicas[model]
        wants = (self._pressures.want(model, device, w, part) for w in self._windows)
        return [
            DeviceWant(a.kv_bytes + b.kv_bytes, a.busy + b.busy, a.resident + b.resident)
            for a, b in zip(self._sums[device], wants, strict=True)
        ]

    def pressure_with(self, device: str, model: str) -> float:
        """Return the pressure of a device with one more replica of `model`, in the window in which
        it is highest."""
        nbytes = self._pressures.facts.device[device].nbytes
        return max((_pressure(each, nbytes) for each in self._with(device, model)), default=0.0)

    def left_with(self, device: str, model: str, most: float) -> float:
        """Return the part of a device's capacity at pressure `most` that is left with one more
        replica, in the window in which least is left; negative if it does not fit."""
        nbytes = self._pressures.facts.device[device].nbytes
        return min(
            (
                min(1 - each.busy / most, 1 - (each.kv_bytes / most + each.resident) / nbytes)
                for each in self._with(device, model)
            ),
            default=1.0,
        )


def _pressure(want: DeviceWant, nbytes: float) -> float:
    free = nbytes - want.resident
    return max(want.busy, want.kv_bytes / free if free > 0 else inf)
