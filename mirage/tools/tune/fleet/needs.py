"""Need of each model in a window of requests, and placements that packing proposes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, exp, inf

from mirage.geometry import asleep_bytes, footprint
from mirage.profiles import Hardware, Model
from mirage.protocol import ModelShape
from mirage.simulate.roofline import PS, Roofline, Work

BATCH = 16
"""Requests that share a step of a busy device."""
USABLE = 0.97
"""Part of a device that models may fill with what they are sure of."""
Row = tuple[int, int, int]
"""Arrival in picoseconds, prompt and output tokens."""


@dataclass(frozen=True)
class ModelNeed:
    """Need of one model on one kind of device."""

    name: str
    least: int
    """Bytes with all layers in place and the least KV."""
    asleep: int
    running: float
    """Requests under way on average."""
    busy: float
    """Device-seconds a second, in batches of `BATCH`."""
    kv_bytes: float
    """Bytes of KV that its requests hold on average."""

    def resident(self, sleeps: bool) -> float:
        """Bytes that stay on average, where it `sleeps` while no request of it runs."""
        if not sleeps:
            return self.least
        return self.asleep + (self.least - self.asleep) * (1 - exp(-self.running))


def need(
    name: str,
    model: Model,
    shape: ModelShape,
    hardware: Hardware,
    rows: Sequence[Row],
    seconds: float,
) -> ModelNeed:
    """Need of a model whose requests in so many seconds are `rows`."""
    least, asleep = footprint(shape, 0, shape.min_extents), asleep_bytes(shape)
    if not rows:
        return ModelNeed(name, least, asleep, 0.0, 0.0, 0.0)
    prompt, output = (sum(column) / len(rows) for column in list(zip(*rows, strict=True))[1:])
    line, context = Roofline(model, hardware), prompt + output / 2
    step_s = line.compute_ps(Work(BATCH, round(BATCH * context))) / PS
    prefill_s = line.compute_ps(Work(0, 0, round(prompt), round(prompt * (prompt + 1)))) / PS
    rate = len(rows) / seconds
    running = rate * (prefill_s + output * step_s)
    busy = rate * (prefill_s + output * step_s / BATCH)
    return ModelNeed(name, least, asleep, running, busy, running * context * model.kv_token_bytes)


def replicas(needs: Iterable[ModelNeed], part: float, most: int) -> dict[str, int]:
    """As many of each model as keep each below `part` of a device; at most `most`."""
    return {each.name: min(most, max(1, ceil(each.busy / part))) for each in needs}


def placed(
    needs: Sequence[ModelNeed],
    devices: Sequence[str],
    device_bytes: int,
    counts: Mapping[str, int],
    sleeps: bool,
) -> dict[str, list[str]] | None:
    """Devices of each model: the most pressing first, each where the pressure is least with it.

    The first replicas of all models come before any second one. None if one fits nowhere.
    """
    bins: dict[str, list[ModelNeed]] = {device: [] for device in devices}
    placement: dict[str, list[str]] = {each.name: [] for each in needs}

    def pressure(models: Sequence[ModelNeed]) -> float:
        kv = sum(m.kv_bytes / counts[m.name] for m in models)
        free = device_bytes - sum(m.resident(sleeps) for m in models)
        return max(sum(m.busy / counts[m.name] for m in models), kv / free if free > 0 else inf)

    def weight(m: ModelNeed) -> float:
        return pressure([m])

    for number in range(max(counts.values(), default=0)):
        turn = [m for m in needs if number < counts[m.name]]
        for m in sorted(turn, key=lambda m: (-weight(m), -m.least, m.name)):
            free = [
                device
                for device, others in bins.items()
                if m not in others and _fit([*others, m], device_bytes, sleeps)
            ]
            if not free:
                return None
            device = min(free, key=lambda device: (pressure([*bins[device], m]), device))
            bins[device].append(m)
            placement[m.name].append(device)
    return placement


def _fit(models: Sequence[ModelNeed], device_bytes: int, sleeps: bool) -> bool:
    """True if all may be awake at once; or, where they sleep, each beside the others asleep."""
    if not sleeps:
        return sum(m.least for m in models) <= USABLE * device_bytes
    awake = max(m.least - m.asleep for m in models)
    return sum(m.asleep for m in models) + awake <= USABLE * device_bytes
