"""Several simulated devices: figures equal to those of one, requests and memory, and failures."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from heapq import merge
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import configs
from mirage.config import ConfigError, read_yaml
from mirage.profiles import hardware
from mirage.simulate import build, workload
from mirage.simulate.batch import SimulatedRequest
from mirage.simulate.engine import Engine
from mirage.simulate.experiment import Experiment, Setup
from mirage.simulate.experiment import load as load_one
from mirage.simulate.fleet.device import DeviceObserver, PlacedDevice
from mirage.simulate.fleet.fleet import Fleet, FleetObserver, LossCause
from mirage.simulate.fleet.loading import load
from mirage.simulate.fleet.routes import ReplicaLoad, ServedRoutes
from mirage.simulate.fleet.run import run_fleet
from mirage.simulate.fleet.schema import FleetExperiment
from mirage.simulate.fleet.setup import FleetSetup
from mirage.simulate.prefix import Prefix
from mirage.simulate.roofline import PS
from mirage.simulate.run import measured, run
from mirage.simulate.variants import VARIANTS
from mirage.simulate.world import World
from tests.examples import examples

pytestmark = pytest.mark.pure

LENGTH = 512
MODELS = ("llama-3-8b", "qwen2.5-7b", "opt-6.7b")
MODES: dict[str, dict[str, Any]] = {
    "together": {},
    "turns": {"mode": "temporal", "turn_s": 1.0},
    "drained": {"mode": "temporal", "turn_s": 1.0, "drain": True},
    "walls": {"isolated": True},
}
TOLD = ("devices", "lost", "retried", *(f"lost_{cause}" for cause in LossCause))
"""Keys of figures that only a run on several devices has."""


def written(**more: Any) -> dict[str, Any]:
    return {
        "title": "fleet",
        "hardware": "h100",
        "limits": {"max_model_len": LENGTH},
        "workload": {"arrivals": "bursty", "requests": 60, "lengths": "short"},
        **more,
    }


def fleet_setup(**more: Any) -> FleetSetup:
    return FleetSetup(FleetExperiment.model_validate(written(**more)))


def tenants(*names: str, rate: float = 6.0, **more: Any) -> list[dict[str, Any]]:
    return [
        {"name": name, "model": MODELS[place % 3], "rate": rate, **more}
        for place, name in enumerate(names)
    ]


def without(figures: dict[str, Any], keys: tuple[str, ...] = TOLD) -> dict[str, Any]:
    """Figures without timelines and without those that only several devices have (`keys`)."""
    kept = {key: value for key, value in figures.items() if key not in (*keys, "timelines")}
    kept["tenants"] = {
        name: {key: value for key, value in each.items() if key not in keys}
        for name, each in figures["tenants"].items()
    }
    return kept


# -- one device -------------------------------------------------------------------------


def both(experiment: Experiment, policy: str, near: Path | None = None) -> tuple[Any, Any]:
    """Figures of an experiment on one device, and on a fleet that has only that device."""
    own = {name: getattr(experiment, name) for name in experiment.model_fields_set}
    fleet = FleetSetup(FleetExperiment(**own, devices=[{"name": "only"}]), near)
    alone = run(Setup(experiment, near), policy, 1)
    return without(alone), without(run_fleet(fleet, policy, 1))


@pytest.mark.parametrize("policy", ["static", "pooled", "mirage", "mirage-tiers"])
@pytest.mark.parametrize("mode", MODES)
def test_one_device_has_the_digits_of_today(mode: str, policy: str) -> None:
    sharing = {"mode": "spatial"} | MODES[mode]
    experiment = Experiment.model_validate(
        written(
            hardware="gh200",
            tenants=tenants("a", "b", "c", share=20),
            sharing=sharing,
            tiers={"host": {"bytes": "2GiB"}},
        )
    )
    alone, fleet = both(experiment, policy)
    assert alone == fleet
    assert alone["completed"] == 60


EXPERIMENTS = sorted(
    path
    for path in (configs.HERE / "experiments").glob("*.yaml")
    if "devices" not in read_yaml(path)
)


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_the_bundled_experiments_have_the_same_digits_as_one_device(path: Path) -> None:
    setup = load_one(path)
    fewer = setup.experiment.workload.model_copy(update={"requests": 120})
    experiment = setup.experiment.model_copy(update={"workload": fewer})
    for name in setup.variants:
        alone, fleet = both(experiment, name.name, path.parent)
        assert alone == fleet


def test_after_a_peak_one_device_has_the_same_digits() -> None:
    peak = {"arrivals": "bursty", "requests": 60, "peak": {"requests": 40, "factor": 2}}
    asked = written(tenants=tenants("a", "b", share=40), workload=peak)
    alone, fleet = both(Experiment.model_validate(asked), "mirage")
    assert alone == fleet
    assert alone["completed"] < 60


@pytest.mark.parametrize("policy", ["static", "mirage"])
@pytest.mark.parametrize("mode", MODES)
def test_requests_that_nobody_knew_of_bring_the_digits_of_those_known(
    mode: str, policy: str
) -> None:
    """Requests are given to the engines at their arrival, or are known to them from the start. The
    figures are equal to the last digit.
    """
    sharing = {"mode": "spatial"} | MODES[mode]
    asked = written(tenants=tenants("a", "b", "c", share=30), sharing=sharing)
    setup = Setup(Experiment.model_validate(asked))
    requests = workload.requests(setup, 1)
    world = build.world(setup, VARIANTS[policy], 1, arrivals={n: iter(()) for n in requests})
    engines = {engine.name: engine for engine in world.engines}
    rows = [[(r.arrival, name, r) for r in each] for name, each in requests.items()]
    for arrival, name, request in merge(*rows, key=lambda row: row[0]):
        world.advance(arrival)
        world.come(engines[name], request, arrival)
    world.run()
    for engine in world.engines:
        engine.tally.flush()
    found = measured(policy, 1, {engine.name: [engine] for engine in world.engines})
    assert without(found) == without(run(setup, policy, 1))


def test_models_apart_have_the_digits_of_devices_apart() -> None:
    """Two devices share no model. The figures of each tenant in the fleet are those of its device
    simulated alone.
    """
    setup = fleet_setup(
        devices=["x", {"name": "y", "hardware": "gh200"}],
        placement={"a": ["x"], "b": ["x"], "c": ["y"]},
        tenants=tenants("a", "b", "c"),
    )
    whole = run_fleet(setup, "mirage", 1)
    for name, device in setup.devices.items():
        drawn = workload.requests(setup, 1)
        world = build.world(device, VARIANTS["mirage"], 1, arrivals=drawn)
        world.run()
        for engine in world.engines:
            engine.tally.flush()
        found = measured("mirage", 1, {engine.name: [engine] for engine in world.engines})
        for tenant, figures in found["tenants"].items():
            assert figures == without(whole)["tenants"][tenant], (name, tenant)


# -- random fleets ----------------------------------------------------------------------


@dataclass
class Seen(FleetObserver):
    """Observer that records answers and losses of each request, and checks the memory of each
    device after every event.
    """

    answered: Counter[tuple[str, int]] = field(default_factory=Counter)
    missing: dict[tuple[str, int], list[LossCause]] = field(default_factory=dict)
    events: int = 0

    def of(self, device: PlacedDevice, world: World) -> DeviceObserver:
        return Looking(device, world, self)

    def lost(self, tenant: str, request: SimulatedRequest, cause: LossCause) -> None:
        self.missing.setdefault((tenant, request.number), []).append(cause)


class Looking(DeviceObserver):
    def __init__(self, device: PlacedDevice, world: World, seen: Seen) -> None:
        super().__init__(device, world)
        self.seen = seen

    def finished(self, engine: Engine, request: SimulatedRequest) -> None:
        super().finished(engine, request)
        self.seen.answered[engine.name, request.number] += 1
        assert self.device.world is self.world, "a lost device answers nothing"
        assert request.arrival < request.first <= self.world.now

    def happened(self) -> None:
        self.seen.events += 1
        self.world.check()


@st.composite
def fleets(draw: st.DrawFn) -> dict[str, Any]:
    """Drawn experiment with up to four devices and five models, each model on one to three devices;
    some devices fail, and some of these come back.
    """
    names = [f"d{i}" for i in range(draw(st.integers(1, 4)))]
    models = [f"m{i}" for i in range(draw(st.integers(1, 5)))]
    places = st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)
    devices = []
    for name in names:
        times = sorted(draw(st.lists(st.floats(0, 12), max_size=4, unique=True)))
        lost = [
            {"at_s": at} | ({} if back is None else {"back_s": back})
            for at, back in zip(times[::2], [*times[1::2], None], strict=False)
        ]
        kind = draw(st.sampled_from(["h100", "gh200"]))
        devices.append({"name": name, "hardware": kind, "lost": lost})
    roster = draw(st.booleans())
    return {
        "devices": devices,
        "placement": {model: draw(places) for model in models},
        "tenants": tenants(*models, rate=draw(st.sampled_from([1.0, 5.0, 40.0]))),
        "workload": {
            "arrivals": draw(st.sampled_from(["poisson", "bursty"])),
            "requests": draw(st.integers(5, 60)),
            "lengths": draw(st.sampled_from(["short", "sharegpt"])),
        },
        **({"roster": {}} if roster else {}),
    }


POLICIES = st.sampled_from(["static", "pooled", "mirage"])


@given(asked=fleets(), policy=POLICIES, seed=st.integers(0, 99))
@examples(120)
def test_every_request_is_answered_or_lost_with_a_cause_and_memory_holds(
    asked: dict[str, Any], policy: str, seed: int
) -> None:
    setup, seen = fleet_setup(**asked), Seen()
    fleet = Fleet(setup, VARIANTS[policy], seed, observer=seen)
    fleet.run()
    fleet.check()
    drawn = {(t, r.number) for t, each in workload.requests(setup, seed).items() for r in each}
    assert set(seen.answered) | set(seen.missing) == drawn
    assert not set(seen.answered) & set(seen.missing)
    assert set(seen.answered.values()) <= {1}
    assert all(len(causes) == 1 for causes in seen.missing.values())
    assert sum(c.total() for c in fleet.lost.values()) == len(seen.missing)
    if not any(device["lost"] for device in asked["devices"]):
        assert not seen.missing
    for device in fleet.devices.values():
        if device.world is not None:
            for engine in device.world.engines:
                engine.queues.check_empty()
                if len(setup.placement[engine.name]) > 1:
                    assert device.in_flight[engine.name] == 0


@given(asked=fleets(), policy=POLICIES, turned=st.randoms(use_true_random=False))
@examples(40)
@pytest.mark.slow
def test_a_seed_gives_one_result_in_whatever_order_devices_stand(
    asked: dict[str, Any], policy: str, turned: Any
) -> None:
    other = {**asked, "devices": list(asked["devices"]), "placement": dict(asked["placement"])}
    turned.shuffle(other["devices"])
    for places in other["placement"].values():
        turned.shuffle(places)
    found = [run_fleet(fleet_setup(**each), policy, 3) for each in (asked, asked, other)]
    assert found[0] == found[1] == found[2]


@given(asked=fleets(), policy=POLICIES)
@examples(40)
def test_many_steps_at_once_give_the_figures_of_single_steps(
    asked: dict[str, Any], policy: str
) -> None:
    setup = fleet_setup(**asked)
    assert run_fleet(setup, policy, 2) == run_fleet(setup, policy, 2, skipping=False)


# -- the router -------------------------------------------------------------------------


def test_a_request_goes_where_the_fewest_are_under_way() -> None:
    request = SimulatedRequest(0, 0, 1, 1)
    loads = [ReplicaLoad("a", 3), ReplicaLoad("b", 1), ReplicaLoad("c", 1)]
    assert ServedRoutes()(request, loads) == 1


def test_a_session_stays_where_it_is_unless_that_is_too_busy() -> None:
    request = SimulatedRequest(0, 0, 1, 1)
    request.prefix = Prefix(b"m", "own", 1, session="talk")
    even = [ReplicaLoad(name, 4) for name in "abc"]
    home = ServedRoutes()(request, even)
    assert all(ServedRoutes()(request, even) == home for _ in range(3))
    busier = [load._replace(in_flight=5 if i == home else 4) for i, load in enumerate(even)]
    assert ServedRoutes()(request, busier) == home
    full = [load._replace(in_flight=40 if i == home else 4) for i, load in enumerate(even)]
    assert ServedRoutes()(request, full) != home


def test_replicas_share_a_load_that_is_too_much_for_one() -> None:
    asked = {"tenants": tenants("a", rate=60.0), "devices": ["x", "y"]}
    one = run_fleet(fleet_setup(**asked, placement={"a": ["x"]}), "static", 1)
    two = run_fleet(fleet_setup(**asked, placement={"a": ["x", "y"]}), "static", 1)
    each = [figures["completed"] for figures in two["devices"].values()]
    assert sum(each) == 60
    assert min(each) > 20
    assert two["mean_e2el_ms"] < one["mean_e2el_ms"]


def test_a_route_is_told_what_is_under_way_at_the_replicas_that_are_there() -> None:
    told: list[list[ReplicaLoad]] = []

    def last(request: SimulatedRequest, replicas: Any) -> int:
        told.append(list(replicas))
        return len(replicas) - 1

    devices = ["x", {"name": "y", "lost": [{"at_s": 0.0}]}, "z"]
    setup = fleet_setup(
        tenants=tenants("a", rate=100.0), devices=devices, placement={"a": ["z", "y", "x"]}
    )
    Fleet(setup, VARIANTS["static"], 1, route=last).run()
    assert all([load.device for load in loads] == ["x", "z"] for loads in told)
    assert told[0] == [("x", 0), ("z", 0)]
    assert told[5][1].in_flight > 0
    assert all(load.in_flight == 0 for loads in told for load in loads if load.device == "x")


# -- what fails -------------------------------------------------------------------------


@cache
def failing(back_s: float | None, replicas: int = 1) -> tuple[Fleet, Seen]:
    """A fleet that has run. The first device of model `a` was lost after 2 s of its 6 s of
    requests, and came back at `back_s` or never (None).
    """
    names = [f"d{i}" for i in range(replicas)]
    lost = {"at_s": 2.0} if back_s is None else {"at_s": 2.0, "back_s": back_s}
    setup = fleet_setup(
        tenants=tenants("a", rate=10.0),
        devices=[{"name": "d0", "lost": [lost]}, *names[1:]],
        placement={"a": names},
        workload={"arrivals": "poisson", "requests": 60, "lengths": "short"},
    )
    seen = Seen()
    fleet = Fleet(setup, VARIANTS["mirage"], 1, observer=seen)
    fleet.run()
    return fleet, seen


def arrivals_s() -> list[float]:
    setup = failing_setup()
    return [r.arrival / PS for r in workload.requests(setup, 1)["a"]]


def failing_setup() -> FleetSetup:
    return fleet_setup(
        tenants=tenants("a", rate=10.0),
        devices=["d0"],
        workload={"arrivals": "poisson", "requests": 60, "lengths": "short"},
    )


def test_a_device_that_stays_away_loses_what_it_had_and_what_comes() -> None:
    fleet, seen = failing(None)
    came_later = sum(arrival >= 2.0 for arrival in arrivals_s())
    causes = fleet.lost["a"]
    assert causes[LossCause.NO_REPLICA] == came_later
    assert causes[LossCause.DEVICE] > 0
    assert len(seen.answered) == 60 - came_later - causes[LossCause.DEVICE]


def test_a_device_that_is_back_serves_what_comes_then() -> None:
    fleet, seen = failing(4.0)
    away = sum(2.0 <= arrival < 4.0 for arrival in arrivals_s())
    assert fleet.lost["a"][LossCause.NO_REPLICA] == away > 0
    answered = {number for _, number in seen.answered}
    assert {n for n, arrival in enumerate(arrivals_s()) if arrival >= 4.0} <= answered
    assert len(fleet.devices["d0"].engines) == 2
    assert fleet.devices["d0"].engines[1].tally.counters.completed > 0


def test_requests_without_a_token_go_to_another_replica_and_answers_that_began_are_lost() -> None:
    devices = [{"name": "x", "lost": [{"at_s": 1.5}]}, "y"]
    setup = fleet_setup(
        tenants=tenants("a", rate=60.0),
        devices=devices,
        placement={"a": ["x", "y"]},
        workload={"arrivals": "poisson", "requests": 100, "lengths": "sharegpt"},
        limits={"max_model_len": LENGTH, "max_num_seqs": 8},
    )
    seen = Seen()
    fleet = Fleet(setup, VARIANTS["mirage"], 1, observer=seen)
    fleet.run()
    assert fleet.retried["a"] > 0
    assert fleet.lost["a"] == {LossCause.DEVICE: 100 - len(seen.answered)}
    assert fleet.lost["a"][LossCause.DEVICE] > 0


def test_a_request_sent_again_has_waited_since_it_came_first() -> None:
    """A request is lost with its device and sent to another one. Its TTFT counts from its first
    arrival.
    """
    setup = fleet_setup(
        tenants=tenants("a"),
        devices=[{"name": "x", "lost": [{"at_s": 1.001}]}, "y"],
        placement={"a": ["x", "y"]},
    )
    request = SimulatedRequest(0, PS, 200, 10)
    fleet = Fleet(setup, VARIANTS["static"], 1, arrivals={"a": iter([request])})
    fleet.run()
    (tally,) = [e.tally for e in fleet.devices["y"].engines]
    tally.flush()
    assert fleet.retried["a"] == 1
    assert tally.ttft.mean() > 0.001 * PS
    assert tally.ttft.mean() == tally.last_finish - PS - (tally.e2el.mean() - tally.ttft.mean())


# -- the file ---------------------------------------------------------------------------


def test_shares_that_are_left_out_fill_the_device_by_what_is_asked() -> None:
    asked = tenants("a", "b", rate=1.0)
    asked[1]["rate"] = 9.0
    setup = fleet_setup(devices=["x"], tenants=asked)
    shares = {t.name: t.share for t in setup.devices["x"].experiment.tenants}
    assert 99.99 < sum(shares.values()) <= 100
    assert shares["b"] > shares["a"]


def test_devices_may_be_counted() -> None:
    asked = fleet_setup(
        devices=[{"name": "gpu", "count": 11}, {"name": "big", "hardware": "gh200"}],
        tenants=tenants("a", "b"),
        placement={"a": ["gpu-03", "big"], "b": ["gpu-10"]},
    )
    assert list(asked.devices) == ["big", "gpu-03", "gpu-10"]
    assert asked.devices["big"].hardware.title == hardware("gh200").title
    assert list(fleet_setup(devices=1, tenants=tenants("a")).devices) == ["device-0"]


BAD = {
    "is on no device": {"devices": 2, "placement": {"a": ["device-0"]}},
    "no device is named 'z'": {"devices": ["x"], "placement": {"a": ["z"], "b": ["x"]}},
    "stands there twice": {"devices": ["x"], "placement": {"a": ["x", "x"], "b": ["x"]}},
    "placement of 'q': no such tenant": {"devices": ["x"], "placement": {"q": ["x"]}},
    "device name 'x' is used twice": {"devices": ["x", "x"]},
    "models need .* %": {"devices": ["x"], "memory_gib": 24},
    "is not after at_s": {"devices": [{"name": "x", "lost": [{"at_s": 2, "back_s": 1}]}]},
    "was not back": {"devices": [{"name": "x", "lost": [{"at_s": 1}, {"at_s": 2}]}]},
}


@pytest.mark.parametrize("message", BAD)
def test_a_bad_file_gets_one_line(message: str, tmp_path: Path) -> None:
    import yaml

    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump(written(tenants=tenants("a", "b"), **BAD[message])))
    with pytest.raises(ConfigError, match=message) as caught:
        load(path)
    assert "\n" not in str(caught.value)


# -- traces of many models --------------------------------------------------------------

IMAGES = "gmt_create,predict_status,checkpoint_model_version_id\n" + "".join(
    f"2024-11-15 16:57:{second:02},SUCCEED,M{second % 5:04}\n" for second in range(60)
)


def test_a_trace_that_names_models_is_dealt_to_tenants_of_several_devices(tmp_path: Path) -> None:
    (tmp_path / "images.csv").write_text(IMAGES)
    setup = fleet_setup(
        devices=["x", "y"],
        tenants=tenants("a", "b", rate=None),
        placement={"a": ["x", "y"], "b": ["y"]},
        workload={"arrivals": "trace", "file": str(tmp_path / "images.csv")},
    )
    figures = run_fleet(setup, "mirage", 1)
    assert {n: t["completed"] for n, t in figures["tenants"].items()} == {"a": 36, "b": 24}


def test_each_tenant_may_have_a_trace_of_its_own_and_a_window_of_it(tmp_path: Path) -> None:
    (tmp_path / "images.csv").write_text(IMAGES)
    (tmp_path / "chunk-1-trace.csv").write_text("0,0.5,1,Gamma,1,1\n")
    files = {"a": str(tmp_path / "images.csv"), "b": str(tmp_path / "chunk-1-trace.csv")}
    setup = fleet_setup(
        devices=["x", "y"],
        tenants=tenants("a", "b", rate=None),
        placement={"a": ["x"], "b": ["y"]},
        workload={"arrivals": "trace", "files": files, "window": [10, 40]},
    )
    drawn = {name: list(each) for name, each in workload.requests(setup, 1).items()}
    assert len(drawn["a"]) == 30
    assert 5 <= len(drawn["b"]) <= 25
    assert all(r.arrival < 30 * PS for each in drawn.values() for r in each)
    figures = run_fleet(setup, "static", 1)
    assert figures["completed"] == len(drawn["a"]) + len(drawn["b"])
