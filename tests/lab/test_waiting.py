"""Parts of the time to first tokens: each moment of it is counted with one cause."""

from __future__ import annotations

import pytest

from benchmarks.waiting import Line, Part, changed, found, seen, ways
from mirage.simulate.experiment import Setup

pytestmark = pytest.mark.lab


def crowded(rate: float = 20) -> Setup:
    """Experiment C2 with few requests that come at once, too many for its memory."""
    setup = found("c2-1")
    workload = setup.experiment.workload.model_copy(update={"requests": 160})
    tenants = [t.model_copy(update={"rate": rate}) for t in setup.experiment.tenants]
    return changed(setup, workload=workload, tenants=tenants)


@pytest.mark.parametrize("policy", ["static", "pooled", "mirage"])
def test_the_parts_are_the_whole(policy: str) -> None:
    tail = seen(crowded(), policy, 1, 10).tail
    assert len(tail) == 16
    for spent in tail:
        assert sum(spent.parts.values()) == pytest.approx(spent.ttft_s)
        assert min(spent.parts.values()) >= 0


def test_only_memory_that_is_short_is_waited_for() -> None:
    waited = {}
    for name, rate in (("static", 20), ("endless", 20), ("endless", 3)):
        tail = seen(*ways(crowded(rate))[name], 1, 10).tail
        waited[name, rate] = sum(spent.parts[Part.MEMORY] for spent in tail)
        assert sum(spent.parts[Part.LAYERS] for spent in tail) == 0, "no layer moves"
    assert waited["static", 20] > 1
    assert waited["endless", 20] == 0
    assert waited["endless", 3] == 0, "turns that end what they have begun are no lack of memory"


def test_at_once_nobody_waits_for_a_turn() -> None:
    setup = crowded()
    together = setup.experiment.sharing.model_copy(update={"mode": "spatial", "drain": "auto"})
    tail = seen(changed(setup, sharing=together), "mirage", 1, 10).tail
    assert sum(spent.parts[Part.TURN] for spent in tail) == 0


def test_what_was_said_of_later_does_not_hold() -> None:
    line = Line()
    line.add(0, Part.LAYERS)
    line.add(10, Part.COMPUTE)
    line.add(5, Part.TURN)
    assert line.spent(0, 20) == {
        Part.LAYERS: 5,
        Part.TURN: 15,
        Part.MEMORY: 0,
        Part.COMPUTE: 0,
    }
