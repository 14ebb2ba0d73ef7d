"""Whole simulated worlds: short of memory, under every policy and every way of sharing.

Each world is run once and watched after every event; the tests look at what was seen.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from random import Random
from typing import Any

import pytest

from benchmarks.swap import SpillRoom
from benchmarks.variants import KNOWN
from mirage import profiles
from mirage.geometry import footprint
from mirage.protocol import Report
from mirage.simulate import build, run, workload
from mirage.simulate.batch import SimulatedRequest
from mirage.simulate.engine import Engine
from mirage.simulate.experiment import Experiment, Peak, Setup
from mirage.simulate.roofline import PS, Streaming, Work
from mirage.simulate.world import Observer, World
from scheduler.sharing import Temporal

pytestmark = pytest.mark.pure
SLOW = pytest.mark.slow

MODES: dict[str, dict[str, Any]] = {
    "together": {"mode": "spatial"},
    "walls": {"mode": "spatial", "isolated": True},
    "turns": {"mode": "temporal", "turn_s": 1.0},
    "drained": {"mode": "temporal", "turn_s": 1.0, "drain": True},
}
LENGTH = 512
TENANTS = {"llama-3-8b": (20, 8.0), "qwen2.5-7b": (2, 6.0), "opt-6.7b": (25, 5.0)}
"""By model: extents beyond the least, and requests a second."""
WORLDS = list(product(MODES, KNOWN))
MOST_REPORTS = 2000
"""Most reports at one moment: a world with more stands still."""

each_world = pytest.mark.parametrize(("mode", "policy"), WORLDS)


def share(model: str, extra: int, length: int = LENGTH, parts: int = 1) -> float:
    """Share in per cent of a GH200 that holds a model, its least KV memory, and `extra` extents."""
    device = profiles.hardware("gh200")
    shape = profiles.shape(profiles.model(model), device, 16, length, device.memory_bytes, parts)
    return footprint(shape, 0, shape.min_extents + extra) / device.memory_bytes * 100 + 1e-5


@cache
def tight(mode: str, requests: int = 60, **workload: Any) -> Setup:
    """Experiment with three models whose shares hold a handful of requests each, and with bursts of
    many requests.
    """
    tenants = [
        {"name": name, "model": name, "share": share(name, extra), "rate": rate}
        for name, (extra, rate) in TENANTS.items()
    ]
    return Setup(
        Experiment.model_validate(
            {
                "title": mode,
                "tenants": tenants,
                "sharing": MODES[mode],
                "limits": {"max_model_len": LENGTH},
                "tiers": {"host": {"bytes": "2GiB"}, "ssd": {"bytes": "4GiB"}},
                "workload": {"requests": requests, "lengths": "short"} | workload,
            }
        ),
        known=KNOWN,
    )


# -- watching ---------------------------------------------------------------------------


@dataclass
class Watch(Observer):
    """Observer that checks what must hold after each event. It keeps the first fault of each kind,
    and the finished requests.
    """

    world: World
    broken: dict[str, str] = field(default_factory=dict)
    done: dict[str, list[tuple[SimulatedRequest, int, int]]] = field(default_factory=dict)
    """Finished requests by engine: request, time of its first token, and time of its last, in
    picoseconds.
    """
    most: Counter[str] = field(default_factory=Counter)
    """The most bytes, layers and extents at any time, by engine."""
    least: dict[str, int] = field(default_factory=dict)
    stepping: int = 0
    """Largest number of engines that stepped at a time."""
    said: Counter[int] = field(default_factory=Counter)
    """Number of reports, by their time in picoseconds."""

    def __post_init__(self) -> None:
        self.done = {engine.name: [] for engine in self.world.engines}
        self.world.observer = self

    def must(self, what: str, true: bool, seen: Any) -> None:
        if not true:
            self.broken.setdefault(what, f"{seen} at {self.world.now_s()} s")

    # -- what the world tells -----------------------------------------------------------

    def finished(self, engine: Engine, request: SimulatedRequest) -> None:
        self.done[engine.name].append((request, request.first, self.world.now))

    def reported(self, engine: Engine, report: Report) -> None:
        now = self.world.now
        self.said[now] += 1
        assert self.said[now] < MOST_REPORTS, f"stands still at {self.world.now_s()} s"
        self._look_at_report(engine, report)

    def began(self, engine: Engine) -> None:
        """Check that a step takes at least its compute time, which it shares with all engines that
        step beside it.
        """
        beside, holding = self._beside(engine), engine.holding
        load = engine.costs.load_ps * (1 + sum(e.streams for e in beside))
        streaming = Streaming(
            holding.layers_remapped, holding.stream_slots, load if holding.layers_remapped else 0
        )
        bounds = engine.costs.roofline.bounds(streaming, 1 + len(beside))
        least = max(bound.at(engine.stepper.work()) for bound in bounds)
        first = engine.stepper.span.first_ps
        self.must("step", first >= least, (engine.name, len(beside), first / 1e9, least / 1e9))

    def happened(self) -> None:
        try:
            self.world.check()
        except Exception as error:
            self.must("memory", False, error)
        for domain in self.world.domains:
            if isinstance(domain.arbiter.sharing, Temporal):
                domain.arbiter.sharing.check()
        self.stepping = max(self.stepping, sum(e.stepping for e in self.world.engines))
        for engine in self.world.engines:
            self._look_at(engine)

    # -- looking ------------------------------------------------------------------------

    def _look_at(self, engine: Engine) -> None:
        name, holding, queues = engine.name, engine.holding, engine.queues
        admitted = [*queues.running, *queues.loading]
        naive = sum(blocks(engine, request) for request in admitted) - queues.reuse.shared
        self.must("blocks", queues.used_blocks == naive, (name, queues.used_blocks, naive))
        room = holding.extents * holding.shape.extent_blocks - 1
        spills = isinstance(engine.room, SpillRoom)
        self.must("room", spills or naive <= room, (name, naive, room))
        batch = [request for request in queues.running if request.joined >= 0]
        parts = [*batch, *queues.prefilling, *queues.held]
        self.must("running", sorted(map(id, parts)) == sorted(map(id, queues.running)), name)
        self.must("batch", len(batch) == queues.batch.size, (name, len(batch), queues.batch.size))
        self._look_at_kept(engine)
        for what, value in (
            ("bytes", holding.held_bytes),
            ("layers_remapped", holding.layers_remapped),
            ("extents", holding.extents),
        ):
            self.most[f"{what} {name}"] = max(self.most[f"{what} {name}"], value)
        least = self.least.get(name, holding.extents)
        self.least[name] = min(least, holding.extents)

    def _look_at_kept(self, engine: Engine) -> None:
        """Check that values which the engine caches equal those computed anew."""
        name, holding, queues = engine.name, engine.holding, engine.queues
        usable = holding.usable_extents * holding.shape.extent_blocks - 1
        self.must("allocatable", holding.blocks == usable, (name, holding.blocks, usable))
        group = engine.limits.group
        lacks = [group.blocks(r.known + 1) - r.blocks for r in [*queues.loading, *queues.waiting]]
        starting = queues.blocks_starting(len(lacks))
        self.must("starting", starting == sum(max(0, n) for n in lacks), (name, starting))
        if engine.stepping or not queues.unfinished:
            event = engine.stepper.span.end if engine.stepping else queues.next_arrival
            self.must("event", engine.next_event == event, (name, engine.next_event, event))

    def _beside(self, engine: Engine) -> list[Engine]:
        """Engines that step at this moment and share compute and link with `engine`."""
        beside = [e for e in self.world.engines if e.stepping and e is not engine]
        return beside if self.world.co_running else []

    def _look_at_report(self, engine: Engine, sent: Report) -> None:
        """Check that the T_c in a report is that of a step that would begin now."""
        co_runners, batch = 1 + len(self._beside(engine)), engine.queues.batch
        work = Work(batch.size, batch.context)
        exact = engine.costs.roofline.compute_ps(work, co_runners) / PS
        exact /= engine.holding.shape.layers
        found = sent.layer_compute_s
        self.must("T_c", found == pytest.approx(exact), (engine.name, co_runners, found, exact))


def blocks(engine: Engine, request: SimulatedRequest) -> int:
    """KV blocks that a request must have, by its tokens alone. One that loads has whole blocks, and
    at least one token left to compute.
    """
    queues, block_tokens = engine.queues, engine.limits.block_tokens
    if request in queues.loading:
        assert request.computed <= request.blocks * block_tokens < request.known
        return request.blocks
    if request.joined < 0 and request not in queues.held:
        return -(-request.known // block_tokens)
    done = queues.batch.steps - request.joined if request.joined >= 0 else 0
    return -(-(request.computed + done) // block_tokens)


@dataclass
class Played:
    figures: dict[str, Any]
    watch: Watch

    @property
    def engines(self) -> list[Engine]:
        return self.watch.world.engines


@cache
def played(mode: str, policy: str) -> Played:
    """Figures of one run of `tight` under a policy, with the checks of its `Watch`."""
    watches: list[Watch] = []
    figures = run.run(tight(mode), policy, 1, begun=lambda world: watches.append(Watch(world)))
    del figures["timelines"]
    return Played(figures, watches[0])


# -- the same result, however it is computed --------------------------------------------


@pytest.mark.slow
@each_world
def test_many_steps_at_once_give_the_figures_of_single_steps(mode: str, policy: str) -> None:
    single = run.run(tight(mode), policy, 1, skipping=False)
    del single["timelines"]
    assert played(mode, policy).figures == single


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("policy", ["swap", "mirage"])
def test_a_seed_gives_one_result(mode: str, policy: str) -> None:
    again = run.run(tight(mode), policy, 1)
    del again["timelines"]
    assert again == played(mode, policy).figures


def test_another_seed_gives_another_result() -> None:
    again = run.run(tight("walls"), "static", 2)
    assert again["mean_ttft_ms"] != played("walls", "static").figures["mean_ttft_ms"]


def peaked(mode: str, requests: int = 50) -> Setup:
    return tight(mode, peak=Peak(requests=requests, factor=1.5))


@pytest.mark.parametrize("policy", ["static", "mirage"])
def test_after_a_peak_the_figures_are_those_of_single_steps_too(policy: str) -> None:
    found = [run.run(peaked("walls"), policy, 1, skipping=skipping) for skipping in (True, False)]
    for figures in found:
        del figures["timelines"]
    assert 0 < found[0]["completed"] < 60
    assert found[0] == found[1]


def test_a_tenant_that_answered_nothing_after_the_peak_took_no_time() -> None:
    world = build.world(peaked("walls"), KNOWN["static"], 1)
    figures = run.metrics(world.engines[:1], start=PS)
    assert (figures["completed"], figures["mean_ttft_ms"]) == (0, None)
    assert figures["duration"] == 0


def test_a_tenant_without_requests_is_idle() -> None:
    tenants = [
        t.model_copy(update={"rate": 1e-6 if t.name == "opt-6.7b" else t.rate})
        for t in tight("together").experiment.tenants
    ]
    setup = Setup(tight("together").experiment.model_copy(update={"tenants": tenants}))
    idle = run.run(setup, "mirage", 1)["tenants"]["opt-6.7b"]
    assert (idle["completed"], idle["steps"], idle["mean_e2el_ms"]) == (0, 0, None)


# -- memory -----------------------------------------------------------------------------


@each_world
def test_memory_is_never_overcommitted(mode: str, policy: str) -> None:
    assert "memory" not in played(mode, policy).watch.broken


@each_world
def test_used_blocks_are_those_of_the_running_requests_and_fit(mode: str, policy: str) -> None:
    broken = played(mode, policy).watch.broken
    assert not broken.keys() & {"blocks", "room", "running", "batch"}, broken


@each_world
def test_what_is_kept_is_what_would_be_found_anew(mode: str, policy: str) -> None:
    broken = played(mode, policy).watch.broken
    assert not broken.keys() & {"allocatable", "starting", "event"}, broken


@each_world
def test_nothing_is_left_behind(mode: str, policy: str) -> None:
    for engine in played(mode, policy).engines:
        engine.queues.check_empty()


@pytest.mark.parametrize("mode", MODES)
def test_static_moves_nothing_and_pooled_no_layers(mode: str) -> None:
    static, pooled = played(mode, "static"), played(mode, "pooled")
    assert static.figures["moves"] == 0
    assert pooled.figures["layers_remapped_max"] == pooled.figures["bytes_streamed"] == 0
    for engine in static.engines:
        kept = engine.holding.extents
        assert static.watch.least[engine.name] == kept
        assert static.watch.most[f"extents {engine.name}"] == kept
    for played_ in (static, pooled):
        for engine in played_.engines:
            assert played_.watch.most[f"layers_remapped {engine.name}"] == 0


@pytest.mark.parametrize("policy", KNOWN)
def test_behind_a_wall_nobody_holds_more_than_its_share(policy: str) -> None:
    setup, watch = tight("walls"), played("walls", policy).watch
    for tenant in setup.experiment.tenants:
        wall = setup.hardware.memory_bytes * tenant.share / 100
        assert 0 < watch.most[f"bytes {tenant.name}"] <= wall


@pytest.mark.parametrize("mode", MODES)
def test_these_worlds_are_short_of_memory(mode: str) -> None:
    """Control: the worlds are so short of memory that `static` preempts often and `mirage` remaps
    layers. Otherwise the other tests would show little.
    """
    assert played(mode, "static").figures["preemptions"] > 10
    assert played(mode, "mirage").figures["layers_remapped_max"] > 0
    assert played(mode, "mirage").figures["preemptions"] < 10


# -- requests ---------------------------------------------------------------------------


@each_world
def test_every_request_completes_and_every_token_counts(mode: str, policy: str) -> None:
    asked, seen = workload.requests(tight(mode), 1), played(mode, policy)
    for name, requests in asked.items():
        expected = [(r.number, r.prompt, r.output) for r in requests]
        finished = [r for r, _, _ in seen.watch.done[name]]
        assert sorted((r.number, r.prompt, r.output) for r in finished) == expected
        figures = seen.figures["tenants"][name]
        assert figures["completed"] == len(expected)
        assert figures["total_input_tokens"] == sum(prompt for _, prompt, _ in expected)
        assert figures["total_output_tokens"] == sum(output for _, _, output in expected)
    assert seen.figures["completed"] == 60


@each_world
def test_no_answer_comes_before_its_question(mode: str, policy: str) -> None:
    least = tight(mode).hardware.step_overhead_ms.value / 1000 * PS
    for finished in played(mode, policy).watch.done.values():
        for request, first, last in finished:
            assert least <= first - request.arrival <= last - request.arrival
            assert last - first >= (request.output - 1) * least


@each_world
def test_gaps_between_tokens_add_up_to_the_time_of_all_tokens(mode: str, policy: str) -> None:
    """The gaps of all finished requests sum to the times from their first tokens to their last;
    TTFTs and end-to-end times are those that the observer saw.
    """
    seen = played(mode, policy)
    for engine in seen.engines:
        finished = seen.watch.done[engine.name]
        gaps, weights = engine.tally.gaps.distribution.sorted()
        total = sum(int(gap) * int(weight) for gap, weight in zip(gaps, weights, strict=True))
        assert sum(weights) == sum(request.output - 1 for request, _, _ in finished)
        assert total == sum(last - first for _, first, last in finished)
        ttft = sorted(first - request.arrival for request, first, _ in finished)
        assert list(engine.tally.ttft.sorted()[0]) == ttft
        e2el = sorted(last - request.arrival for request, _, last in finished)
        assert list(engine.tally.e2el.sorted()[0]) == e2el


# -- time -------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", KNOWN)
@pytest.mark.parametrize("mode", ["turns", "drained"])
def test_in_turns_one_engine_steps_at_a_time(mode: str, policy: str) -> None:
    assert played(mode, policy).watch.stepping == 1


@each_world
def test_no_step_is_shorter_than_its_share_of_the_device_allows(mode: str, policy: str) -> None:
    assert "step" not in played(mode, policy).watch.broken


@each_world
def test_engines_report_the_compute_time_of_their_next_step(mode: str, policy: str) -> None:
    assert "T_c" not in played(mode, policy).watch.broken


@pytest.mark.parametrize("mode", ["together", "walls"])
def test_engines_do_step_beside_each_other(mode: str) -> None:
    assert played(mode, "static").watch.stepping == 3


def test_a_lone_request_takes_as_long_as_the_first() -> None:
    """Two requests come so far apart that each has the device for itself. The TTFT of each is
    exactly its prefill's compute time.
    """
    setup = Setup(
        Experiment.model_validate(
            {
                "title": "two requests",
                "tenants": [{"name": "a", "model": "opt-13b", "share": 90, "rate": 0.001}],
                "workload": {"arrivals": "poisson", "requests": 2},
            }
        )
    )
    world = build.world(setup, KNOWN["static"], 3)
    watch = Watch(world)
    world.run()
    (one, first, _), (other, second, _) = watch.done["a"]
    line = world.engines[0].costs.roofline
    for request, token in ((one, first), (other, second)):
        work = Work(0, 0, request.prompt, request.prompt * (request.prompt + 1))
        assert token - request.arrival == line.compute_ps(work)


@pytest.mark.parametrize("policy", ["pooled", "mirage", "growth-only", "uncapped"])
@pytest.mark.parametrize("mode", MODES)
def test_few_words_are_said_at_a_time(mode: str, policy: str) -> None:
    """Engine and controller exchange at most 60 messages at one moment. No engine asks again and
    again, and none gives and takes for ever.
    """
    world = build.world(tight(mode), KNOWN[policy], 1)
    watch = Watch(world)
    world.run()
    assert max(watch.said.values()) <= 60


# -- any world --------------------------------------------------------------------------


def random_world(seed: int) -> tuple[Setup, str]:
    """Setup and policy drawn by `seed`: small models on small shares, with random values of all
    settings.
    """
    rng = Random(seed)
    mode = rng.choice(list(MODES))
    parts, length = rng.choice([1, 4]), rng.choice([256, 512])
    names = rng.sample(["llama-3-8b", "qwen2.5-7b", "opt-6.7b", "llama-2-7b"], rng.choice([2, 3]))
    tenants = [
        {
            "name": name,
            "model": name,
            "share": share(name, rng.choice([0, 1, 5, 20]), length, parts),
            "rate": rng.choice([2, 6, 15]),
        }
        for name in names
    ]
    raw = {
        "title": f"world {seed}",
        "tenants": tenants,
        "sharing": MODES[mode] | ({"turn_s": 0.3} if "turn_s" in MODES[mode] else {}),
        "limits": {
            "max_model_len": length,
            "max_num_seqs": rng.choice([4, 64]),
            "max_num_batched_tokens": rng.choice([128, 2048]),
        },
        "remap": {
            "lookahead_steps": rng.choice([0, 16]),
            "headroom_extents": rng.choice([0, 2]),
            "slack_extents": rng.choice([0, 4]),
        },
        "layer_parts": parts,
        "layer_sets": rng.choice(["nested", "even"]),
        "report_s": rng.choice([0.05, 3.0]),
        "workload": {
            "arrivals": rng.choice(["bursty", "poisson"]),
            "requests": 40,
            "lengths": rng.choice(["short", "alpaca", "long"]),
        },
    }
    return Setup(Experiment.model_validate(raw)), rng.choice(list(KNOWN))


@pytest.mark.parametrize("message_ps", [0, PS // 5000, PS // 100])
@pytest.mark.parametrize(
    "seed", [*range(5), *(pytest.param(seed, marks=SLOW) for seed in range(5, 16))]
)
def test_any_world_ends_with_all_answered_and_the_same_either_way(
    seed: int, message_ps: int
) -> None:
    setup, policy = random_world(seed)
    found = []
    for skipping in (True, False):
        world = build.world(setup, KNOWN[policy], seed, skipping=skipping)
        world.message_ps = message_ps
        watch = Watch(world)
        world.run()
        for engine in world.engines:
            engine.tally.flush()
        assert not watch.broken.keys() - {"step", "T_c"}, watch.broken
        found.append(run.metrics(world.engines))
    assert found[0] == found[1]
    assert found[0]["completed"] == 40
