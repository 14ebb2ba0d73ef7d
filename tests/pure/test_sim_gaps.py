"""The longest gap between tokens of each request, kept without a look at the requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.simulate import build
from mirage.simulate.batch import LongestGaps, SimulatedRequest
from mirage.simulate.engine import Engine
from mirage.simulate.experiment import Experiment, Setup
from mirage.simulate.variants import variant
from mirage.simulate.world import Observer

pytestmark = pytest.mark.pure


@given(gaps=st.lists(st.integers(0, 20), max_size=60), since=st.integers(0, 60))
def test_the_longest_since_any_step(gaps: list[int], since: int) -> None:
    found = LongestGaps()
    for step, gap in enumerate(gaps, start=1):
        found.add(step, gap)
    assert found.since(since) == max(gaps[since:], default=0)


class Finished(Observer):
    def __init__(self) -> None:
        self.requests: dict[str, list[tuple[SimulatedRequest, int]]] = {}

    def finished(self, engine: Engine, request: SimulatedRequest) -> None:
        self.requests.setdefault(engine.name, []).append((request, engine.world.now_s()))


@pytest.mark.parametrize("policy", ["static", "mirage"])
@pytest.mark.parametrize("mode", ["spatial", "temporal"])
def test_the_longest_of_all_requests_is_the_longest_gap_there_was(policy: str, mode: str) -> None:
    tenants = [
        {"name": name, "model": "opt-13b", "share": 32, "rate": rate}
        for name, rate in (("a", 6), ("b", 2))
    ]
    setup = Setup(
        Experiment.model_validate(
            {
                "title": "gaps",
                "tenants": tenants,
                "sharing": {"mode": mode},
                "workload": {"requests": 150},
            }
        )
    )
    world = build.world(setup, variant(policy), 3)
    seen = Finished()
    world.observer = seen
    world.run()
    preempted = 0
    for engine in world.engines:
        engine.tally.flush()
        values, _ = engine.tally.gaps.distribution.sorted()
        ended = seen.requests[engine.name]
        assert max(request.longest for request, _ in ended) == values[-1]
        for request, end_s in ended:
            whole = end_s * 1e12 - request.first
            assert request.longest * (request.output - 1) >= whole * (1 - 1e-9)
        preempted += engine.tally.counters.preemptions
    assert preempted or policy == "mirage"  # gaps over a preemption are among them
