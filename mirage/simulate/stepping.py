"""Steps in simulated time: their duration, and the tokens at their end.

While all requests only decode, the steps up to the next event are simulated together (a span).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from mirage.simulate.batch import SimulatedRequest
from mirage.simulate.costs import StepCosts
from mirage.simulate.holding import SimulatedMemory
from mirage.simulate.moves import Moves
from mirage.simulate.queues import Queues
from mirage.simulate.roofline import NEVER, CostBound, Work
from mirage.simulate.room import QueueRoom
from mirage.simulate.scheduling import Chunk
from mirage.simulate.span import Span, largest, steps_alike, steps_until
from mirage.simulate.tally import Tally


class Horizon(msgspec.Struct, frozen=True):
    """Times at which a span of steps has to end, in picoseconds."""

    event: int
    """Time of an event: the span ends with the step that is under way at this time."""
    until: int
    """Time that the span must end before: the step under way at this time is a span of its own."""


class StepTaker:
    """Simulator of the steps of one engine. `finished` is called with each finished request and the
    time. Times are picoseconds."""

    def __init__(
        self,
        queues: Queues,
        room: QueueRoom,
        costs: StepCosts,
        moves: Moves,
        holding: SimulatedMemory,
        tally: Tally,
        finished: Callable[[SimulatedRequest, int], None],
    ) -> None:
        self._queues, self._room, self._costs, self._moves = queues, room, costs, moves
        self._holding, self._tally, self._finished = holding, tally, finished
        self.stepping = False
        self.span = Span()
        self.chunks: Sequence[Chunk] = ()
        """Chunks of prompts in the step that is under way."""
        self._tokens = 0
        """Tokens that each step of the span computes."""
        self._work = Work(0, 0)
        """Work of the span's first step."""
        self._delay = 0
        """Picoseconds for which the first step waits for memory that moves."""
        self._shared = 1
        """Number of engines that compute during the span, this one included."""

    def work(self) -> Work:
        """Work of the span's first step."""
        batch, chunks = self._queues.batch, self.chunks
        if not chunks:
            return Work(batch.size, batch.context)
        area = sum(n * (2 * r.computed + n + 1) for r, n in chunks)
        return Work(batch.size, batch.context, sum(n for _, n in chunks), area)

    # -- the beginning ------------------------------------------------------------------

    def begin(self, now: int, chunks: Sequence[Chunk], horizon: Horizon | None) -> None:
        """Begin one step with `chunks`, or a span of decode steps up to `horizon`; None allows one
        step only.
        """
        self.stepping, self.chunks = True, chunks
        work, span = self.work(), self.span
        self._tokens = work.sequences + work.prefill
        bounds = self._costs.bounds(self._tokens)
        bound, first = largest(bounds, work)
        delay = self._moves.delay(now, first)
        self._work, self._delay, self._shared = work, delay, self._costs.co_runners()[0]
        span.begin, span.first_ps, span.growth_ps = now, first + delay, 0
        if chunks or delay or self._queues.late or horizon is None:
            span.take(1)
            return
        span.growth_ps = bound.context * work.sequences
        span.take(self._undisturbed(bounds, bound, work, horizon))

    def _undisturbed(
        self, bounds: tuple[CostBound, ...], bound: CostBound, work: Work, horizon: Horizon
    ) -> int:
        """Number of steps until anything else can happen than one more token for each request.

        Say that steps take 10, 12, 14 … and that the first request finishes after 6. If there are
        blocks for 5 steps, the span has 5 and ends at 70. If an event at 30 must be seen
        (`horizon.event`), 3 steps: it is seen at 36, when the step ends that is under way. If the
        world only ends at 30 (`horizon.until`), 2 steps: they end at 22, and the one that is under
        way at 30 is a span of its own.
        """
        batch, span = self._queues.batch, self.span
        steps = batch.affordable(self._room.growth, batch.next_finish())
        steps = steps_alike(bounds, bound, work, steps)
        first, growth = span.first_ps, span.growth_ps
        if horizon.event < NEVER:
            steps = steps_until(first, growth, steps, horizon.event - span.begin)
        if span.begin < horizon.until < NEVER:
            steps = steps_until(first, growth, steps + 1, horizon.until - span.begin) - 1
        return steps if steps > 1 else 1

    # -- the end ------------------------------------------------------------------------

    def complete(self, now: int) -> None:
        """End the span: count its steps, record the gaps between tokens, and finish the requests
        whose last token it made.
        """
        self.stepping = False
        self._count(now)
        self._emit_gaps()
        self._leave(self._queues.decoded(self.span.steps, now), now)
        if not self.chunks:
            return
        for request, tokens in self.chunks:
            request.computed += tokens
            if request.computed == request.known:
                self._prefilled(request, now)
        self.chunks = ()

    def _leave(self, finished: Sequence[SimulatedRequest], now: int) -> None:
        """Finish requests. Before that, evict the cached blocks for which the device had no room as
        long as the blocks of these requests were in use.
        """
        reuse = self._queues.reuse
        if reuse.keeps:
            leaving = sum(request.blocks for request in finished)
            self._moves.wait(reuse.trim(self._room.free - leaving, now))
        for request in finished:
            reuse.released(request)
            self._finished(request, now)

    def _count(self, now: int) -> None:
        counters, steps, holding = self._tally.counters, self.span.steps, self._holding
        counters.steps += steps
        counters.tokens += steps * self._tokens
        counters.prefill_tokens += steps * self._work.prefill
        counters.busy_ps += now - self.span.begin
        counters.expert_loads += self._costs.took(self._tokens, steps)
        if holding.layers_remapped:
            streamed = holding.layers_remapped + holding.stream_slots
            counters.bytes_streamed += steps * streamed * holding.shape.layer_bytes
            counters.stall_ps += self._waited()

    def _waited(self) -> int:
        """Picoseconds in the span for which steps waited for layers."""
        span, first = self.span, self._work
        grown = first.sequences * (span.steps - 1)
        last = msgspec.structs.replace(first, context=first.context + grown)
        computes = sum(self._costs.compute_ps(work, self._shared) for work in (first, last))
        return max(0, span.end - span.begin - self._delay - span.steps * computes // 2)

    def _emit_gaps(self) -> None:
        """Record the gap before every token that decode made in the span."""
        queues, span, gaps = self._queues, self.span, self._tally.gaps
        size = queues.batch.size
        if not size:
            return
        last = span.first_ps + (span.steps - 1) * span.growth_ps
        end = queues.batch.steps + span.steps
        if queues.emitted == span.begin and not queues.late:
            queues.batch.gaps.add(end, last)
            gaps.add(span.first_ps, span.growth_ps, span.steps, size)
            return
        first_end = span.begin + span.first_ps
        longest = max(last, first_end - queues.emitted if size > len(queues.late) else 0)
        queues.batch.gaps.add(end, longest)
        for request in queues.late:
            gaps.add(first_end - request.last, 0, 1, 1)
            request.longest = max(request.longest, first_end - request.last)
        if size > len(queues.late):
            gaps.add(first_end - queues.emitted, 0, 1, size - len(queues.late))
        if span.steps > 1:
            gaps.add(span.first_ps + span.growth_ps, span.growth_ps, span.steps - 1, size)
        queues.late = []

    def _prefilled(self, request: SimulatedRequest, now: int) -> None:
        """Note that a request's prompt is computed, and one more token generated."""
        if request.first < 0:
            request.first = now
        else:
            self._tally.gaps.add(now - request.last, 0, 1, 1)
            request.longest = max(request.longest, now - request.last)
        if self._queues.prefilled(request):
            self._finished(request, now)
