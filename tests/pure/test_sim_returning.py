"""KV blocks that leave a simulated engine as its turn ends, and loads that come too late."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mirage.control.turn_taking import TurnTaking
from mirage.facts import KVGroup
from mirage.protocol import ModelShape, Turn
from mirage.simulate.batch import SimulatedRequest
from mirage.simulate.loads import NoLoads
from mirage.simulate.queues import Queues
from mirage.simulate.returning import Returning
from mirage.simulate.tally import Tally

pytestmark = pytest.mark.pure

SHAPE = ModelShape(12, 100, 0, 40, 4, 16, 200, 2, 12)
GROUP = KVGroup("full_attention", 12, 16, 64)


class Arriving(NoLoads):
    """Loads that have all arrived at each look."""

    def __init__(self, queues: Queues) -> None:
        self.queues = queues

    def advance(self, now: int) -> list[SimulatedRequest]:
        return list(self.queues.loading)


def test_what_comes_after_the_turn_is_given_up_once_it_is_there() -> None:
    queues = Queues(iter([SimulatedRequest(0, 0, 100, 10), SimulatedRequest(1, 0, 100, 10)]), GROUP)
    queues.arrive(0)
    queues.admit(7)
    queues.admit(7, loading=True)
    turn, tally = TurnTaking(temporal=True), Tally()
    holding, nothing = SimpleNamespace(shape=SHAPE), Any
    parts = (queues, nothing, holding, nothing, Arriving(queues), nothing, tally, turn)
    returning = Returning(*parts, lambda: (0, 0))  # type: ignore[arg-type]
    turn.told(Turn(False, spill_bytes=14 * 10))
    returning.spill()
    assert (queues.used_blocks, len(queues.loading), tally.counters.spills) == (7, 1, 1)
    returning.receive(0)
    assert (queues.used_blocks, len(queues.waiting), tally.counters.spills) == (0, 2, 2)
