"""Judge of placements by arithmetic: mean queues and steps of each device in a window.

It stands in for a simulation and knows only means. For each device and window it computes

- steps: models that are active take turns, and a step reads the parameters and the KV of its batch;
- the batch, by Little's law: requests a second, times tokens, times the time of a step;
- memory: KV that the batches want, against what parameters leave, what models that do not run
  lend, and what models that run lend, whose layers then come over the link in each step;
- the wait for a first token: prompts in a queue, and the wake or start.

The time that a request takes alone is taken as fixed; what other requests add has an exponential
distribution.
"""

from __future__ import annotations

from math import exp
from typing import NamedTuple

from mirage.control.placement.alone import AloneTimes, alone
from mirage.control.placement.facts import ModelLoad, PlaceDevice, PlacementFacts, PlaceModel
from mirage.control.placement.judging import ModelVerdict, WindowVerdict
from mirage.control.placement.placed import DevicePlacement, Stand, parts

ROUNDS = 24
"""Rounds of the iteration in which steps and batches are made to agree."""
LEAST_LEFT = 0.02
"""Least part of a device's time that is left for decoding, however many prompts there are."""
LONGEST = 100.0
"""Largest step time, as a multiple of the TPOT limit: beyond it no request is within the limit
anyway."""


class Served(NamedTuple):
    """Part of one model's requests that a device serves in one window."""

    model: PlaceModel
    load: ModelLoad
    arrivals_s: float
    late_s: float
    """Seconds until the device can begin: those of a wake, else 0."""
    times: AloneTimes


class RooflineJudge:
    """Judge of placements by `facts`. Answers are kept for each device."""

    def __init__(self, facts: PlacementFacts) -> None:
        self._facts = facts
        self._known: dict[tuple[str, int, tuple[tuple[str, float, Stand], ...]], list[float]] = {}

    def __call__(self, placement: DevicePlacement, window: int) -> WindowVerdict:
        facts, loads = self._facts, self._facts.windows[window]
        within = {m.name: 0.0 for m in facts.models if loads.requests(m.name) > 0}
        for device in facts.devices:
            there = tuple(
                (name, parts(facts, placement, name).get(device.name, 0.0), stand)
                for name, stand in placement.on(device.name).items()
            )
            key = device.name, window, there
            if key not in self._known:
                self._known[key] = self._judged(device, window, there)
            for (name, part, _), kept in zip(there, self._known[key], strict=True):
                if name in within:
                    within[name] += kept * part * loads.requests(name)
        return {name: ModelVerdict(kept, loads.requests(name)) for name, kept in within.items()}

    def _judged(
        self, device: PlaceDevice, window: int, there: tuple[tuple[str, float, Stand], ...]
    ) -> list[float]:
        """Return, for each model on a device, the part of its requests within limits."""
        served, room = {}, float(device.nbytes)
        for name, part, stand in there:
            model, load = self._facts.model[name], self._facts.windows[window].of(name)
            if stand is Stand.ASLEEP and not part * load.arrivals_s:
                room -= model.asleep
                continue
            late_s = self._facts.wake_s(name, device.name) if stand is Stand.ASLEEP else 0.0
            times = alone(model, load, device)
            served[name] = Served(model, load, load.arrivals_s * part, late_s, times)
        kept = dict(
            zip(served, DeviceWindow(device, room, list(served.values())).kept, strict=True)
        )
        return [kept.get(name, 0.0) for name, _, _ in there]


class DeviceWindow:
    """Requests and times of one device in one window of load."""

    def __init__(self, device: PlaceDevice, room: float, served: list[Served]) -> None:
        """Initialise; `room` is the number of bytes for all models in `served`."""
        self._device, self._room, self._served = device, room, served
        self._prompts = sum(s.arrivals_s * s.times.prefill_s for s in served)
        """Part of the time in which prompts are computed."""

    @property
    def kept(self) -> list[float]:
        """Part of each model's requests within limits, in the order of `served`."""
        alone_s = [s.times.step_s for s in self._served]
        steps = self._steps(alone_s)
        wanted = self._kv_bytes(steps)
        own = self._room - sum(s.model.parameters for s in self._served)
        idle = [exp(-self._running(s, step)) for s, step in zip(self._served, steps, strict=True)]
        own += sum(s.model.lendable * p for s, p in zip(self._served, idle, strict=True))
        active = [s.model.lendable * (1 - p) for s, p in zip(self._served, idle, strict=True)]
        lent = min(sum(active), max(0.0, wanted - own))
        if lent:
            part = lent / sum(active)
            link = self._device.link_bytes_s
            alone_s = [max(a, part * b / link) for a, b in zip(alone_s, active, strict=True)]
            steps = self._steps(alone_s)
            wanted = self._kv_bytes(steps)
        fit = min(1.0, max(0.0, own + lent) / wanted) if wanted > 0 else 1.0
        return [
            fit * self._in_time(s, a, step)
            for s, a, step in zip(self._served, alone_s, steps, strict=True)
        ]

    def _steps(self, alone_s: list[float]) -> list[float]:
        """Return each model's seconds from token to token: all models in turn, with prompts in
        between.

        `alone_s` has the seconds of a step of each model without a batch.
        """
        left = max(LEAST_LEFT, 1 - self._prompts)
        steps = [a + s.times.context_s for a, s in zip(alone_s, self._served, strict=True)]
        for _ in range(ROUNDS):
            batches = [
                s.arrivals_s * s.load.tokens_out * step
                for s, step in zip(self._served, steps, strict=True)
            ]
            runs = [1 - exp(-batch) for batch in batches]
            context = sum(s.times.context_s * b for s, b in zip(self._served, batches, strict=True))
            turn = sum(a * r for a, r in zip(alone_s, runs, strict=True))
            steps = [
                min(
                    LONGEST * s.model.tpot_s,
                    (a + turn - a * r + context + s.times.context_s) / left,
                )
                for s, a, r in zip(self._served, alone_s, runs, strict=True)
            ]
        return steps

    def _running(self, served: Served, step_s: float) -> float:
        """Return the mean number of running requests."""
        request_s = served.times.prefill_s + served.load.tokens_out * step_s
        return served.arrivals_s * request_s

    def _kv_bytes(self, steps: list[float]) -> float:
        """Return the KV bytes that requests hold on average."""
        return sum(
            self._running(s, step) * s.load.tokens * s.model.kv_token_bytes
            for s, step in zip(self._served, steps, strict=True)
        )

    def _in_time(self, served: Served, alone_s: float, step_s: float) -> float:
        """Return the part of the admitted requests that are within both limits."""
        times, model = served.times, served.model
        if not served.arrivals_s:
            return 1.0
        prompts = min(1 - LEAST_LEFT, self._prompts)
        mean_s = self._prompts / sum(s.arrivals_s for s in self._served)
        wait_s = step_s + mean_s * prompts / (1 - prompts)
        first = _within(model.ttft_s, times.prefill_s + served.late_s, wait_s)
        least_s = times.step_s + times.context_s
        return first * _within(model.tpot_s, least_s, max(0.0, step_s - least_s))


def _within(limit_s: float, sure_s: float, more_s: float) -> float:
    """Return the probability that `sure_s` plus an exponential time of mean `more_s` is within a
    limit."""
    if sure_s > limit_s:
        return 0.0
    return 1 - exp(-(limit_s - sure_s) / more_s) if more_s > 0 else 1.0
