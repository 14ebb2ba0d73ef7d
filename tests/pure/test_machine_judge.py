"""Decisions on placements by the simulator's core in a server: the question and the answer."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from itertools import count

import msgspec
import pytest
from model_facts import make_facts

from mirage.config import Config, DeviceSection
from mirage.control.placement.deciding import PlacementDecision, Placer
from mirage.control.placement.facts import DeviceSpeed
from mirage.control.placement.placed import DevicePlacement, Stand
from mirage.control.placement.roofline_judge import RooflineJudge
from mirage.control.placement.rules import PlacementPast
from mirage.serve.machine.judge_process import answer_of
from mirage.serve.machine.judge_question import MOST, JudgeQuestion, decided, simulable
from mirage.serve.machine.judge_scenes import judge_scenes, scene_kinds, steps_by_speed
from mirage.serve.machine.model_facts import machine_facts, place_models
from mirage.serve.machine.section import PlacementSection
from mirage.simulate.batch import SimulatedRequest
from mirage.simulate.engine import Engine
from mirage.simulate.fleet.load_log import WindowRows
from mirage.simulate.roofline import PS
from mirage.simulate.world import Observer
from mirage.units import GIB, MIB

pytestmark = pytest.mark.pure

STEP_S = 0.05
"""Seconds of a step of a model that has its device to itself."""
NAMES = ("a", "b", "c")
TOGETHER = DevicePlacement.of_names({"a": ["x"], "b": ["x"], "c": ["y"]})


def never() -> float:
    return 0.0


Rows = dict[str, list[tuple[int, int, int]]]


class SlowMachine:
    """Facts of two devices, each of which takes `STEP_S` to read the parameters of a model of 9
    MiB. Each model has a share of `share` %.
    """

    def __init__(self, share: float = 30, pinned: Collection[str] = ()) -> None:
        self.section = PlacementSection(tpot_s=0.08, ttft_s=30.0, windows=1)
        each = {"model": "/m", "share": share, "max_model_len": 100}
        tenants = [{"name": n, "pinned": n in pinned} | each for n in NAMES]
        config = Config.model_validate({"device": {"memory": "100MiB"}, "tenants": tenants})
        devices = {name: DeviceSection(memory=100 * MIB) for name in ("x", "y")}
        told = dict.fromkeys(NAMES, make_facts())
        models = place_models(config, told, devices, self.section, {"a": ("x",), "b": (), "c": ()})
        facts = machine_facts(devices, GIB, models)
        slow = DeviceSpeed(1e12, 9 * MIB / STEP_S)
        self.facts = replace(facts, devices=tuple(replace(d, speed=slow) for d in facts.devices))
        self.scenes = judge_scenes(config, told, self.facts, devices)

    def question(self, rows: Rows, judge_s: float = 1.0) -> JudgeQuestion:
        """Question to the judge about one window of 20 s, while tenants `a` and `b` are both on
        device `x`.
        """
        windows = (WindowRows(0, 20.0, rows),)
        facts = replace(self.facts, windows=tuple(window.load for window in windows))
        return JudgeQuestion(
            rules=self.section.rules,
            facts=facts,
            windows=simulable(windows, facts, self.scenes),
            scenes=self.scenes,
            present=TOGETHER,
            past=PlacementPast(),
            now=0.0,
            ttft_s=self.section.ttft_s,
            tpot_s=self.section.tpot_s,
            judge_s=judge_s,
        )


def every(gap_s: float, first_s: float = 0.0, output: int = 20) -> list[tuple[int, int, int]]:
    """Requests (arrival in picoseconds, prompt and output tokens) at equal gaps in a window of 20
    s.
    """
    return [(round((n * gap_s + first_s) * PS), 6, output) for n in range(int(20 / gap_s))]


BESIDE = {"a": every(4.0), "b": every(4.0, 0.1)}
"""Requests by tenant; those of both tenants run at the same time, and a step of both takes twice
`STEP_S`.
"""
IN_TURN = {"a": every(4.0), "b": every(4.0, 2.0)}
"""As many requests by tenant, none of which runs beside another."""


def moved(decision: PlacementDecision | None) -> set[tuple[str, str]]:
    assert decision is not None
    return {(step.model, step.device) for step in decision.steps}


# -- the decision -------------------------------------------------------------------------


def test_a_model_moves_away_from_one_that_runs_at_the_same_time() -> None:
    found = decided(SlowMachine().question(BESIDE), never)
    assert moved(found) == {("b", "x"), ("b", "y")}
    assert found is not None and found.placement.awake("b") == ["y"]
    assert found.why == "0.0% of 10 requests within limits before, 100.0% after"


def test_what_means_alone_would_move_stays_where_the_simulation_finds_nothing_better() -> None:
    question = SlowMachine().question(IN_TURN)
    facts = question.facts
    means = Placer(question.rules).decide(
        facts, RooflineJudge(facts), TOGETHER, PlacementPast(), 0.0
    )
    assert moved(means) == {("b", "x"), ("b", "y")}
    found = decided(question, never)
    assert moved(found) == set()
    assert found is not None and found.before is not None and found.before.part == 1.0


def test_an_answer_of_a_process_is_the_decision() -> None:
    question = SlowMachine().question(BESIDE)
    asked = msgspec.msgpack.encode(question)
    again = msgspec.msgpack.decode(asked, type=JudgeQuestion)
    found = decided(again, never)
    assert found == decided(question, never)
    assert answer_of(msgspec.msgpack.encode(found)) == found
    assert answer_of(msgspec.msgpack.encode(None)) is None


# -- time ---------------------------------------------------------------------------------


def looks() -> Callable[[], float]:
    """A clock that advances by a second each time it is read."""
    seconds = count()
    return lambda: float(next(seconds))


def test_without_time_for_the_present_placement_nothing_is_decided() -> None:
    question = SlowMachine().question(BESIDE)
    assert decided(msgspec.structs.replace(question, judge_s=0.5), looks()) is None


def test_with_time_for_the_present_placement_alone_nothing_moves() -> None:
    question = SlowMachine().question(BESIDE)
    enough = next(
        seconds
        for seconds in range(1, 1000)
        if decided(msgspec.structs.replace(question, judge_s=float(seconds)), looks())
    )
    found = decided(msgspec.structs.replace(question, judge_s=float(enough)), looks())
    assert found is not None and not found.steps
    assert found.why.endswith("(time was over after 1 evaluations)")
    assert found.past.settled is None, "it is judged again, though nothing has changed"
    later = decided(msgspec.structs.replace(question, judge_s=1000.0), looks())
    assert moved(later) == {("b", "x"), ("b", "y")}


class Ends(Observer):
    """Observer that records the requests that have ended."""

    def __init__(self) -> None:
        self.requests: list[SimulatedRequest] = []

    def finished(self, engine: Engine, request: SimulatedRequest) -> None:
        self.requests.append(request)


# -- what is simulated ----------------------------------------------------------------------


def test_of_a_busy_window_the_last_requests_are_simulated() -> None:
    machine = SlowMachine()
    rows = {"a": every(0.005), "b": every(2.0, 1.0), "gone": every(1.0)}
    (window,) = simulable((WindowRows(0, 20.0, rows),), machine.facts, machine.scenes)
    assert window.seconds == pytest.approx(20 * MOST / 4010)
    assert set(window.rows) == {"a", "b"}, "of the third nobody knows anything"
    every_row = [row for each in window.rows.values() for row in each]
    assert len(every_row) == pytest.approx(MOST, rel=0.01)
    assert all(0 <= at < window.seconds * PS for at, _, _ in every_row)
    assert window.load.of("a").arrivals_s == pytest.approx(200.0, rel=0.01)


def test_devices_that_are_alike_are_simulated_once() -> None:
    scenes = SlowMachine().scenes
    kinds = scene_kinds(scenes, ("x", "y", "z"))
    assert kinds["x"] is kinds["y"] and kinds["z"] is not kinds["x"]
    other = msgspec.structs.replace(scenes["y"], apply_s=1.0)
    kinds = scene_kinds({**scenes, "y": other}, ("x", "y"))
    assert kinds["x"] is not kinds["y"]


def test_a_device_where_a_model_does_not_fit_answers_none_of_its_requests() -> None:
    kind = scene_kinds(SlowMachine().scenes, ("x", "z"))
    asked = {name: [SimulatedRequest(0, 0, 6, 20)] for name in ("a", "huge")}
    stands = {"a": Stand.AWAKE, "huge": Stand.AWAKE}
    assert [engine.name for engine in kind["x"](asked, stands).engines] == ["a"]
    for world in (kind["z"](asked, stands), kind["x"](asked, {"huge": Stand.AWAKE})):
        world.run()
        assert world.engines == []


def test_a_device_where_pinned_models_leave_another_no_room_answers_no_request() -> None:
    machine = SlowMachine(60, pinned=["a", "b"])
    kind = scene_kinds(machine.scenes, ("x",))["x"]
    asked = {name: [SimulatedRequest(0, 0, 6, 20)] for name in ("a", "b", "c")}
    world = kind(asked, dict.fromkeys(asked, Stand.AWAKE))
    world.run()
    assert world.engines == []
    assert [one.name for one in kind(asked, {"a": Stand.AWAKE}).engines] == ["a"]


def test_a_model_that_stands_asleep_is_woken_by_its_first_request() -> None:
    kind = scene_kinds(SlowMachine().scenes, ("x",))["x"]
    firsts = {}
    for stand in Stand:
        world = kind({"a": [SimulatedRequest(0, 0, 6, 2)]}, {"a": stand})
        world.observer = seen = Ends()
        world.run()
        (firsts[stand],) = (one.first for one in seen.requests)
    assert firsts[Stand.ASLEEP] > firsts[Stand.AWAKE] >= STEP_S * PS


def test_a_request_is_no_longer_than_its_model_takes() -> None:
    kind = scene_kinds(SlowMachine().scenes, ("x",))["x"]
    world = kind({"a": [SimulatedRequest(0, 0, 1000, 1000)]}, {"a": Stand.AWAKE})
    world.observer = seen = Ends()
    world.run()
    assert [(one.prompt, one.output) for one in seen.requests] == [(50, 50)]


def test_steps_of_a_device_without_a_profile_follow_from_its_speed() -> None:
    machine = SlowMachine()
    model = machine.facts.model["a"]
    traffic, arithmetic = steps_by_speed(model, DeviceSpeed(1e9, 1e9, 0.002)).compute
    assert traffic[0] == model.parameters * 1000, "picoseconds of a byte"
    assert traffic[1] == traffic[2] == traffic[3] == round(model.kv_token_bytes * 1000)
    assert arithmetic[1] == arithmetic[3] == round(model.token_flop * 1000)
    assert steps_by_speed(model, DeviceSpeed(1e9, 1e9, 0.002)).overhead[0] == PS // 500


def test_a_replica_that_nobody_misses_closes() -> None:
    question = SlowMachine().question({})
    both = TOGETHER.put("b", "y")
    found = decided(msgspec.structs.replace(question, present=both), never)
    assert moved(found) in ({("b", "x")}, {("b", "y")})


def test_what_is_best_for_few_requests_is_judged_again_once_nobody_asks() -> None:
    question = SlowMachine().question({"b": every(4.0)})
    both = TOGETHER.put("b", "y")
    few = PlacementPast(settled=question.facts, placement=both)
    assert few.holds(question.facts, both, question.rules)
    nothing = replace(question.facts, windows=(WindowRows(0, 20.0, {}).load,))
    assert not few.holds(nothing, both, question.rules)
