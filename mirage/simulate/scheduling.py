"""Choice of the next step's work: vLLM's order, but memory is requested before a request is
preempted.

Running requests decode first, their blocks allocated in the order of their admission. Then chunks
of prefill fill the token budget, those under way before waiting ones, first come first served. A
waiting request is admitted if there are blocks for its whole prompt. Without blocks for a running
request the newest one is preempted. With `elastic`, memory is requested before that, as by
`mirage.engine.scheduler`.

A request that loads its prefix is admitted likewise, but gets blocks only for the prefix, and none
that earlier loads lack. Once loaded it starts before all that wait, as soon as there are blocks for
the rest of its prompt. Until then other requests may take them, but none is admitted before it.
"""

from __future__ import annotations

from collections.abc import Callable

from mirage.control.growth_hold import GrowthHold
from mirage.control.turn_taking import TurnTaking
from mirage.simulate.batch import SimulatedRequest
from mirage.simulate.limits import StepLimits
from mirage.simulate.loads import NoLoads
from mirage.simulate.queues import Queues
from mirage.simulate.room import QueueRoom
from mirage.simulate.tally import Tally

Chunk = tuple[SimulatedRequest, int]
"""A request in prefill, and the number of its prompt's tokens in this step."""


class Scheduler:
    """Scheduler of one engine. `report` sends the demand to the controller, whose answer may come
    before it returns. Times are picoseconds."""

    def __init__(
        self,
        queues: Queues,
        room: QueueRoom,
        turn: TurnTaking,
        growth_hold: GrowthHold,
        limits: StepLimits,
        tally: Tally,
        report: Callable[[int], None],
        loads: NoLoads,
    ) -> None:
        self._queues, self._room, self._turn = queues, room, turn
        self._growth_hold, self._limits = growth_hold, limits
        self._tally, self._report, self._loads = tally, report, loads

    def schedule(self, now: int) -> list[Chunk] | None:
        """Chunks of prompts to compute in the next step, beside one token of each request in the
        batch; None if there is no step.
        """
        queues = self._queues
        if not queues.unfinished or not self._turn.may_step(queues.begun):
            return None
        preempted = False
        self._growth_hold.begin_step()
        self._return_held()
        if lacking := self._room.lacking():
            preempted = self._make_room(lacking, now)
            if not self._turn.may_step(queues.begun):
                return None  # the controller's answer took the turn
        else:
            self._growth_hold.end_step()
        chunks, budget = self._continued()
        if queues.loading and not preempted:
            resumed, budget = self._resumed(budget)
            chunks += resumed
        if queues.waiting and not (preempted or queues.held or queues.first_loaded):
            chunks += self._admitted(budget, now)
        return chunks if chunks or queues.batch.size else None

    def preempt(self) -> None:
        """Preempt the newest running request."""
        self._tally.counters.preemptions += 1
        self._queues.preempt()

    # -- room for those that run --------------------------------------------------------

    def _make_room(self, lacking: int, now: int) -> bool:
        """Get blocks for running requests. True if requests were preempted for them and some still
        run.
        """
        if self._limits.elastic:
            hold = self._growth_hold
            self._ask(lacking, now)
            if not self._room.lacking():
                hold.end_step()
                return False
            if hold.may_hold():
                self._tally.counters.holds += self._queues.hold(self._room.free)
                return False
        while self._room.lacking() and self._gives_way():
            pass
        self._return_held()
        return bool(self._queues.running)

    def _gives_way(self) -> bool:
        """Preempt the newest running request, or if none runs take the blocks of the newest loaded
        one, except the first of `loading`; False if there is neither.
        """
        if self._queues.running:
            self.preempt()
            return True
        given = self._queues.make_way()
        self._tally.counters.preemptions += given
        return given

    def _ask(self, lacking: int, now: int) -> None:
        """Report the blocks that are lacking, and take the answer if it comes immediately."""
        self._growth_hold.lacks(lacking, max(0, self._room.free))
        if self._growth_hold.end_step():
            self._report(now)
            self._return_held()

    def _return_held(self) -> None:
        if self._queues.held:
            self._queues.return_held(self._room.free)

    # -- prompts ------------------------------------------------------------------------

    def _continued(self) -> tuple[list[Chunk], int]:
        """Chunks of prompts that are under way, and the rest of the token budget."""
        chunks = []
        budget = self._limits.max_num_batched_tokens - self._queues.batch.size
        for request in self._queues.prefilling:
            if budget <= 0:
                break
            chunks.append((request, min(request.known - request.computed, budget)))
            budget -= chunks[-1][1]
        return chunks, budget

    def _resumed(self, budget: int) -> tuple[list[Chunk], int]:
        """First chunks of loaded requests that start now, and the rest of `budget` tokens."""
        queues, room = self._queues, self._room
        chunks: list[Chunk] = []
        while budget > 0 and self._has_slot() and (request := queues.first_loaded) is not None:
            # Alone a request leaves nothing free for others.
            free = room.for_newcomers() if queues.running else room.free
            if queues.lacks(request) > free:
                break
            queues.resume(request)
            self._counts_lost(request)
            chunks.append((request, min(request.known - request.computed, budget)))
            budget -= chunks[-1][1]
        return chunks, budget

    def _admitted(self, budget: int, now: int) -> list[Chunk]:
        """Admit waiting requests; return their first chunks, within `budget` tokens."""
        queues, limits = self._queues, self._limits
        chunks: list[Chunk] = []
        free = self._room.for_newcomers()
        slots = limits.max_num_seqs - len(queues.running)
        while queues.waiting and budget > 0 and slots > 0:
            request = queues.waiting[0]
            if not request.generated and not self._turn.granted:
                break  # draining
            known = request.known
            blocks = limits.group.blocks(known)
            found = queues.reuse.find(request)
            if blocks - found.shared > free:
                break
            hits = self._loads.seek(request, found, now)
            first = found.blocks + len(hits)
            if hits and first - found.shared > free - queues.reserved_blocks:
                break
            queues.reuse.take(request, found)
            loading = self._loads.begin(request, found, hits, now)
            free -= (first if loading else blocks) - found.shared
            self._tally.counters.started += request.first < 0
            queues.admit(first if loading else blocks, loading=loading)
            if not loading:
                self._counts_lost(request)
                tokens = min(known - request.computed, budget)
                chunks.append((request, tokens))
                budget -= tokens
                slots -= 1
        return chunks

    def _counts_lost(self, request: SimulatedRequest) -> None:
        """Count the tokens that a request computes again, if it was preempted."""
        self._tally.counters.recomputed_tokens += max(0, request.lost - request.computed)
        request.lost = 0

    def _has_slot(self) -> bool:
        return len(self._queues.running) < self._limits.max_num_seqs
