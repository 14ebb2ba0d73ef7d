"""The fewest devices that keep the limits at each step, for one window and one kind of device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import ceil, inf
from pathlib import Path
from typing import Any

from mirage import profiles
from mirage.control.placement.facts import PlaceMachine, PlacementFacts
from mirage.control.placement.placed import DevicePlacement
from mirage.control.placement.pressure import Pressures
from mirage.control.placement.proposing import best_fit, greedy, proposals
from mirage.profiles import Model
from mirage.simulate import workload
from mirage.simulate.coming import SimulatedRoster
from mirage.simulate.experiment import Experiment, SimulatedTenant, overridden
from mirage.simulate.fleet.facts import MACHINE, UNLIMITED, place_device, place_model
from mirage.simulate.fleet.load_log import SentRow, WindowRows
from mirage.tools.report.slo import Slo
from mirage.tools.tune.fleet.steps import PARTS, STEPS, SizeStep
from mirage.tools.tune.fleet.trial import NO_LIMIT_MS, enough

MOST = 512
"""Most devices that are tried; a `SizeStep` that needs more has no number."""
Placement = dict[str, list[str]]
Rows = dict[str, list[SentRow]]
DISK_BYTES_S = 2e9


@dataclass(frozen=True)
class AskedWindow:
    """One time window of an experiment: its requests are drawn from `seed`, and last `seconds`.

    `models` has the profile of each model by its name.
    """

    experiment: Experiment
    models: Mapping[str, Model]
    seed: int
    seconds: float

    def tenant(self, name: str) -> SimulatedTenant:
        """The tenant of that name."""
        return self.experiment.tenant(name)

    def max_len(self, tenant: str) -> int:
        """Most tokens of a request to this tenant, prompt and output together."""
        return self.experiment.max_len(tenant, self.models[tenant])

    def rows(self) -> Rows:
        """Requests of each model: arrival in picoseconds, tokens of the prompt, tokens of the
        output."""
        drawn = workload.requests(self, self.seed)
        return {
            name: [(r.arrival, r.prompt, r.output) for r in each] for name, each in drawn.items()
        }


@dataclass(frozen=True)
class CountJob:
    """Job that counts the devices of one kind that a window needs."""

    window: AskedWindow
    before: AskedWindow
    """Window whose requests are known when `window` begins; the last one for the first window."""
    near: Path
    hardware: str
    slo: Slo

    def run(self, begun: Callable[[Any], None] = lambda world: None) -> dict[str, Any]:
        """Fewest devices for each of `STEPS`, None if no number was enough; also the number of the
        window's requests, and of the trials.
        """
        rows = self.window.rows()
        search = _CountSearch(self, rows, self.before.rows())
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
    """Search for the number of devices, step by step."""

    def __init__(self, job: CountJob, rows: Rows, before: Rows) -> None:
        self._job, self._rows, self._rows_before = job, rows, before
        self._hardware = overridden(
            profiles.hardware(job.hardware, job.near), job.window.experiment
        )
        self._alone: dict[str, int] | None = None
        """Number of replicas of each model while models share no device."""
        self._before: int | None = None
        """Devices of the last step that had a number."""
        self._standing: dict[int, Placement | None] = {}
        """Placement that was enough for the previous window, by the number of devices; None if none
        was.
        """
        self.trials = 0

    def fewest(self, step: SizeStep) -> int | None:
        """The fewest devices found for a step; None if no number is enough. Steps must be given in
        order.
        """
        if not step.shared:
            self._before = self._dedicated(step)
            return self._before
        if self._before is None:
            return None
        high = next((n for n in _upwards(self._before) if self._enough(step, n)), None)
        if high is None:
            return None
        low = 0
        while high - low > 1:
            middle = (low + high) // 2
            if self._enough(step, middle):
                high = middle
            else:
                low = middle
        self._before = high
        return high

    def _dedicated(self, step: SizeStep) -> int | None:
        pressures = Pressures(self._facts(self._rows, 1, step))
        weights = {name: pressures.weight(name) for name in self._rows}
        for part in PARTS:
            counts = {
                name: MOST if weight == inf else min(MOST, max(1, ceil(weight / part)))
                for name, weight in weights.items()
            }
            if sum(counts.values()) > MOST:
                return None
            numbers = iter(range(MOST))
            placement = {
                name: [f"d{next(numbers):03}" for _ in range(count)]
                for name, count in counts.items()
            }
            if self._tried(step, next(numbers), placement, self._rows):
                self._alone = counts
                return sum(counts.values())
        return None

    def _enough(self, step: SizeStep, number: int) -> bool:
        """True if some placement on `number` devices keeps the limits."""
        if not step.stands:
            return self._first(step, number, self._rows) is not None
        if number not in self._standing:
            self._standing[number] = self._first(step, number, self._rows_before)
        found = self._standing[number]
        before = self._rows_before if step.moves else None
        return found is not None and self._tried(step, number, found, self._rows, before)

    def _first(self, step: SizeStep, number: int, rows: Rows) -> Placement | None:
        """The first proposed placement that is enough for these requests; None if none is."""
        proposed = self._proposed(step, number, rows)
        return next((each for each in proposed if self._tried(step, number, each, rows)), None)

    def _proposed(self, step: SizeStep, number: int, rows: Rows) -> Iterator[Placement]:
        """Proposed placements of all models, by their loads.

        For requests that are not known yet, placements that leave more room come first.
        """
        assert self._alone is not None
        pressures = Pressures(self._facts(rows, number, step))
        alone = {name: min(count, number) for name, count in self._alone.items() if rows[name]}
        packed = (best_fit(pressures, alone), greedy(pressures, alone))
        seen: list[DevicePlacement] = []
        for each in (*packed, *(proposals(pressures) if step.chosen else ())):
            if each is not None and each not in seen and len(each.by_model) == len(rows):
                seen.append(each)
                if not step.stands:
                    yield each.devices
        if step.stands:
            yield from (each.devices for each in sorted(seen, key=partial(_crowding, pressures)))

    def _tried(
        self,
        step: SizeStep,
        number: int,
        placement: Placement,
        rows: Rows,
        before: Rows | None = None,
    ) -> bool:
        self.trials += 1
        job = self._job
        devices = _names(number)
        args = (placement, step, rows, job.window.seconds, job.slo, before)
        return enough(job.window.experiment, job.near, job.hardware, devices, *args)

    def _facts(self, rows: Rows, number: int, step: SizeStep) -> PlacementFacts:
        """Facts of `number` devices, and of the models with the load of `rows`."""
        job, hardware = self._job, self._hardware
        window, asked = job.window, job.window.experiment
        models = tuple(
            place_model(
                name,
                window.models[name],
                profiles.shape(
                    window.models[name],
                    hardware,
                    asked.limits.block_tokens,
                    window.max_len(name),
                    hardware.memory_bytes,
                    asked.layer_parts,
                ),
                sleeps=step.sleeps,
                start_s=SimulatedRoster().start_s,
                ttft_s=(job.slo.ttft_ms or NO_LIMIT_MS) / 1e3,
                tpot_s=(job.slo.tpot_ms or NO_LIMIT_MS) / 1e3,
            )
            for name in rows
        )
        devices = tuple(place_device(name, hardware) for name in _names(number))
        machines = (PlaceMachine(MACHINE, UNLIMITED, DISK_BYTES_S),)
        load = WindowRows(0, window.seconds, rows).load
        return PlacementFacts(devices, machines, models, (load,))


def _crowding(pressures: Pressures, placement: DevicePlacement) -> float:
    """Sum of squared pressures. It is smallest if load is even and no device is left empty."""
    return sum(pressures.of(placement, each.name) ** 2 for each in pressures.facts.devices)


def _names(number: int) -> list[str]:
    return [f"d{place:03}" for place in range(number)]


def _upwards(first: int) -> Iterator[int]:
    """Ascending numbers of devices to try; a step may need more than the one before it."""
    number = first
    while number <= min(MOST, 2 * first + 2):
        yield number
        number += max(1, number // 8)
