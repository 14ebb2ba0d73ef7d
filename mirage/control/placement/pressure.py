"""SLO pressure of a device: KV bytes that requests want, per byte that is free or may be lent.

Prism (arXiv 2505.04021) divides token rates, weighted by limits, by the memory that parameters
leave. Here models also lend: others may have the bytes of a model's parameters less those of its
least grant, which it is sure of while it is awake, times the probability that none of its requests
runs, if each lasted as long as its limits allow. That probability is 1 in a window without requests
of the model. The second measure is compute: device-seconds that are requested in a second. The
pressure is the larger of both measures, in the worst window. Both are weighted more for a model
whose limits are little longer than its times alone on the device.
"""

from __future__ import annotations

from functools import cached_property
from math import exp, inf
from typing import NamedTuple

from mirage.control.placement.alone import AloneTimes, alone
from mirage.control.placement.facts import (
    NO_LOAD,
    LoadWindow,
    ModelLoad,
    PlaceDevice,
    PlacementFacts,
    PlaceModel,
)
from mirage.control.placement.placed import DevicePlacement, Stand, parts

LEAST_SLACK = 0.1
"""Least slack that is used: a smaller one does not raise the weight of a model further."""
MOST_BATCH = 256.0
"""Largest number of requests that share a step, vLLM's default."""


class DeviceWant(NamedTuple):
    """KV bytes, device time and parameter bytes on one device that a part of a model's requests
    needs in one window, on average."""

    kv_bytes: float
    """KV bytes that the model's requests hold on average, divided by the model's slack
    (`AloneTimes.slack`)."""
    busy: float
    """Device-seconds a second, at the largest batches that limits and memory allow, divided by the
    model's slack."""
    resident: float
    """Bytes of the model's parameters that stay on the device, on average; the rest may be lent."""


class Pressures:
    """Pressures of all devices under any placement: the larger of the demand for KV memory and that
    for compute, each divided by what the device has. Computed demands are cached."""

    def __init__(self, facts: PlacementFacts) -> None:
        self.facts = facts
        self._wants: dict[tuple[str, str, int, float], DeviceWant] = {}

    @cached_property
    def largest(self) -> PlaceDevice:
        """Device with the most bytes."""
        return max(self.facts.devices, key=lambda each: (each.nbytes, each.name))

    def want(self, model: str, device: str, window: int, part: float = 1.0) -> DeviceWant:
        """Return the demand on a device that gets `part` (0 to 1) of a model's requests, in the
        window of that number."""
        key = (model, device, window, part)
        if key not in self._wants:
            self._wants[key] = self._made(model, device, self.facts.windows[window], part)
        return self._wants[key]

    def _made(self, name: str, on: str, window: LoadWindow, part: float) -> DeviceWant:
        model, load = self.facts.model[name], window.of(name)
        if load is NO_LOAD or load.arrivals_s <= 0:
            return DeviceWant(0.0, 0.0, model.parameters - model.lendable)
        device = self.facts.device[on]
        times = alone(model, load, device)
        arrivals_s = load.arrivals_s * part
        weight = 1 / max(LEAST_SLACK, times.slack)
        running = arrivals_s * times.request_s
        per_token_s = times.step_s / _batch(model, load, device, times) + times.context_s
        work_s = times.prefill_s + load.tokens_out * per_token_s
        kv_bytes = running * load.tokens * model.kv_token_bytes
        slow = arrivals_s * (model.ttft_s + load.tokens_out * model.tpot_s)
        resident = model.parameters - model.lendable * exp(-slow)
        return DeviceWant(kv_bytes * weight, arrivals_s * work_s * weight, resident)

    def of(self, placement: DevicePlacement, device: str) -> float:
        """Return the pressure of a device in the window of the load in which it is highest.

        That is the larger of two measures: KV bytes wanted per byte available, and device-seconds
        of compute wanted per second. It is infinite if KV memory is wanted and no byte is left for
        it.
        """
        serving = {}
        for model, stand in placement.on(device).items():
            part = parts(self.facts, placement, model).get(device, 0.0)
            if stand is Stand.AWAKE or part:
                serving[model] = part
        asleep = sum(
            self.facts.model[name].asleep for name in placement.on(device) if name not in serving
        )
        room = self.facts.device[device].nbytes - asleep
        return max(
            (
                self._pressure([self.want(m, device, w, p) for m, p in serving.items()], room)
                for w in range(len(self.facts.windows))
            ),
            default=0.0,
        )

    @staticmethod
    def _pressure(wants: list[DeviceWant], room: float) -> float:
        free = room - sum(want.resident for want in wants)
        kv_bytes = sum(want.kv_bytes for want in wants)
        busy = sum(want.busy for want in wants)
        if not kv_bytes:
            return busy
        return max(busy, kv_bytes / free) if free > 0 else inf

    def worst(self, placement: DevicePlacement) -> float:
        """Return the largest pressure of all devices."""
        return max((self.of(placement, each.name) for each in self.facts.devices), default=0.0)

    def weight(self, model: str) -> float:
        """Return the pressure of a model that has the largest device to itself, in the window in
        which it is highest."""
        device = self.largest
        wants = (self.want(model, device.name, w) for w in range(len(self.facts.windows)))
        return max((self._pressure([want], device.nbytes) for want in wants), default=0.0)


def _batch(model: PlaceModel, load: ModelLoad, device: PlaceDevice, times: AloneTimes) -> float:
    """Return the most requests in a step within the TPOT limit and the memory that the model's
    parameters leave, at least 1."""
    in_time = (model.tpot_s - times.step_s) / times.context_s if times.context_s else MOST_BATCH
    request_bytes = load.tokens * model.kv_token_bytes
    free = device.nbytes - model.parameters
    in_memory = free / request_bytes if request_bytes else MOST_BATCH
    return max(1.0, min(MOST_BATCH, in_time, in_memory))
