"""One simulated engine alone: spans of many steps, their costs, and waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from alone import Alone
from hypothesis import given
from hypothesis import strategies as st

from mirage import profiles
from mirage.control.demand import lacks_growth
from mirage.control.targets import unnumbered
from mirage.facts import KVGroup
from mirage.geometry import footprint
from mirage.protocol import Allotment, LentInTurns, ModelShape, Refusal
from mirage.simulate.batch import SimulatedRequest
from mirage.simulate.engine import Engine
from mirage.simulate.holding import SimulatedMemory
from mirage.simulate.limits import StepLimits
from mirage.simulate.roofline import PS, CostBound, Roofline, Streaming, Work
from tests.examples import examples

pytestmark = pytest.mark.pure

SHAPE = ModelShape(40, 100, 50, 30, 1, 16, 10**6, 1, 40)


class Given:
    """Stand-in for a roofline, whose cost bounds the test gives."""

    def __init__(self, bounds: tuple[CostBound, ...]) -> None:
        self._bounds = bounds

    def bounds(self, streaming: Streaming, co_runners: int) -> tuple[CostBound, ...]:
        return self._bounds

    def compute_ps(self, work: Work, co_runners: int = 1) -> int:
        return max(bound.at(work) for bound in self._bounds)

    def added_ps(self, first: int, tokens: int) -> int:
        return 0


class Streaming100(Given):
    """The same stand-in, in which a step with streamed layers takes at least 100 picoseconds."""

    def bounds(self, streaming: Streaming, co_runners: int) -> tuple[CostBound, ...]:
        return (*self._bounds, CostBound(100 * (streaming.layers_remapped > 0), 0, 0, 0, 0))


def lone(
    world: Alone,
    blocks: int,
    requests: Iterator[SimulatedRequest] | list[SimulatedRequest] = (),
    bounds: tuple[CostBound, ...] = (),
    layers_remapped: int = 0,
    **limits,
) -> Engine:
    usual = {
        "group": KVGroup("full_attention", 40, 16, 1 << 20),
        "max_num_seqs": 1024,
        "max_num_batched_tokens": 2048,
        "elastic": False,
        "temporal": False,
        "headroom_extents": 0,
        "lookahead_steps": 0,
        "kept": "nothing",
        "report_ps": PS // 5,
        "apply_ps": 0,
    }
    holding = SimulatedMemory(
        SHAPE, unnumbered(SHAPE, layers_remapped, 1, blocks + 1), lambda before, after: 0
    )
    line: Any = Roofline(profiles.model("opt-13b"), profiles.hardware("gh200"))
    if bounds:
        line = Streaming100(bounds) if layers_remapped else Given(bounds)
    chosen = StepLimits(**(usual | limits))
    return Engine("e", holding, line, 10**9, chosen, iter(requests), world)


def decoding(
    engine: Engine, lengths: list[tuple[int, int]], kind: type[SimulatedRequest] = SimulatedRequest
) -> Engine:
    """The engine, with requests put into its batch; `lengths` has (tokens in KV memory, tokens to
    go) of each.
    """
    for number, (computed, left) in enumerate(lengths):
        request = kind(number, 0, computed, left + 1, generated=1, first=0)
        request.computed = computed
        engine.queues.batch.join(request)
        engine.queues.running[request] = None
    return engine


# -- spans ------------------------------------------------------------------------------

bounds = st.lists(
    st.builds(
        CostBound,
        st.integers(1, 10**4),
        st.integers(0, 99),
        st.integers(0, 20),
        st.just(0),
        st.just(0),
    ),
    min_size=1,
    max_size=4,
).map(tuple)
lengths = st.lists(st.tuples(st.integers(1, 100), st.integers(1, 60)), min_size=1, max_size=8)


@given(bounds=bounds, lengths=lengths, blocks=st.integers(60, 90))
@examples(200)
def test_a_span_takes_the_largest_bound_of_each_of_its_steps(bounds, lengths, blocks) -> None:
    engine = decoding(lone(Alone(), blocks, bounds=bounds), lengths)
    engine.wake(0)
    batch, span = engine.queues.batch, engine.stepper.span
    size, context = batch.size, batch.context
    steps = [
        max(bound.at(Work(size, context + step * size)) for bound in bounds)
        for step in range(span.steps)
    ]
    assert span.steps >= 1
    assert span.end == sum(steps)
    assert [span.first_ps + step * span.growth_ps for step in range(span.steps)] == steps


@given(
    lengths=lengths,
    blocks=st.integers(45, 120),
    arrivals=st.lists(st.tuples(st.integers(0, PS), st.integers(1, 90), st.integers(1, 40))),
    elastic=st.booleans(),
    budget=st.sampled_from([40, 2048]),
)
@examples(60)
def test_spans_end_where_single_steps_would(lengths, blocks, arrivals, elastic, budget) -> None:
    """An engine that skips through spans of many steps ends at the same time, with the same counts
    and gaps, as one that takes single steps.
    """
    found = []
    for skipping in (True, False):
        coming = [SimulatedRequest(100 + i, *row) for i, row in enumerate(sorted(arrivals))]
        world = Alone(skipping, refusing=True)
        limits = {"elastic": elastic, "max_num_batched_tokens": budget}
        engine = decoding(lone(world, blocks, coming, **limits), lengths)
        engine.wake(0)
        world.run(engine)
        engine.queues.check_empty()
        engine.tally.flush()
        gaps = engine.tally.gaps.distribution.sorted()
        found.append((world.now, engine.tally.counters, [list(part) for part in gaps]))
    assert found[0] == found[1]


def test_tokens_of_a_preempted_request_are_computed_again() -> None:
    """Requests that decode have no prefill. One that is preempted has: of the tokens that it had
    computed, and of its newest one if it had decoded.
    """
    world = Alone(refusing=True)
    engine = decoding(lone(world, 6, elastic=True), [(20, 40), (16, 40), (40, 40)])
    engine.wake(0)
    assert engine.report().recomputed_tokens == 0
    world.run(engine)
    report = engine.report()
    assert report.preemptions == 3 and report.recomputed_tokens >= 3 * 16
    assert 0 < report.prefill_tokens - report.recomputed_tokens <= 3


def test_a_shortage_is_over_when_the_preemption_is() -> None:
    """The reports of an engine that lacked memory and preempted are the same for spans of many
    steps as for single steps.
    """
    found = []
    for skipping in (True, False):
        world = Alone(skipping, refusing=True)
        requests = [(20, 40), (16, 40), (40, 40)]
        engine = decoding(lone(world, 6, elastic=True, report_ps=PS // 20), requests)
        engine.wake(0)
        assert engine.tally.counters.preemptions == 1
        world.run(engine)
        found.append(world.reports)
    assert found[0] == found[1]


def test_a_cut_span_ends_with_the_step_under_way() -> None:
    engine = decoding(lone(Alone(), 10_000), [(100, 1000)] * 4)
    engine.wake(0)
    span = engine.stepper.span
    first, growth = span.first_ps, span.growth_ps
    assert span.steps == 1000
    engine.cut(5 * first)
    assert span.steps == 5
    assert span.end == 5 * first + 10 * growth
    engine.cut(0)
    assert (span.steps, span.end) == (1, first)


# -- cost -------------------------------------------------------------------------------

looked_at: Counter[int] = Counter()
"""Number of reads and writes of a request's fields, by the request's number."""


class Watched(SimulatedRequest):
    """A request that counts the reads and writes of its fields in `looked_at`."""

    def __getattribute__(self, name: str) -> Any:
        looked_at[object.__getattribute__(self, "number")] += 1
        return object.__getattribute__(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "number":
            looked_at[object.__getattribute__(self, "number")] += 1
        object.__setattr__(self, name, value)


class Walked(dict[SimulatedRequest, None]):
    """Running requests of an engine; a loop over them fails."""

    def __iter__(self) -> Iterator[SimulatedRequest]:
        raise AssertionError("a step of pure decode walks through all that run")

    __reversed__ = keys = items = values = __iter__  # type: ignore[assignment]


@pytest.mark.parametrize("elastic", [False, True])
@pytest.mark.parametrize("skipping", [False, True])
def test_a_span_costs_the_same_for_many_requests(skipping, elastic) -> None:
    """From the end of one span of decode steps to the end of the next, the simulator touches only
    the request that ends next, however many run.
    """
    for size in (8, 64, 512):
        world = Alone(skipping)
        lengths = [(100 + 7 * number % 50, 5000 + number) for number in range(size)]
        engine = decoding(lone(world, 10**6, elastic=elastic, report_ps=PS), lengths, Watched)
        engine.queues.running = Walked(engine.queues.running)
        looked_at.clear()
        for _ in range(4):
            engine.wake(world.now)
            if skipping and not elastic:  # nothing else would end it before somebody finishes
                engine.cut(world.now + PS)
            world.now = engine.stepper.span.end
        assert engine.queues.batch.size == size, "nobody finished meanwhile"
        assert looked_at.keys() <= {0}, "all but the next to finish are left alone"
        assert looked_at.total() <= 8, "twice in a span at most"


@pytest.mark.parametrize("tokens", [10, 1000, 100_000])
@pytest.mark.parametrize("size", [1, 100])
def test_events_do_not_grow_with_tokens(tokens, size) -> None:
    """A batch of equal requests that decode is a single span and a single event, however many
    tokens they have.
    """
    world = Alone()
    engine = decoding(lone(world, 10**6), [(100, tokens)] * size)
    engine.wake(0)
    assert engine.stepper.span.steps == tokens
    assert world.run(engine) == 1
    assert engine.tally.counters.steps == tokens
    assert engine.tally.counters.completed == size


@pytest.mark.parametrize("size", [1, 100])
def test_events_are_those_that_are_due(size) -> None:
    """The number of events is at most that of requests that end plus that of
    reports that are due.
    """
    world = Alone()
    lengths = [(100, 1000 * number) for number in range(1, size + 1)]
    engine = decoding(lone(world, 10**6, elastic=True, report_ps=10 * PS), lengths)
    engine.wake(0)
    events = world.run(engine)
    assert engine.tally.counters.steps == 1000 * size
    assert events <= size + len(world.reports)
    assert len(world.reports) <= world.now // (10 * PS) + 2


# -- waiting for memory -----------------------------------------------------------------


@pytest.mark.parametrize("requests", [2, 3])
@pytest.mark.parametrize("start", [0, 54, 37, PS // 3, 123_456_789_012_345, 10**4 * PS + 7])
def test_without_an_answer_nobody_is_held_longer_than_a_second(start, requests) -> None:
    """All blocks are in use, each request needs one more, and the controller does not answer. The
    engine waits for `hold_ps`, and preempts then.
    """
    world = Alone()
    world.now = start
    engine = decoding(lone(world, requests, elastic=True), [(16, 10)] * requests)
    engine.wake(start)
    assert len(engine.queues.held) == requests and not engine.stepping
    world.now = start + engine.limits.hold_ps // 2
    engine.wake(world.now)
    assert len(engine.queues.held) == requests and not engine.stepping
    world.now = start + engine.limits.hold_ps
    engine.wake(world.now)
    assert engine.tally.counters.preemptions > 0 and engine.stepping
    world.run(engine)
    assert engine.tally.counters.completed == requests


def test_a_refusal_ends_the_wait_at_once() -> None:
    world = Alone()
    engine = decoding(lone(world, 2, elastic=True), [(16, 10)] * 2)
    engine.wake(0)
    assert len(engine.queues.held) == 2
    engine.receive(Refusal(0), 5)
    assert engine.stirred
    engine.wake(5)
    assert engine.tally.counters.preemptions == 1 and engine.stepping


def test_who_is_held_goes_on_when_a_preemption_makes_room() -> None:
    """Three running requests, of which the second lacks a block and after a refusal the first one
    does: preempting the third makes room for both, at the same times with spans as with single
    steps.
    """
    found = []
    for skipping in (True, False):
        world = Alone(skipping)
        engine = decoding(lone(world, 6, elastic=True), [(30, 20), (16, 20), (40, 20)])
        engine.wake(0)
        assert [request.number for request in engine.queues.held] == [1]
        engine.receive(Refusal(0), 0)
        world.run(engine)
        assert engine.tally.counters.preemptions == 1
        engine.tally.flush()
        found.append((world.now, list(engine.tally.e2el.sorted()[0])))
    assert found[0] == found[1]


def test_an_allotment_ends_the_wait_and_the_gap_counts_it() -> None:
    world = Alone()
    engine = decoding(lone(world, 2, elastic=True), [(16, 1)] * 2)
    engine.wake(0)
    more = Allotment(1, 0, 1, 5, footprint(SHAPE, 0, 5))
    world.now = PS // 2
    engine.receive(more, world.now)
    engine.wake(world.now)
    world.run(engine)
    engine.tally.flush()
    assert engine.tally.counters.preemptions == 0
    gaps, weights = engine.tally.gaps.distribution.sorted()
    assert all(gap > PS // 2 for gap in gaps) and sum(weights) == 2


def test_what_is_called_back_is_preempted_newest_first_but_for_the_last() -> None:
    world = Alone()
    engine = decoding(lone(world, 6, elastic=True), [(16, 20), (40, 20), (30, 20)])
    engine.receive(Allotment(1, 0, 1, 5, footprint(SHAPE, 0, 5), recall=True), 0)
    assert [request.number for request in engine.queues.running] == [0, 1]
    assert engine.report().kv_used_extents <= engine.holding.extents == 5
    engine.receive(Allotment(2, 0, 1, 1, footprint(SHAPE, 0, 1), recall=True), 0)
    assert [request.number for request in engine.queues.running] == [0]
    engine.receive(Allotment(3, 0, 1, 6, footprint(SHAPE, 0, 6)), 0)
    engine.wake(0)
    world.run(engine)
    assert engine.tally.counters.completed == 3


@pytest.mark.parametrize(
    ("kept", "lent", "running"),
    [
        ("soon", "nothing", 3),
        ("soon", "in turns", 3),
        ("lent", "nothing", 3),
        ("lent", "in turns", 2),
    ],
)
def test_where_layers_are_lent_newcomers_leave_what_running_requests_soon_need_and_more(
    kept: str, lent: LentInTurns, running: int
) -> None:
    """Eight blocks are free. Two running requests need one of them in the next 16 steps, and four
    in twice that time. A waiting request begins if it leaves that much, by `kept` and `lent`.
    """
    world = Alone()
    waits = SimulatedRequest(9, 0, 85, 20)
    engine = decoding(
        lone(world, 12, [waits], elastic=True, kept=kept, lookahead_steps=16), [(20, 20)] * 2
    )
    engine.receive(Allotment(1, 0, 0, 13, footprint(SHAPE, 0, 13), lent=lent), 0)
    engine.wake(0)
    assert len(engine.queues.running) == running


def test_growth_that_was_granted_is_not_repeated() -> None:
    """An engine that lacked memory reports as soon as it obeys the allotment with more, before its
    next step. So it does not ask for the same memory twice.
    """
    world = Alone()
    engine = decoding(lone(world, 2, elastic=True), [(16, 10)] * 2)
    engine.wake(0)
    assert lacks_growth(world.reports[-1])
    assert world.reports[-1].growth_extents == 5, "two, two to grow by, and the null block's"
    engine.receive(Allotment(1, 0, 1, 5, footprint(SHAPE, 0, 5)), 5)
    assert world.reports[-1].kv_blocks == 4, "as many as it lacked, and more"
    assert not lacks_growth(world.reports[-1])


# -- what is counted --------------------------------------------------------------------


@pytest.mark.parametrize("skipping", [True, False])
def test_steps_that_wait_for_layers_say_how_long(skipping: bool) -> None:
    """A step computes for 60 ps and 2 ps more for each token in KV memory, and takes 100 ps because
    two layers are streamed. The report's `stall_s` is the sum of the differences.
    """
    world = Alone(skipping)
    compute = (CostBound(60, 0, 2, 0, 0),)
    engine = decoding(lone(world, 60, bounds=compute, layers_remapped=2), [(10, 5)])
    context = engine.queues.batch.context
    engine.wake(0)
    world.run(engine)
    report = engine.report()
    assert report.steps == report.tokens == 5 and report.prefill_tokens == 0
    waits = sum(100 - (60 + 2 * (context + step)) for step in range(5))
    assert report.stall_s == pytest.approx(waits / PS)


def test_without_layers_away_no_step_waits() -> None:
    world = Alone()
    requests = [SimulatedRequest(number, 0, 20, 4) for number in range(3)]
    engine = lone(world, 60, requests, bounds=(CostBound(60, 0, 2, 1, 0),))
    world.run(engine)
    report = engine.report()
    assert report.stall_s == 0 and report.started == 3
    assert report.prefill_tokens == 60 and report.tokens == 60 + 3 * 3
