"""A placement that changes while simulated devices run: moves, their costs and gains."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.config import ConfigError
from mirage.control.placement.placed import DevicePlacement, Stand
from mirage.control.placement.steps import MoveVerb
from mirage.simulate import workload
from mirage.simulate.batch import SimulatedRequest
from mirage.simulate.engine import Engine
from mirage.simulate.fleet.device import DeviceObserver, PlacedDevice
from mirage.simulate.fleet.facts import FleetFacts
from mirage.simulate.fleet.fleet import Fleet, FleetObserver, LossCause
from mirage.simulate.fleet.judging import (
    LatencyLimits,
    ReplicaPart,
    SimulatedJudge,
    SimulatedVerdicts,
    dealt,
    setup_kinds,
)
from mirage.simulate.fleet.load_log import LoadLog
from mirage.simulate.fleet.run import run_fleet
from mirage.simulate.fleet.schema import FleetExperiment
from mirage.simulate.fleet.setup import FleetSetup
from mirage.simulate.roofline import PS
from mirage.simulate.variants import VARIANTS
from mirage.simulate.world import World
from tests.examples import examples

pytestmark = pytest.mark.pure
MODELS = ("llama-3-8b", "qwen2.5-7b", "opt-6.7b")
QUICK = {"decide_s": 10, "window_s": 10, "windows": 1, "evaluations": 8, "ttft_s": 0.5}


class Seen(FleetObserver):
    """Observer that records the number of answers within limits, and the end of each request."""

    def __init__(self, limits: LatencyLimits) -> None:
        self.limits, self.within, self.late = limits, 0, Counter[tuple[str, int]]()
        self.answered: Counter[tuple[str, int]] = Counter()
        self.missing: Counter[tuple[str, int]] = Counter()

    def of(self, device: PlacedDevice, world: World) -> DeviceObserver:
        return SeenDevice(device, world, self)

    def lost(self, tenant: str, request: SimulatedRequest, cause: LossCause) -> None:
        self.missing[tenant, request.number] += 1


class SeenDevice(DeviceObserver):
    def __init__(self, device: PlacedDevice, world: World, seen: Seen) -> None:
        super().__init__(device, world)
        self.seen = seen

    def finished(self, engine: Engine, request: SimulatedRequest) -> None:
        super().finished(engine, request)
        self.seen.answered[engine.name, request.number] += 1
        self.seen.within += self.seen.limits.kept(request, self.world.now)

    def happened(self) -> None:
        self.world.check()


def moving_setup(moving: dict[str, Any] | None = QUICK, **more: Any) -> FleetSetup:
    written = {
        "title": "moving",
        "hardware": "h100",
        "limits": {"max_model_len": 512},
        "workload": {"arrivals": "poisson", "requests": 2000, "lengths": "short"},
        "roster": {"start_s": 2.0},
        "moving": moving,
    }
    return FleetSetup(FleetExperiment.model_validate({**written, **more}))


def tenants(**rates: float) -> list[dict[str, Any]]:
    return [
        {"name": name, "model": MODELS[place % 3], "rate": rate}
        for place, (name, rate) in enumerate(rates.items())
    ]


def ran(setup: FleetSetup, seed: int = 1) -> tuple[Fleet, Seen]:
    seen = Seen(LatencyLimits.of_seconds(0.5, 0.1))
    fleet = Fleet(setup, VARIANTS["mirage"], seed, observer=seen)
    fleet.run()
    fleet.check()
    return fleet, seen


CROWDED: dict[str, Any] = {
    "devices": ["x", "y"],
    "memory_gib": 40,
    "tenants": tenants(a=60.0, b=60.0, c=0.5),
    "placement": {"a": ["x"], "b": ["x"], "c": ["x"]},
    "workload": {"arrivals": "poisson", "requests": 3000, "lengths": "sharegpt"},
}


@pytest.mark.slow
def test_a_model_moves_from_a_device_that_is_too_busy_and_no_request_is_lost() -> None:
    stays, kept = ran(moving_setup(None, **CROWDED))
    moves, seen = ran(moving_setup(**CROWDED))
    assert moves.mover is not None
    assert stays.mover is None
    assert seen.within > kept.within
    assert seen.answered.total() == kept.answered.total() == 3000
    assert moves.lost == stays.lost
    assert moves.mover.placement.on("y")
    assert moves.mover.loaded > 0


def test_nothing_moves_where_the_simulation_finds_that_all_is_well() -> None:
    setup = moving_setup(
        devices=["x", "y"],
        tenants=tenants(a=20.0, b=8.0),
        placement={"a": ["x"], "b": ["y"]},
    )
    fleet, _ = ran(setup)
    assert fleet.mover is not None
    assert fleet.mover.notes == [] and fleet.mover.done == {}


def test_a_model_whose_device_is_lost_starts_elsewhere_after_what_that_takes() -> None:
    asked: dict[str, Any] = {
        "devices": [{"name": "x", "lost": [{"at_s": 30.0}]}, "y"],
        "tenants": tenants(a=10.0, b=10.0),
        "placement": {"a": ["x"], "b": ["y"]},
    }
    fleet, seen = ran(moving_setup(**asked))
    stays, never = ran(moving_setup(None, **asked))
    assert fleet.mover is not None
    assert fleet.mover.placement.devices == {"a": ["y"], "b": ["y"]}
    assert fleet.mover.done[MoveVerb.START] == 1
    lost = [number for (tenant, number) in seen.missing if tenant == "a"]
    arrivals = {r.number: r.arrival / PS for r in workload.requests(moving_setup(**asked), 1)["a"]}
    away = [arrivals[n] for n in lost if arrivals[n] >= 30.0]
    facts = FleetFacts(moving_setup(**asked), fleet_moving(asked)).of(["y"], ())
    assert facts.start_s("a", "y") <= max(away) - 30.0 + 1.0 < facts.start_s("a", "y") + 4.0
    assert fleet.lost["a"].total() < stays.lost["a"].total() / 4
    assert fleet.lost["b"].total() == 0 and never.missing.total() > 100


def fleet_moving(asked: dict[str, Any]) -> Any:
    return moving_setup(**asked).experiment.moving


@pytest.mark.slow
def test_host_memory_keeps_a_second_copy_away() -> None:
    little = {**QUICK, "host_gib": 48}
    fleet, _ = ran(moving_setup(little, **CROWDED))
    assert fleet.mover is not None
    assert not fleet.mover.placement.on("y")


@pytest.mark.parametrize(("moving", "rates"), [({}, "roster"), (QUICK, "room")])
def test_what_cannot_move_is_refused(moving: dict[str, Any], rates: str) -> None:
    more: dict[str, Any] = {"roster": None} if rates == "roster" else {"memory_gib": 10}
    with pytest.raises(ConfigError, match=rates):
        moving_setup(moving, devices=["x"], tenants=tenants(a=1.0), placement={"a": ["x"]}, **more)


@pytest.mark.slow
def test_figures_tell_what_moved() -> None:
    arithmetic = {**QUICK, "judge": "arithmetic"}
    figures = run_fleet(moving_setup(arithmetic, **CROWDED), "mirage", 1)
    assert figures["placed_starts"] >= 1 and figures["placed_bytes"] > 0
    assert "placed_starts" not in run_fleet(moving_setup(None, **CROWDED), "mirage", 1)


# -- the judge --------------------------------------------------------------------------


def test_the_judge_says_what_a_run_of_each_device_says() -> None:
    setup = moving_setup(
        devices=["x", "y"],
        tenants=tenants(a=60.0, b=30.0),
        placement={"a": ["x"], "b": ["y"]},
        workload={"arrivals": "poisson", "requests": 900, "lengths": "sharegpt"},
    )
    moving = setup.experiment.moving
    assert moving is not None
    log = LoadLog(30 * PS, 30.0, 1)
    for tenant, requests in workload.requests(setup, 1).items():
        for request in requests:
            log.came(tenant, request)
    windows = log.whole(30 * PS)
    facts = FleetFacts(setup, moving).of(["x", "y"], [w.load for w in windows])
    limits = LatencyLimits.of_seconds(0.04, 0.02)
    verdicts = SimulatedVerdicts(setup_kinds(setup.devices, VARIANTS["mirage"]), limits)
    judge = SimulatedJudge(facts, windows, verdicts)
    apart = DevicePlacement.of_names({"a": ["x"], "b": ["y"]})
    found = judge(apart, 0)
    assert {name: each.asked for name, each in found.items()} == {
        name: len(rows) for name, rows in windows[0].rows.items()
    }
    assert 0 < found["a"].within < found["a"].asked
    assert judge(DevicePlacement.of_names({"a": ["y"], "b": ["x"]}), 0) == found
    assert verdicts.runs == 2, "devices alike share what was simulated"
    assert judge(DevicePlacement.of_names({"b": ["x"]}), 0)["a"].within == 0
    both = judge(DevicePlacement.of_names({"a": ["x", "y"]}), 0)
    assert both["a"].within > found["a"].within


@given(
    st.lists(st.floats(0.1, 3.0), min_size=1, max_size=5),
    st.integers(0, 60),
)
@examples(200)
def test_each_row_goes_to_one_replica_and_each_gets_its_part(
    speeds: list[float], count: int
) -> None:
    weights = tuple(speed / sum(speeds) for speed in speeds)
    rows = [(n, 1, 1) for n in range(count)]
    given_to = [
        list(dealt(rows, ReplicaPart("m", Stand.AWAKE, place, weights)))
        for place in range(len(weights))
    ]
    assert sorted(row for each in given_to for row in each) == rows
    for each, weight in zip(given_to, weights, strict=True):
        assert abs(len(each) - weight * count) <= len(weights)


# -- random fleets ----------------------------------------------------------------------


@st.composite
def fleets(draw: st.DrawFn) -> dict[str, Any]:
    """Drawn experiment with few devices, the first of which may be lost for a time, and few models,
    whose loads differ so much that some move.
    """
    names = [f"d{i}" for i in range(draw(st.integers(2, 3)))]
    models = [f"m{i}" for i in range(draw(st.integers(2, 4)))]
    places = st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True)
    at_s = draw(st.floats(1.0, 20.0))
    lost = draw(st.sampled_from([[], [{"at_s": at_s}], [{"at_s": at_s, "back_s": at_s + 8.0}]]))
    rates = {model: draw(st.sampled_from([0.5, 8.0, 50.0])) for model in models}
    return {
        "devices": [{"name": names[0], "lost": lost}, *names[1:]],
        "memory_gib": draw(st.sampled_from([24, 40])),
        "tenants": tenants(**rates),
        "placement": {model: draw(places) for model in models},
        "workload": {
            "arrivals": "bursty",
            "requests": round(30 * sum(rates.values())),
            "lengths": "short",
        },
        "moving": {
            "decide_s": 3,
            "window_s": 3,
            "windows": 2,
            "evaluations": 12,
            "ttft_s": 0.1,
            "tpot_s": 0.02,
            "gain": 0.0,
            "gain_per_gib": 0.0,
            "rest_s": 4.0,
            "moves_an_hour": 1000,
            "judge": draw(st.sampled_from(["simulation", "arithmetic"])),
        },
    }


@pytest.mark.slow
@given(asked=fleets(), seed=st.integers(0, 99))
@examples(24)
def test_while_models_move_each_request_is_answered_or_lost_once_and_memory_holds(
    asked: dict[str, Any], seed: int
) -> None:
    setup = moving_setup(**asked)
    fleet, seen = ran(setup, seed)
    drawn = {(t, r.number) for t, each in workload.requests(setup, seed).items() for r in each}
    assert set(seen.answered) | set(seen.missing) == drawn
    assert not set(seen.answered) & set(seen.missing)
    assert set((seen.answered + seen.missing).values()) <= {1}
    if not asked["devices"][0]["lost"]:
        assert not seen.missing
    again, other = ran(setup, seed)
    assert fleet.mover is not None and again.mover is not None
    assert (fleet.mover.notes, seen.within) == (again.mover.notes, other.within)
