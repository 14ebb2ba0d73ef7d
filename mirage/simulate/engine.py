"""One vLLM-like engine, as an event-driven state machine over `Batch`.

Continuous batching as in vLLM V1: running requests decode first, their blocks allocated in the
order of their admission; then chunks of prefill fill the token budget, those under way before
waiting ones, first come first served. A waiting request is admitted if its whole prompt finds
blocks. Without blocks for a running request the newest one is preempted and computed anew.
With `elastic`, memory is asked for before that, as `mirage.engine.scheduler` does.

While nothing but decoding happens, all steps up to the next event are taken at once (a span).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from mirage.config import PATIENCE_S, Kept
from mirage.control.demand import (
    Demand,
    blocks_ahead,
    blocks_for,
    blocks_soon,
    blocks_to_start,
    demand,
    in_extents,
    left_free,
)
from mirage.control.growth_hold import GrowthHold
from mirage.control.turn_taking import TurnTaking
from mirage.protocol import Allotment, Refusal, Report, Turn
from mirage.simulate.batch import Batch, Request
from mirage.simulate.holding import Holding
from mirage.simulate.roofline import PS, CostBound, Roofline, Streaming, Work
from mirage.simulate.tally import Tally


class Surroundings(Protocol):
    """What an engine needs of the world it is in. Picoseconds."""

    skipping: bool
    """Whether spans may be longer than one step."""
    until: int
    """When measuring begins anew: no span goes on beyond the step that is under way then."""

    def now_s(self) -> float:
        """Seconds."""

    def report(self, engine: Engine, report: Report, leaves: int) -> None:
        """To the controller, once it is `leaves`.

        Its answers arrive by `Engine.receive`, perhaps before return.
        """

    def co_runners(self, engine: Engine) -> tuple[int, int]:
        """Engines that compute now, this one included, and of those the ones that stream."""

    def co_runners_changed(self, engine: Engine) -> None:
        """This engine began or ended to compute, or to stream."""


@dataclass(frozen=True)
class StepLimits:
    """What bounds an engine's steps, and how it is driven."""

    block_tokens: int
    max_num_seqs: int
    max_num_batched_tokens: int
    elastic: bool
    temporal: bool
    headroom_extents: int
    lookahead_steps: int
    kept: Kept
    """What newcomers leave free for running requests."""
    report_ps: int
    apply_ps: int
    hold_s: float = PATIENCE_S

    @property
    def hold_ps(self) -> int:
        """A nanosecond more, since the wanted counts in seconds that are rounded."""
        return int(self.hold_s * PS) + 1000


class Engine:
    """Requests of one tenant, in the order of `arrivals`."""

    def __init__(
        self,
        name: str,
        holding: Holding,
        roofline: Roofline,
        load_ps: int,
        limits: StepLimits,
        arrivals: Iterator[Request],
        world: Surroundings,
    ) -> None:
        self.name, self.holding, self.roofline, self.limits = name, holding, roofline, limits
        self.load_ps = load_ps
        self.world = world
        self.tally = Tally()
        self.batch = Batch(limits.block_tokens)
        self.running: dict[Request, None] = {}
        self.waiting: deque[Request] = deque()
        self.prefilling: deque[Request] = deque()
        self.held: list[Request] = []
        self.turn = TurnTaking(temporal=limits.temporal)
        self.growth_hold = GrowthHold(limits.hold_s, world.now_s)
        self.stepping = False
        self.stirred = False
        """Whether a message came that an idle engine must act on."""
        self._arrivals = arrivals
        self._upcoming = next(arrivals, None)
        self._inbox: list[Allotment | Refusal | Turn] = []
        self._other_blocks = 0
        """Blocks of requests that are not in the batch."""
        self._late: list[Request] = []
        """In the batch, and not in the step before."""
        self._chunks: list[tuple[Request, int]] = []
        self._begin = self._end = 0
        self._first_ps = self._growth_ps = 0
        self._span = 0
        self._emitted = 0
        """When the batch's newest tokens came."""
        self._ready_at = 0
        """When it will have acted on the newest allotment."""
        self._loaded_at = 0
        """When the last of the layers that came back will have been loaded."""
        self._waiting_blocks = 0
        """That the waiting requests need to start."""
        self._preempted = 0
        """Requests at the head of the queue that ran before."""
        self._next_report = 0
        self._said: tuple[bool, bool] | None = None

    # -- what the world asks ------------------------------------------------------------

    def next_event(self) -> int | None:
        """When `wake` should be called, in picoseconds; None for not before a message."""
        if self.stepping:
            return self._end
        if self._upcoming is not None and not self.has_work:
            return self._upcoming.arrival
        if self.held and self.turn.may_step(self._begun()):
            assert self.growth_hold.since is not None, "held for a wanted"
            return round(self.growth_hold.since * PS) + self.limits.hold_ps
        return None

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    @property
    def streams(self) -> bool:
        return self.holding.alpha > 0

    @property
    def used_blocks(self) -> int:
        return self.batch.blocks + self._other_blocks

    @property
    def free_blocks(self) -> int:
        return self.holding.blocks - self.used_blocks

    def wake(self, now: int) -> None:
        """A span has ended, a request has arrived, or a message was received while idle."""
        self.stirred = False
        computed = self.stepping
        if self.stepping:
            self._complete(now)
        self._pull(now)
        self._settle(now)
        self._obey(now)
        self._speak(now)
        self._plan(now)
        if self.stepping != computed:
            self.world.co_runners_changed(self)
        if now >= self.tally.timeline.due:
            holding = self.holding
            self.tally.sample(now, holding.extents, self.used_blocks, holding.alpha)

    def receive(self, message: Allotment | Refusal | Turn, now: int) -> None:
        """Acted on at once between steps, else at the next step's end."""
        self._inbox.append(message)
        if not self.stepping:
            self._pull(now)
            self._obey(now)
            self.stirred = True
        else:
            self.cut(now)

    def cut(self, now: int) -> None:
        """Let the span end with the step that is under way."""
        if self._span > 1:
            steps = _steps_until(self._first_ps, self._growth_ps, self._span, now - self._begin)
            self._take(max(1, steps))

    # -- messages -----------------------------------------------------------------------

    def _obey(self, now: int) -> None:
        while self._inbox:
            message = self._inbox.pop(0)
            if isinstance(message, Turn):
                self.turn.told(message)
            elif isinstance(message, Refusal):
                self.growth_hold.refused()
                continue
            elif self.holding.aim(message):
                self.growth_hold.answered()
                self._move(now)
            self._report(now)

    def _settle(self, now: int) -> None:
        if not self.holding.settled and self._move(now):
            self._report(now)

    def _move(self, now: int) -> bool:
        while self.holding.exceeds(self.used_blocks) and len(self.running) > 1:
            self._preempt()
        streamed = self.streams
        moved, copies = self.holding.settle(self.used_blocks)
        if copies:
            self._loaded_at = max(self._loaded_at, now) + copies * self.load_ps
            self.tally.counters.bytes_restored += copies * self.holding.shape.layer_bytes
        counters = self.tally.counters
        if moved:
            counters.moves += 1
            self._ready_at = max(now, self._ready_at) + self.limits.apply_ps
        counters.most_alpha = max(counters.most_alpha, self.holding.alpha)
        counters.most_extents = max(counters.most_extents, self.holding.extents)
        if self.streams != streamed:
            self.world.co_runners_changed(self)
        return moved

    def _speak(self, now: int) -> None:
        """Report if it is time, and at once when work or the turn came or went."""
        state = self.has_work, self.turn.holds(self._begun(), executing=False)
        due = self.limits.elastic and now >= self._next_report
        if due or state != self._said:
            self._report(now)

    def _report(self, now: int) -> None:
        self._next_report = now + self.limits.report_ps
        report = self.report()
        self._said = self.has_work, report.holds_turn
        # What a move has freed is told when it is done.
        self.world.report(self, report, max(now, self._ready_at))

    def report(self) -> Report:
        """The present state, as an engine would send it."""
        holding, counters = self.holding, self.tally.counters
        per_extent = holding.shape.extent_blocks
        used_extents = holding.busy_extents(self.used_blocks)
        wanted = self._demand() if self.limits.elastic else Demand()
        wanted = in_extents(wanted, used_extents, per_extent)
        return Report(
            revision=holding.revision,
            holds_turn=self.turn.holds(self._begun(), executing=False),
            held_bytes=holding.held_bytes,
            alpha=holding.alpha,
            beta=holding.beta,
            kv_extents=holding.extents,
            kv_used_extents=used_extents,
            growth_extents=wanted.growth,
            admission_extents=wanted.admission,
            running=len(self.running),
            waiting=len(self.waiting),
            kv_used_blocks=self.used_blocks,
            kv_blocks=max(0, holding.blocks),
            preemptions=counters.preemptions,
            steps=counters.steps,
            bytes_streamed=counters.bytes_streamed,
            layer_load_s=self.load_ps / PS,
            layer_compute_s=self._layer_compute_s(),
        )

    def _layer_compute_s(self) -> float:
        """T_c of a decode step of the present batch."""
        work = Work(self.batch.size, self.batch.context)
        co_runners = self.world.co_runners(self)[0]
        return self.roofline.compute_ps(work, co_runners) / PS / self.holding.shape.layers

    def _demand(self, taken: int = 0) -> Demand:
        """With `taken` blocks more in use than now."""
        slots = self.limits.max_num_seqs - len(self.running)
        starting = self._waiting_blocks
        if slots < len(self.waiting):
            tokens = (request.known for request in self.waiting)
            starting = blocks_to_start(tokens, slots, self.limits.block_tokens)
        return demand(
            used_blocks=self.used_blocks + taken,
            due_blocks=self.growth_hold.due,
            ahead=self._ahead(),
            starting=starting,
        )

    def _ahead(self) -> int:
        limits = self.limits
        headroom = limits.headroom_extents * self.holding.shape.extent_blocks
        return blocks_ahead(
            len(self.running), limits.lookahead_steps, headroom, limits.block_tokens
        )

    # -- scheduling ---------------------------------------------------------------------

    def _pull(self, now: int) -> None:
        while self._upcoming is not None and self._upcoming.arrival <= now:
            self._enqueue(self._upcoming)
            self.tally.counters.arrived += 1
            self._upcoming = next(self._arrivals, None)

    def _enqueue(self, request: Request) -> None:
        self.waiting.append(request)
        self._waiting_blocks += blocks_for(request.known + 1, self.limits.block_tokens)

    def _plan(self, now: int) -> None:
        """Schedule the next step, or the span of steps that are alike."""
        if not self.running and not self.waiting:
            return
        if not self.turn.may_step(self._begun()):
            return
        preempted = self._make_room(now)
        if not self.turn.may_step(self._begun()):
            return  # the controller's answer took the turn
        self._chunks = self._continue_prefills()
        if not preempted and not self.held:
            self._admit()
        if not self._chunks and not self.batch.size:
            return
        self.stepping = True
        self._start(now)

    def _make_room(self, now: int) -> bool:
        """Blocks for every running request; True if some were held or preempted for want."""
        self.growth_hold.begin_step()
        self._return_held()
        if self._lacking() and self.limits.elastic:
            self._ask(now)
        if not self._lacking():
            self.growth_hold.end_step()
            return False
        if self.limits.elastic and self.growth_hold.may_hold():
            self._hold(now)
            return True
        while self._lacking() and self.running:
            self._preempt()
        self._return_held()
        return True

    def _lacking(self) -> int:
        """Blocks that running requests lack for their next token."""
        return max(0, self.batch.blocks_due() + len(self.held) - self.free_blocks)

    def _ask(self, now: int) -> None:
        """Tell the controller what is lacking, and hear whether it can be had."""
        self.growth_hold.lacks(self._lacking(), max(0, self.free_blocks))
        if self.growth_hold.end_step():
            self._report(now)
            self._return_held()

    def _return_held(self) -> None:
        """Held requests for which there are blocks now join the batch again."""
        while self.held and self.free_blocks > self.batch.blocks_due():
            request = self.held.pop(0)
            self._other_blocks -= request.blocks
            self.batch.join(request)
            self._late.append(request)

    def _hold(self, now: int) -> None:
        """The newest requests that lack a block sit out until the controller has answered."""
        for request in [r for r in reversed(self.running) if r.joined >= 0]:
            if self.batch.blocks_due() <= self.free_blocks:
                break
            if self.batch.is_due(request):
                self._take_out(request)
                self.held.insert(0, request)
                self.tally.counters.holds += 1

    def _preempt(self) -> None:
        """The newest running request loses its blocks and waits to be computed anew."""
        request, _ = self.running.popitem()
        self.tally.counters.preemptions += 1
        if request.joined >= 0:
            self._take_out(request)
        else:
            (self.held if request in self.held else self.prefilling).remove(request)
        self._other_blocks -= request.blocks
        request.blocks = request.computed = 0
        self._preempted += request.generated > 0
        self.waiting.appendleft(request)
        self._waiting_blocks += blocks_for(request.known + 1, self.limits.block_tokens)

    def _take_out(self, request: Request) -> None:
        """Out of the batch, with its blocks."""
        if request in self._late:
            self._late.remove(request)
        else:
            request.last = self._emitted
        self.batch.leave(request)
        self._other_blocks += request.blocks

    def _begun(self) -> int:
        """Requests that a turn must finish before it ends, if it drains."""
        return len(self.running) + self._preempted

    def _continue_prefills(self) -> list[tuple[Request, int]]:
        chunks = []
        budget = self.limits.max_num_batched_tokens - self.batch.size
        for request in self.prefilling:
            if budget <= 0:
                break
            chunks.append((request, min(request.known - request.computed, budget)))
            budget -= chunks[-1][1]
        return chunks

    def _admit(self) -> None:
        budget = self.limits.max_num_batched_tokens - self.batch.size
        budget -= sum(tokens for _, tokens in self._chunks)
        free = self._admissible_blocks()
        while self.waiting and budget > 0 and len(self.running) < self.limits.max_num_seqs:
            request = self.waiting[0]
            if not request.generated and not self.turn.granted:
                break  # draining
            blocks = blocks_for(request.known, self.limits.block_tokens)
            if blocks > free:
                break
            self.waiting.popleft()
            self._waiting_blocks -= blocks_for(request.known + 1, self.limits.block_tokens)
            self._preempted -= request.generated > 0
            self.running[request] = None
            self.prefilling.append(request)
            self._chunks.append((request, min(request.known, budget)))
            request.blocks = blocks
            self._other_blocks += blocks
            free -= blocks
            budget -= self._chunks[-1][1]

    def _admissible_blocks(self) -> int:
        """Blocks that waiting requests may have, once the running ones have this step's."""
        due, limits, holding = self.batch.blocks_due(), self.limits, self.holding
        return (
            self.free_blocks
            - due
            - left_free(
                limits.kept,
                soon=blocks_soon(len(self.running), limits.lookahead_steps, limits.block_tokens),
                usable_blocks=holding.blocks,
                open_blocks=holding.open_blocks,
                wanted=partial(self._demand, due),
            )
        )

    # -- steps --------------------------------------------------------------------------

    def _start(self, now: int) -> None:
        """Begin one step with prefill chunks, or a span of pure decode."""
        batch = self.batch
        area = sum(n * (2 * r.computed + n + 1) for r, n in self._chunks)
        work = Work(batch.size, batch.context, sum(n for _, n in self._chunks), area)
        bounds = self._bounds()
        bound, first = _largest(bounds, work)
        delay = max(0, self._ready_at - now)
        if self._loaded_at > now:
            delay = max(delay, self._loaded_at - now - first)
        self._begin = now
        alone = self._chunks or delay or self._late or self.growth_hold.missing
        if alone or not self.world.skipping:
            self._first_ps, self._growth_ps = first + delay, 0
            self._take(1)
            return
        growth = bound.context * batch.size
        self._first_ps, self._growth_ps = first, growth
        self._take(self._span_steps(now, bound, first, growth, bounds))

    def _bounds(self) -> tuple[CostBound, ...]:
        co_runners, streams = self.world.co_runners(self)
        holding = self.holding
        load = self.load_ps * max(1, streams) if holding.alpha else 0
        return self.roofline.bounds(Streaming(holding.alpha, holding.beta, load), co_runners)

    def _span_steps(
        self, now: int, bound: CostBound, first: int, growth: int, bounds: tuple[CostBound, ...]
    ) -> int:
        """Steps until anything else can happen than one more token for each request."""
        batch = self.batch
        steps = batch.affordable(self.free_blocks, batch.next_finish())
        for other in bounds:
            faster = (other.context - bound.context) * batch.size
            if faster > 0:
                behind = first - other.at(Work(batch.size, batch.context))
                steps = min(steps, behind // faster + 1)
        if (horizon := self._horizon()) is not None:
            steps = min(steps, max(1, _steps_until(first, growth, steps, horizon - now)))
        if self.world.until > now:
            # The step that is under way then is one of its own, measured after.
            before = _steps_until(first, growth, steps + 1, self.world.until - now) - 1
            steps = min(steps, max(1, before))
        return max(1, steps)

    def _horizon(self) -> int | None:
        """The time after which the next step's end must be seen, in picoseconds."""
        times = [self._next_report] if self.limits.elastic else []
        if self._upcoming is not None and not self.waiting and self.turn.granted:
            times.append(self._upcoming.arrival)
        return min(times, default=None)

    def _take(self, steps: int) -> None:
        self._span = steps
        self._end = self._begin + _sum(self._first_ps, self._growth_ps, steps)

    def _complete(self, now: int) -> None:
        """The span is over: tokens were emitted, requests finished."""
        self.stepping = False
        self._count(now)
        self._emit_gaps()
        self._emitted = now
        for request in self.batch.advance(self._span):
            self._finish(request, now)
        for request, tokens in self._chunks:
            request.computed += tokens
            if request.computed == request.known:
                self._prefilled(request, now)
        self._chunks = []

    def _count(self, now: int) -> None:
        counters, elapsed = self.tally.counters, now - self._begin
        counters.steps += self._span
        counters.busy_ps += elapsed
        if self.holding.alpha:
            streamed = self.holding.alpha + self.holding.beta
            counters.bytes_streamed += self._span * streamed * self.holding.shape.layer_bytes

    def _emit_gaps(self) -> None:
        size = self.batch.size
        if not size:
            return
        gaps, first_end = self.tally.gaps, self._begin + self._first_ps
        for request in self._late:
            gaps.add(first_end - request.last, 0, 1, 1)
        if self._emitted == self._begin and not self._late:
            gaps.add(self._first_ps, self._growth_ps, self._span, size)
            return
        if size > len(self._late):
            gaps.add(first_end - self._emitted, 0, 1, size - len(self._late))
        if self._span > 1:
            gaps.add(self._first_ps + self._growth_ps, self._growth_ps, self._span - 1, size)
        self._late = []

    def _prefilled(self, request: Request, now: int) -> None:
        """The prompt is in KV, and one token more has come."""
        self.prefilling.remove(request)
        self._other_blocks -= request.blocks
        if request.first < 0:
            request.first = now
        else:
            self.tally.gaps.add(now - request.last, 0, 1, 1)
        request.generated += 1
        if request.generated == request.output:
            self._finish(request, now)
        else:
            self.batch.join(request)

    def _finish(self, request: Request, now: int) -> None:
        del self.running[request]
        self.tally.finished(request, now)


def _largest(bounds: tuple[CostBound, ...], work: Work) -> tuple[CostBound, int]:
    """The bound that a step takes, and how long; of equals the fastest growing."""
    bound = max(bounds, key=lambda f: (f.at(work), f.context))
    return bound, bound.at(work)


def _sum(first: int, growth: int, steps: int) -> int:
    return steps * first + growth * (steps * (steps - 1) // 2)


def _steps_until(first: int, growth: int, most: int, span: int) -> int:
    """The fewest steps, at most `most`, that take at least `span` picoseconds."""
    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        if _sum(first, growth, middle) >= span:
            high = middle
        else:
            low = middle + 1
    return low
