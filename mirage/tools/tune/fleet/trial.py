"""Trial of one placement under one policy: a simulation with the requests of a window shows if
nearly all of them keep the limits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mirage.config import ConfigError
from mirage.simulate.batch import SimulatedRequest
from mirage.simulate.coming import SimulatedRoster
from mirage.simulate.engine import Engine
from mirage.simulate.experiment import LEAST_RATE, Experiment, Workload
from mirage.simulate.fleet.device import DeviceObserver, PlacedDevice
from mirage.simulate.fleet.fleet import Fleet, FleetObserver
from mirage.simulate.fleet.load_log import SentRow
from mirage.simulate.fleet.schema import FleetExperiment, SimulatedDevice, SimulatedMoving
from mirage.simulate.fleet.setup import FleetSetup
from mirage.simulate.roofline import PS
from mirage.simulate.variants import VARIANTS
from mirage.simulate.world import World
from mirage.tools.report.slo import Slo
from mirage.tools.tune.fleet.steps import SizeStep
from mirage.tools.tune.goals import CompletedRequest

ENOUGH, ENOUGH_EACH = 0.99, 0.95
"""Part of all requests, and part of each model's, that must keep the limits."""


DECISIONS, PIECES, EVALUATIONS = 10, 5, 20
"""Decisions in a trial, equal parts of it whose loads they use, and placements that each decision
evaluates.
"""
NO_LIMIT_MS = 1e8


class Hopeless(Exception):
    """Too many requests have missed their limits for the placement to be enough."""


class Judge(FleetObserver):
    """Counter of requests that miss the limits; raises `Hopeless` when there are too many. Times
    are picoseconds."""

    def __init__(self, rows: Mapping[str, Sequence[SentRow]], slo: Slo) -> None:
        self.slo, self.missed = slo, Counter[str]()
        self._most = int((1 - ENOUGH) * sum(map(len, rows.values())))
        self._most_each = {name: int((1 - ENOUGH_EACH) * len(each)) for name, each in rows.items()}

    def of(self, device: PlacedDevice, world: World) -> DeviceObserver:
        return JudgedDevice(device, world, self)

    def sees(self, tenant: str, request: SimulatedRequest, now: int) -> None:
        """Judge a finished request. Raises `Hopeless` once too many requests have missed their
        limits.
        """
        after = max(1, request.output - 1)
        took = CompletedRequest(
            (request.first - request.arrival) / PS,
            (now - request.first) / PS / after,
            request.longest / PS,
            (now - request.arrival) / PS,
            request.output,
        )
        if self.slo.met(took):
            return
        self.missed[tenant] += 1
        if self.missed.total() > self._most or self.missed[tenant] > self._most_each[tenant]:
            raise Hopeless


class JudgedDevice(DeviceObserver):
    """Observer of one device that passes each finished request to a `Judge`."""

    def __init__(self, device: PlacedDevice, world: World, judge: Judge) -> None:
        super().__init__(device, world)
        self._judge = judge

    def finished(self, engine: Engine, request: SimulatedRequest) -> None:
        super().finished(engine, request)
        self._judge.sees(engine.name, request, self.world.now)


def enough(
    asked: Experiment,
    near: Path,
    hardware: str,
    devices: Sequence[str],
    placement: Mapping[str, list[str]],
    step: SizeStep,
    rows: Mapping[str, Sequence[SentRow]],
    seconds: float,
    slo: Slo,
    before: Mapping[str, Sequence[SentRow]] | None = None,
) -> bool:
    """True if with this placement on devices of one kind so many requests keep the limits as
    `ENOUGH` and `ENOUGH_EACH` say; False also if it does not fit.

    With `before`, the placement moves, and knows the requests of that earlier window.
    """
    own = {name: getattr(asked, name) for name in Experiment.model_fields}
    rates = {name: max(LEAST_RATE, len(each) / seconds) for name, each in rows.items()}
    own |= {
        "hardware": hardware,
        "roster": SimulatedRoster() if step.sleeps else None,
        "tenants": [t.model_copy(update={"rate": rates[t.name]}) for t in asked.tenants],
        "workload": Workload(arrivals="poisson", requests=1),  # which are given
        "moving": None if before is None else moving(seconds, slo),
    }
    try:
        setup = FleetSetup(
            FleetExperiment(
                **own,
                devices=[SimulatedDevice(name=name) for name in devices],
                placement={name: list(places) for name, places in placement.items()},
            ),
            near,
        )
    except ConfigError:
        return False
    past = None if before is None else _requests(before, -round(seconds * PS))
    fleet = Fleet(
        setup,
        VARIANTS[step.policy],
        0,
        observer=Judge(rows, slo),
        arrivals=_requests(rows),
        past=past,
    )
    try:
        fleet.run()
    except Hopeless:
        return False
    fleet.check()
    return True


def moving(seconds: float, slo: Slo) -> SimulatedMoving:
    """Settings of a placement that moves during a trial of `seconds`.

    Each tenth of the trial it is decided anew, by the load of the last two fifths and the limits of
    `slo`.
    """
    return SimulatedMoving(
        decide_s=seconds / DECISIONS,
        window_s=seconds / PIECES,
        windows=2,
        ttft_s=(slo.ttft_ms or NO_LIMIT_MS) / 1e3,
        tpot_s=(slo.tpot_ms or NO_LIMIT_MS) / 1e3,
        evaluations=EVALUATIONS,
    )


def _requests(
    rows: Mapping[str, Sequence[SentRow]], later: int = 0
) -> dict[str, Iterator[SimulatedRequest]]:
    """Requests of each model, with arrivals shifted by `later` picoseconds."""
    return {
        name: iter(
            [
                SimulatedRequest(number, arrival + later, prompt, output)
                for number, (arrival, prompt, output) in enumerate(each)
            ]
        )
        for name, each in rows.items()
    }
