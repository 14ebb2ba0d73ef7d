"""A simulated request that loads KV blocks from a tier, and then gets blocks for the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from alone import Alone

from mirage.control.demand import lacks_growth
from mirage.control.targets import unnumbered
from mirage.facts import KVGroup
from mirage.protocol import Allotment, ModelShape
from mirage.simulate import run
from mirage.simulate.batch import SimulatedRequest
from mirage.simulate.engine import Engine
from mirage.simulate.experiment import Experiment, Setup
from mirage.simulate.hierarchy import Hit
from mirage.simulate.holding import SimulatedMemory
from mirage.simulate.limits import StepLimits
from mirage.simulate.loads import NoLoads
from mirage.simulate.queues import Queues
from mirage.simulate.reuse import PrefixFound
from mirage.simulate.roofline import NEVER, PS, CostBound, Streaming, Work
from mirage.tiers.contract import Medium

pytestmark = pytest.mark.pure

B = 16
GROUP = KVGroup("full_attention", 40, B, 1 << 20)
SHAPE = ModelShape(40, 100, 50, 30, 1, B, 10**6, 1, 40)
STEP = 1000
"""Picoseconds of any step."""
LIMITS = StepLimits(
    group=GROUP,
    max_num_seqs=1024,
    max_num_batched_tokens=2048,
    elastic=False,
    temporal=False,
    headroom_extents=0,
    lookahead_steps=0,
    kept="nothing",
    report_ps=PS // 5,
    apply_ps=0,
)


class Below(NoLoads):
    """Tier that has `blocks` whole blocks of each request, by the request's number; a load takes
    `takes` picoseconds.
    """

    def __init__(self, blocks: dict[int, int], takes: int) -> None:
        self.blocks, self.takes = blocks, takes
        self.under_way: dict[SimulatedRequest, int] = {}

    def seek(self, request: SimulatedRequest, found: PrefixFound, now: int) -> list[Hit]:
        return [Hit(Medium.HOST, now)] * self.blocks.get(request.number, 0)

    def begin(
        self, request: SimulatedRequest, found: PrefixFound, hits: list[Hit], now: int
    ) -> bool:
        if hits:
            self.under_way[request] = now + self.takes
        return bool(hits)

    def advance(self, now: int) -> list[SimulatedRequest]:
        over = [request for request, end in self.under_way.items() if end <= now]
        for request in over:
            del self.under_way[request]
            request.computed = B * self.blocks[request.number]
        return over

    def next_end(self) -> int:
        return min(self.under_way.values(), default=NEVER)


class Even:
    """Stand-in for a roofline in which all steps take equally long."""

    def bounds(self, streaming: Streaming, co_runners: int) -> tuple[CostBound, ...]:
        return (CostBound(STEP, 0, 0, 0, 0),)

    def compute_ps(self, work: Work, co_runners: int = 1) -> int:
        return STEP

    def added_ps(self, first: int, tokens: int) -> int:
        return 0


class One(Alone):
    """World of one engine whose time is given in steps. With `refusing`, requests for memory are
    refused.
    """

    def __init__(self, *, refusing: bool = False) -> None:
        super().__init__(refusing=refusing)

    def steps(self, engine: Engine, steps: float = 10**6) -> None:
        """Run all events of `engine` within `steps` times the length of a step."""
        self.run(engine, int(steps * STEP))


def request(number: int, prompt: int, output: int, at: int = 0) -> SimulatedRequest:
    return SimulatedRequest(number, at * STEP, prompt, output)


def engine(
    world: One,
    blocks: int,
    requests: list[SimulatedRequest],
    below: dict[int, int],
    takes: float = 0.5,
    **limits: Any,
) -> Engine:
    """An engine with `blocks` KV blocks. `below` has the blocks of each request in the tier, and a
    load takes `takes` steps.
    """
    holding = SimulatedMemory(SHAPE, unnumbered(SHAPE, 0, 1, blocks + 1), lambda before, after: 0)
    chosen: Any = replace(LIMITS, **limits)
    loads, line = Below(below, int(takes * STEP)), Even()
    made: Any = Engine("e", holding, line, PS, chosen, iter(requests), world, loads=loads)  # type: ignore[arg-type]
    return made


def shrink(world: One, made: Engine, blocks: int) -> None:
    """Send an allotment with only `blocks` KV blocks; those in use stay until their requests
    release them.
    """
    holding = made.holding
    target = unnumbered(SHAPE, 0, 1, blocks + 1)
    made.receive(Allotment(**{**_fields(target), "revision": holding.revision + 1}), world.now)


def _fields(allotment: Allotment) -> dict[str, Any]:
    return {field: getattr(allotment, field) for field in Allotment.__struct_fields__}


def finish(world: One, made: Engine, tokens: int) -> None:
    world.steps(made)
    made.queues.check_empty()
    assert made.tally.counters.output_tokens == tokens


def test_a_request_has_blocks_for_what_it_loads_and_runs_once_it_has_the_rest() -> None:
    world = One()
    made = engine(world, 10, [request(0, 100, 5)], {0: 6})
    world.steps(made, 0.1)
    queues = made.queues
    assert (queues.used_blocks, queues.reserved_blocks, len(queues.running)) == (6, 1, 0)
    world.steps(made, 0.6)
    assert (queues.used_blocks, queues.reserved_blocks, len(queues.running)) == (7, 0, 1)
    assert made.stepper.chunks[0][1] == 100 - 96, "the rest of its prompt is computed"
    finish(world, made, 5)


def test_others_may_take_what_it_lacks_and_nobody_is_admitted_past_it() -> None:
    world = One()
    late = request(2, 8, 4, at=7)
    # The first one takes its fourth and last block while the second loads.
    made = engine(world, 10, [request(0, 47, 14), request(1, 100, 5), late], {1: 6}, takes=5)
    queues = made.queues
    world.steps(made, 10)
    loaded = queues.first_loaded
    assert loaded is not None and loaded.number == 1
    assert [r.number for r in queues.running] == [0] and queues.used_blocks == 10
    assert list(queues.waiting) == [late]
    assert made.report().running == 1 and made.report().waiting == 2
    finish(world, made, 23)
    assert loaded.first <= late.first
    assert made.tally.counters.preemptions == 0


def test_a_load_takes_none_of_what_others_lack_that_load() -> None:
    for below, loading in (({0: 3, 1: 4}, [0]), ({0: 3, 1: 3}, [0, 1])):
        world = One()
        made = engine(world, 10, [request(0, 100, 2), request(1, 65, 2)], below)
        world.steps(made, 0.1)
        assert [r.number for r in made.queues.loading] == loading
        finish(world, made, 4)


def test_who_loads_nothing_may_take_it() -> None:
    world = One()
    made = engine(world, 10, [request(0, 100, 2), request(1, 65, 9)], {0: 3}, takes=3)
    world.steps(made, 0.1)
    assert [r.number for r in made.queues.running] == [1] and made.queues.used_blocks == 8
    finish(world, made, 11)


def test_the_newest_loaded_makes_way_where_nothing_runs() -> None:
    """Two requests have loaded their blocks, and then memory is taken away, so neither can go on.
    The newer one gives its blocks back; an elastic engine asks for memory first and is refused.
    """
    for elastic in (False, True):
        world = One(refusing=elastic)
        two = [request(0, 65, 3), request(1, 49, 3)]
        made = engine(world, 9, two, {0: 4, 1: 3}, elastic=elastic)
        world.steps(made, 0.1)
        assert made.queues.used_blocks == 7
        shrink(world, made, 7)
        world.steps(made, 0.6)
        assert any(lacks_growth(report) for report in world.reports) == elastic
        assert [r.number for r in made.queues.running] == [0]
        assert [r.number for r in made.queues.waiting] == [1]
        assert made.tally.counters.preemptions == 1
        finish(world, made, 6)


def test_it_waits_for_the_answer_as_long_as_a_running_one() -> None:
    world = One()
    made = engine(
        world, 9, [request(0, 65, 3), request(1, 49, 3)], {0: 4, 1: 3}, elastic=True, hold_s=20e-9
    )
    world.steps(made, 0.1)
    shrink(world, made, 7)
    world.steps(made, 15)
    assert made.queues.stuck and made.tally.counters.preemptions == 0
    finish(world, made, 6)
    assert made.tally.counters.preemptions == 1


def test_at_the_end_of_a_turn_the_newest_loaded_gives_up_its_blocks_first() -> None:
    queues = Queues(iter([request(n, 20 + n, 4) for n in range(4)]), GROUP)
    queues.arrive(0)
    queues.admit(2)
    for _ in range(3):
        queues.admit(1, loading=True)
    first, second, third = queues.loading
    queues.loaded(first)
    queues.loaded(second)
    assert queues.used_blocks == 5
    assert queues.give_up_newest() and list(queues.loading) == [first, third]
    assert queues.give_up_newest() and list(queues.loading) == [third], "it still comes"
    assert queues.give_up_newest() and not queues.running
    assert not queues.give_up_newest()
    assert queues.used_blocks == 1 and len(queues.waiting) == 3


def test_blocks_to_start_are_those_that_it_lacks() -> None:
    queues = Queues(iter([request(0, 100, 4), request(1, 40, 4)]), GROUP)
    queues.arrive(0)
    assert queues.blocks_starting(9) == 7 + 3
    queues.admit(6, loading=True)
    assert [queues.blocks_starting(slots) for slots in (0, 1, 2)] == [0, 1, 1 + 3]


# -- without tiers ----------------------------------------------------------------------

PLAIN = {
    "spatial": (246, 51.234635111244, 16688.094410506874, 12880),
    "temporal": (234, 53.853091616649, 18102.497263838464, 11360),
}
"""Expected preemptions, seconds, mean TTFT in ms, and tokens found, by the mode of sharing.

A change that concerns all worlds gives new figures here. One that concerns only loads from tiers
must not, because these worlds have no tiers.
"""


@pytest.mark.parametrize("mode", sorted(PLAIN))
def test_worlds_without_tiers_are_the_same_to_the_last_digit(mode: str) -> None:
    tenants = [
        {"name": "a", "model": "llama-3-8b", "share": 17, "rate": 20},
        {"name": "b", "model": "opt-6.7b", "share": 14.5, "rate": 20},
    ]
    written = {
        "title": "plain",
        "tenants": tenants,
        "sharing": {"mode": mode, "turn_s": 1.0, "drain": False} if mode != "spatial" else {},
        "limits": {"max_model_len": 512},
        "prefix_cache": True,
        "workload": {"requests": 200, "lengths": "sharegpt"},
    }
    found = run.run(Setup(Experiment.model_validate(written)), "pooled", 0)
    keys = "preemptions", "duration", "mean_ttft_ms", "tokens_avoided"
    assert tuple(found[key] for key in keys) == PLAIN[mode]
