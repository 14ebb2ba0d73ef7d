"""KV blocks that leave one simulated engine and return: what is done about them at each event."""

from __future__ import annotations

from collections.abc import Callable

from mirage.control.turn_taking import TurnTaking
from mirage.simulate.costs import StepCosts
from mirage.simulate.holding import SimulatedMemory
from mirage.simulate.loads import NoLoads
from mirage.simulate.moves import Moves
from mirage.simulate.queues import Queues
from mirage.simulate.room import QueueRoom
from mirage.simulate.tally import Tally


class Returning:
    """KV blocks of one engine that leave and return. `co_runners` returns the number of engines
    that compute now, and of those that stream. Times are picoseconds."""

    def __init__(
        self,
        queues: Queues,
        room: QueueRoom,
        holding: SimulatedMemory,
        costs: StepCosts,
        loads: NoLoads,
        moves: Moves,
        tally: Tally,
        turn: TurnTaking,
        co_runners: Callable[[], tuple[int, int]],
    ) -> None:
        self._queues, self._room, self._holding, self._costs = queues, room, holding, costs
        self._loads, self._moves, self._tally = loads, moves, tally
        self._turn, self._co_runners = turn, co_runners

    def receive(self, now: int) -> None:
        """Let requests whose blocks have arrived wait to start, or give the blocks up if the turn
        is over.
        """
        loaded = self._loads.advance(now)
        for request in loaded:
            self._queues.loaded(request)
        if loaded:
            self.spill()

    def trim(self, now: int) -> None:
        """Drop cached blocks whose memory is needed; the next step waits until those that go to a
        tier have been copied.
        """
        if self._queues.reuse.keeps:
            self._moves.wait(self._queues.reuse.trim(self._room.free, now))

    def pace(self, step_ps: int | None) -> None:
        """Give loads the time of the link that streamed layers leave free.

        `step_ps` is the length of the step in picoseconds, None between steps.
        """
        if not self._loads.under_way:
            return
        holding, streams = self._holding, self._co_runners()[1]
        if step_ps is not None and holding.layers_remapped:
            streamed = (
                (holding.layers_remapped + holding.stream_slots)
                * self._costs.load_ps
                * max(1, streams)
            )
            self._loads.pace(step_ps - streamed, step_ps)
        else:
            self._loads.pace(1, 1 + streams - (holding.layers_remapped > 0))

    def spill(self) -> None:
        """Preempt suspended requests as far as the turn's end demanded; their KV may be kept in a
        tier.
        """
        shape = self._holding.shape
        block_bytes = shape.extent_bytes // shape.extent_blocks
        self._tally.counters.spills += self._turn.spill(self._queues, block_bytes)
