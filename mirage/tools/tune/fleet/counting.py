"""The fewest devices that keep the limits at each step, for one window and one kind of device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from mirage import profiles
from mirage.profiles import Model
from mirage.simulate import workload
from mirage.simulate.experiment import Experiment, SimulatedTenant, overridden
from mirage.tools.report.slo import Slo
from mirage.tools.tune.fleet.needs import ModelNeed, Row, need, placed, replicas
from mirage.tools.tune.fleet.steps import PARTS, STEPS, SizeStep
from mirage.tools.tune.fleet.trial import enough

MOST = 512
"""Devices; who needs more gets no number."""
Placement = dict[str, list[str]]


@dataclass(frozen=True)
class AskedWindow:
    """An experiment as far as its requests go, with their models looked up."""

    experiment: Experiment
    models: Mapping[str, Model]
    seed: int
    seconds: float

    def tenant(self, name: str) -> SimulatedTenant:
        """The tenant of that name."""
        return next(t for t in self.experiment.tenants if t.name == name)

    def max_len(self, tenant: str) -> int:
        """Tokens of the longest request."""
        longest, own = self.models[tenant].max_len, self.tenant(tenant).max_model_len
        return min(own or self.experiment.limits.max_model_len or longest, longest)

    def rows(self) -> dict[str, list[Row]]:
        """Requests of each model."""
        drawn = workload.requests(self, self.seed)
        return {
            name: [(r.arrival, r.prompt, r.output) for r in each] for name, each in drawn.items()
        }


@dataclass(frozen=True)
class CountJob:
    """One window on one kind of device."""

    window: AskedWindow
    near: Path
    hardware: str
    slo: Slo

    def run(self, begun: Callable[[Any], None] = lambda world: None) -> dict[str, Any]:
        """Devices by step, None where no number was enough; and requests of the window."""
        rows = self.window.rows()
        search = _CountSearch(self, rows)
        counts: dict[str, int | None] = {}
        for step in STEPS:
            counts[step.name] = search.fewest(step)
        return {
            "hardware": self.hardware,
            "seed": self.window.seed,
            "requests": sum(map(len, rows.values())),
            "devices": counts,
            "trials": search.trials,
        }


class _CountSearch:
    """Counts of devices, step by step."""

    def __init__(self, job: CountJob, rows: Mapping[str, Sequence[Row]]) -> None:
        self._job, self._rows = job, rows
        asked, window = job.window.experiment, job.window
        device = overridden(profiles.hardware(job.hardware, job.near), asked)
        self._bytes = device.memory_bytes
        self._needs = [self._need(t.name, device, window.seconds) for t in asked.tenants]
        self._alone: dict[str, int] | None = None
        """Replicas of each model that has its devices to itself."""
        self._before: int | None = None
        """Devices of the step before."""
        self.trials = 0

    def fewest(self, step: SizeStep) -> int | None:
        """The fewest devices found for a step, which comes after those before it."""
        if not step.shared:
            self._before = self._dedicated(step)
            return self._before
        if self._before is None:
            return None
        least = max(1, ceil(sum(each.busy for each in self._needs)))
        high = next((n for n in _upwards(self._before) if self._enough(step, n)), None)
        if high is None:
            return None
        low = min(least, high) - 1
        while high - low > 1:
            middle = (low + high) // 2
            if self._enough(step, middle):
                high = middle
            else:
                low = middle
        self._before = high
        return high

    def _dedicated(self, step: SizeStep) -> int | None:
        for part in PARTS:
            counts = replicas(self._needs, part, MOST)
            numbers = iter(range(sum(counts.values())))
            placement = {
                name: [f"d{next(numbers):03}" for _ in range(count)]
                for name, count in counts.items()
            }
            if self._tried(step, placement):
                self._alone = counts
                return sum(counts.values())
        return None

    def _enough(self, step: SizeStep, number: int) -> bool:
        """True if some placement on so many devices is enough."""
        return any(self._tried(step, each) for each in self._proposed(step, number))

    def _proposed(self, step: SizeStep, number: int) -> Iterator[Placement]:
        devices = [f"d{place:03}" for place in range(number)]
        assert self._alone is not None
        ways = [{name: min(count, number) for name, count in self._alone.items()}]
        if step.chosen:
            ways += [replicas(self._needs, part, number) for part in PARTS]
        seen: list[Placement] = []
        for counts in ways:
            found = placed(self._needs, devices, self._bytes, counts, step.sleeps)
            if found is not None and found not in seen:
                seen.append(found)
                yield found

    def _tried(self, step: SizeStep, placement: Placement) -> bool:
        self.trials += 1
        job = self._job
        return enough(
            job.window.experiment,
            job.near,
            job.hardware,
            placement,
            step,
            self._rows,
            job.window.seconds,
            job.slo,
        )

    def _need(self, name: str, device: profiles.Hardware, seconds: float) -> ModelNeed:
        window, asked = self._job.window, self._job.window.experiment
        shape = profiles.shape(
            window.models[name],
            device,
            asked.limits.block_tokens,
            window.max_len(name),
            device.memory_bytes,
            asked.layer_parts,
        )
        return need(name, window.models[name], shape, device, self._rows[name], seconds)


def _upwards(first: int) -> Iterator[int]:
    """Numbers to try where a step may need more devices than the one before it."""
    number = first
    while number <= min(MOST, 2 * first + 2):
        yield number
        number += max(1, number // 8)
