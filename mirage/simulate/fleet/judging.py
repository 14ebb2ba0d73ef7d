"""A judge of placements by simulation: each device runs its part of a window's requests.

Requests of replicas are dealt by the speed of their devices' memory, without a router. So devices
do not affect each other, and a placement that differs on two devices needs two simulations: earlier
results are kept. A window begins without a queue, and moves cost nothing in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from mirage.control.placement.facts import PlacementFacts
from mirage.control.placement.judging import JudgeOver, ModelVerdict, WindowVerdict
from mirage.control.placement.placed import DevicePlacement, Stand, parts
from mirage.simulate import build
from mirage.simulate.batch import SimulatedRequest
from mirage.simulate.engine import Engine
from mirage.simulate.experiment import Setup
from mirage.simulate.fleet.load_log import SentRow, WindowRows
from mirage.simulate.roofline import PS
from mirage.simulate.variants import Variant
from mirage.simulate.world import Observer, World

BEYOND = 2.0
"""Lengths of a window after which its simulation stops: requests that are left are late in any
case.
"""
LOOK = 256
"""Events between two checks of the time limit."""


class LatencyLimits(NamedTuple):
    """Limits of one request's latencies, in picoseconds."""

    ttft: float
    tpot: float
    """Limit of the mean time of each token after the first."""

    @classmethod
    def of_seconds(cls, ttft_s: float, tpot_s: float) -> LatencyLimits:
        """Limits given in seconds."""
        return cls(ttft_s * PS, tpot_s * PS)

    def kept(self, request: SimulatedRequest, now: int) -> bool:
        """True if a request whose last token comes `now` is within both limits."""
        after = max(1, request.output - 1)
        late = request.first - request.arrival > self.ttft
        return not late and now - request.first <= self.tpot * after


class ReplicaPart(NamedTuple):
    """One model on one device: its state, and its part of the requests of all replicas."""

    model: str
    stand: Stand
    place: int
    """Position among its model's replicas that get requests; -1 if it gets none."""
    weights: tuple[float, ...]
    """Part of the model's requests that each of these replicas gets, in the order of `place`."""


class KindOfDevice(Protocol):
    """Function that makes worlds, simulations of one device with its engines, for all devices of
    one kind."""

    def __call__(
        self, asked: Mapping[str, list[SimulatedRequest]], stands: Mapping[str, Stand]
    ) -> World:
        """A world ready to run. `stands` has the state of each model, the most requested first;
        `asked` the requests of each.
        """


class SetupKind:
    """Maker of worlds of a device of an experiment, under one policy."""

    def __init__(self, setup: Setup, variant: Variant) -> None:
        self._setup, self._variant = setup, variant

    def __call__(
        self, asked: Mapping[str, list[SimulatedRequest]], stands: Mapping[str, Stand]
    ) -> World:
        """A world of this experiment's device, ready to run. `stands` has the state of each model,
        the most requested first; `asked` the requests of each."""
        arrivals = {name: iter(requests) for name, requests in asked.items()}
        return build.world(self._setup, self._variant, 0, arrivals=arrivals, stands=stands)


def setup_kinds(setups: Mapping[str, Setup], variant: Variant) -> dict[str, KindOfDevice]:
    """Makers of worlds by device; devices with the same set-up share one."""
    each = {id(setup): SetupKind(setup, variant) for setup in setups.values()}
    return {name: each[id(setup)] for name, setup in setups.items()}


def never_over() -> bool:
    """Time check of a judge without a time limit: always False."""
    return False


class SimulatedVerdicts:
    """For each window and device, the number of requests within the limits; simulated once and
    kept.
    """

    def __init__(
        self,
        kinds: Mapping[str, KindOfDevice],
        limits: LatencyLimits,
        is_over: Callable[[], bool] = never_over,
    ) -> None:
        """`kinds` has the function that makes a device's worlds, by device; devices with the same
        function share results."""
        self._kinds, self._limits, self._is_over = kinds, limits, is_over
        self._known: dict[int, dict[tuple[int, tuple[ReplicaPart, ...]], Mapping[str, int]]] = {}
        self.runs = 0
        """Number of simulations run so far."""

    def forget(self, before: int) -> None:
        """Discard results of windows numbered below `before`."""
        self._known = {n: known for n, known in self._known.items() if n >= before}

    def within(
        self, device: str, window: WindowRows, there: tuple[ReplicaPart, ...]
    ) -> Mapping[str, int]:
        """Number of each model's requests in `window` that the device serves within the limits, if
        `there` are the models on it.

        Raises `JudgeOver` if a simulation is needed and the time is over.
        """
        kind = self._kinds[device]
        known = self._known.setdefault(window.number, {})
        key = id(kind), there
        if key not in known:
            known[key] = self._simulated(kind, window, there)
        return known[key]

    def _simulated(
        self, kind: KindOfDevice, window: WindowRows, there: tuple[ReplicaPart, ...]
    ) -> Mapping[str, int]:
        rows = {p.model: list(dealt(window.rows.get(p.model, ()), p)) for p in there}
        if not any(rows.values()):
            return {}
        self.runs += 1
        asked = {
            name: [SimulatedRequest(n, *row) for n, row in enumerate(each)]
            for name, each in rows.items()
        }
        popular = sorted(there, key=lambda p: -len(rows[p.model]))
        world = kind(asked, {p.model: p.stand for p in popular})
        world.observer = seen = WithinLimits(world, self._limits, self._is_over)
        world.run(until=round(BEYOND * window.seconds * PS))
        return seen.kept


class WithinLimits(Observer):
    """Observer that counts the requests within limits, by model. It raises `JudgeOver` once the
    judge's time is over."""

    def __init__(
        self, world: World, limits: LatencyLimits, is_over: Callable[[], bool] = never_over
    ) -> None:
        self._world, self._limits, self._is_over = world, limits, is_over
        self._events = 0
        self.kept: Counter[str] = Counter()

    def happened(self) -> None:
        if self._events % LOOK == 0 and self._is_over():
            raise JudgeOver
        self._events += 1

    def finished(self, engine: Engine, request: SimulatedRequest) -> None:
        self.kept[engine.name] += self._limits.kept(request, self._world.now)


class SimulatedJudge:
    """A `PlacementJudge` for `facts`, whose load windows have the requests in `windows`."""

    def __init__(
        self, facts: PlacementFacts, windows: Sequence[WindowRows], verdicts: SimulatedVerdicts
    ) -> None:
        self._facts, self._windows, self._verdicts = facts, windows, verdicts

    def __call__(self, placement: DevicePlacement, window: int) -> WindowVerdict:
        facts, asked = self._facts, self._windows[window]
        gets = {model.name: parts(facts, placement, model.name) for model in facts.models}
        within: Counter[str] = Counter()
        for device in facts.devices:
            there = tuple(
                _part(name, stand, device.name, gets[name])
                for name, stand in placement.on(device.name).items()
            )
            within.update(self._verdicts.within(device.name, asked, there))
        return {
            name: ModelVerdict(float(within[name]), float(len(rows)))
            for name, rows in asked.rows.items()
            if rows
        }


def _part(model: str, stand: Stand, device: str, gets: Mapping[str, float]) -> ReplicaPart:
    if device not in gets:
        return ReplicaPart(model, stand, -1, ())
    return ReplicaPart(model, stand, list(gets).index(device), tuple(gets.values()))


def dealt(rows: Sequence[SentRow], part: ReplicaPart) -> Iterator[SentRow]:
    """Rows that one replica gets: each row goes to the replica that lags most behind its weight."""
    if part.place < 0:
        return
    given = [0] * len(part.weights)
    for number, row in enumerate(rows, 1):
        due = [number * weight - had for weight, had in zip(part.weights, given, strict=True)]
        to = due.index(max(due))
        given[to] += 1
        if to == part.place:
            yield row
