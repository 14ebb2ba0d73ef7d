"""One vLLM-like engine, as an event-driven state machine.

Continuous batching as in vLLM V1. Each part has its own module: the requests (`queues`), the KV
blocks for them (`room`), the work of a step (`scheduling`), its cost (`costs`) and duration
(`stepping`), the way to an allotment (`holding`, `moves`), the reports (`speaking`). At each event
the engine calls them in a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

from mirage.control.answers import Answered
from mirage.control.growth_hold import GrowthHold
from mirage.control.turn_taking import TurnTaking
from mirage.protocol import Allotment, Refusal, Report, Turn
from mirage.simulate.batch import SimulatedRequest
from mirage.simulate.costs import StepCosts
from mirage.simulate.holding import SimulatedMemory
from mirage.simulate.limits import StepLimits
from mirage.simulate.loads import NoLoads
from mirage.simulate.moves import Moves
from mirage.simulate.queues import Queues
from mirage.simulate.returning import Returning
from mirage.simulate.reuse import Reuse
from mirage.simulate.roofline import NEVER, PS, BoundedSteps
from mirage.simulate.room import QueueRoom
from mirage.simulate.scheduling import Scheduler
from mirage.simulate.speaking import Speaker
from mirage.simulate.stepping import Horizon, StepTaker
from mirage.simulate.tally import Tally


class Surroundings(Protocol):
    """The world as an engine sees it. Times are picoseconds unless a name ends in ``_s``."""

    skipping: bool
    """True if a span (equal steps that are simulated in one go) may be longer than one step."""
    until: int
    """Time at which the run stops for now, for example to begin measuring anew; `NEVER` if there is
    no such time. The step that is under way at this time is a span of its own.
    """

    def now_s(self) -> float:
        """Present time in seconds."""

    def report(self, engine: Engine, report: Report, leaves: int) -> None:
        """Send a report to the controller at time `leaves`.

        The controller's answers arrive by `Engine.receive`, possibly before this call returns.
        """

    def co_runners(self, engine: Engine) -> tuple[int, int]:
        """Number of engines that compute now, this one included, and number of those that
        stream.
        """

    def co_runners_changed(self, engine: Engine) -> None:
        """Note that this engine has begun or stopped to compute, or to stream."""

    def began(self, engine: Engine) -> None:
        """Note that this engine has begun a step, or a span of steps."""

    def finished(self, engine: Engine, request: SimulatedRequest) -> None:
        """Note that a request of this engine has received its last token."""


MakeRoom = Callable[
    [Queues, SimulatedMemory, GrowthHold, StepLimits, Callable[[], Answered]], QueueRoom
]
MakeCosts = Callable[[BoundedSteps, SimulatedMemory, int, Callable[[], tuple[int, int]]], StepCosts]


class Engine:
    """One engine with the requests of one tenant, in the order of `arrivals`.

    Times are picoseconds of simulated time. `load_ps` is T_T. `make_room` and `make_costs` replace
    the usual room and costs. An engine that keeps KV blocks of finished requests is given `reuse`,
    its cache on the device, also `loads` if there are tiers, and the `tally` in which both count.
    """

    def __init__(
        self,
        name: str,
        holding: SimulatedMemory,
        bounds: BoundedSteps,
        load_ps: int,
        limits: StepLimits,
        arrivals: Iterator[SimulatedRequest],
        world: Surroundings,
        make_room: MakeRoom = QueueRoom,
        make_costs: MakeCosts = StepCosts,
        reuse: Reuse | None = None,
        loads: NoLoads | None = None,
        tally: Tally | None = None,
    ) -> None:
        self.name, self.holding, self.limits, self.world = name, holding, limits, world
        self.tally = tally or Tally()
        self.loads = loads or NoLoads()
        self.turn = TurnTaking(temporal=limits.temporal)
        self.growth_hold = GrowthHold(limits.hold_s, world.now_s)
        self.queues = Queues(arrivals, limits.group, reuse)
        answered = self.tally.answered
        self.room = make_room(self.queues, holding, self.growth_hold, limits, answered)
        co_runners = partial(world.co_runners, self)
        self.costs = make_costs(bounds, holding, load_ps, co_runners)
        self.next_event = self.queues.next_arrival
        """Time at which `wake` must be called, in picoseconds; `NEVER` if only a message can wake
        it.
        """
        self.stirred = False
        """True if a message has come between two steps, so that the world must call `wake`."""
        self._inbox: list[Allotment | Refusal | Turn] = []
        self._moves = Moves(holding, load_ps, limits.apply_ps, self.tally)
        self._speaker = Speaker(
            self.queues, self.room, self.costs, holding, self.turn, limits, self.tally, self._send
        )
        self._scheduler = Scheduler(
            self.queues,
            self.room,
            self.turn,
            self.growth_hold,
            limits,
            self.tally,
            self._speaker.speak,
            self.loads,
        )
        self._returns = self.queues.reuse.keeps or loads is not None
        """True if KV of requests may be kept and come back; if False, that work is skipped."""
        self._returning = Returning(
            self.queues,
            self.room,
            holding,
            self.costs,
            self.loads,
            self._moves,
            self.tally,
            self.turn,
            co_runners,
        )
        self.stepper = StepTaker(
            self.queues, self.room, self.costs, self._moves, holding, self.tally, self._finished
        )

    # -- what the world asks ------------------------------------------------------------

    @property
    def stepping(self) -> bool:
        """True if a step is under way."""
        return self.stepper.stepping

    @property
    def has_work(self) -> bool:
        """True if any request waits, loads its prefix or runs."""
        return self.queues.unfinished

    @property
    def streams(self) -> bool:
        """True if layers or experts are given away: steps load all streamed layers over the link,
        and the cold experts that they route to.
        """
        return self.holding.layers_remapped > 0 or self.holding.experts > 0

    def report(self) -> Report:
        """Report of the present state."""
        return self._speaker.report()

    def wake(self, now: int) -> None:
        """Handle all that is due now: the end of a span, blocks that were loaded, arrivals, and
        messages that came during the span. Then begin the next step if there is work.
        """
        self.stirred = False
        computed = self.stepper.stepping
        if computed:
            self.stepper.complete(now)
        if self._returns:
            self._returning.receive(now)
        self._arrive(now)
        if not self.holding.reconciled and self._move(now):
            self._speaker.speak(now)
        if self._inbox:
            self._obey(now)
        self._speaker.maybe(now)
        if self._returns:
            self._returning.trim(now)
        self._step(now)
        if self.stepper.stepping != computed:
            self.world.co_runners_changed(self)
        if now >= self.tally.timeline.due:
            holding = self.holding
            used = self.queues.used_blocks
            self.tally.timeline.add((now, holding.extents, used, holding.layers_remapped))
        self.next_event = self._next_event()

    def receive(self, message: Allotment | Refusal | Turn, now: int) -> None:
        """Receive a message. It is acted on immediately between steps, else at the end of the
        current step.
        """
        self._inbox.append(message)
        if self.stepper.stepping:
            self.cut(now)
        else:
            self._arrive(now)
            self._obey(now)
            self.stirred = True

    def come(self, request: SimulatedRequest, now: int) -> None:
        """Add a request that arrives now and was not known before. Its `arrival` may be earlier, at
        another device.

        A span that would not have ended for this request continues.
        """
        self.queues.come(request)
        if not self.stepper.stepping:
            self.next_event = max(now, self._next_event())
        elif self._awaits_arrivals:
            self.cut(now)

    def cut(self, now: int) -> None:
        """End the span with the step that is under way."""
        self.stepper.span.cut(now)
        self.next_event = self.stepper.span.end

    # -- when something happens ---------------------------------------------------------

    def _next_event(self) -> int:
        if self.stepper.stepping:
            return self.stepper.span.end
        queues = self.queues
        if not queues.unfinished:
            return queues.next_arrival
        if self.loads.under_way:
            return min(self.loads.next_end(), queues.next_arrival, self._hold_end())
        return self._hold_end()

    def _hold_end(self) -> int:
        """Time at which requests that lack memory have waited long enough: those that are held, or
        a loaded one that cannot start. `NEVER` if there is none.
        """
        queues, hold = self.queues, self.growth_hold
        waits = queues.held or (queues.stuck and hold.may_hold())
        if waits and self.turn.may_step(queues.begun):
            assert hold.since is not None, "held without a shortage"
            return round(hold.since * PS) + self.limits.hold_ps
        return NEVER

    def _arrive(self, now: int) -> None:
        """Queue the requests that have arrived, and begin to load their blocks from the tiers."""
        if self.queues.next_arrival <= now:
            for request in self.queues.arrive(now):
                self.loads.arrived(request, now)

    # -- messages -----------------------------------------------------------------------

    def _obey(self, now: int) -> None:
        while self._inbox:
            message = self._inbox.pop(0)
            if isinstance(message, Turn):
                self.turn.told(message)
                self._returning.spill()
            elif isinstance(message, Refusal):
                self.growth_hold.refused()
                continue
            elif self.holding.aim(message):
                self.growth_hold.answered()
                self._move(now)
            self._speaker.speak(now)

    def _move(self, now: int) -> bool:
        """Move towards the allotment, after preempting requests whose memory it recalls; True if
        anything moved.
        """
        queues, streamed = self.queues, self.streams
        while self.holding.recalls(queues.used_blocks, len(queues.running)):
            self._scheduler.preempt()
        moved = self._moves.reconcile(queues.used_blocks, now)
        self._returning.trim(now)
        if self.streams != streamed:
            self.world.co_runners_changed(self)
        return moved

    def _send(self, report: Report, now: int) -> None:
        # What a move has freed is told when it is done.
        self.world.report(self, report, max(now, self._moves.ready_at))

    # -- steps --------------------------------------------------------------------------

    def _step(self, now: int) -> None:
        """Schedule and begin the next step, or a span of equal steps."""
        chunks = self._scheduler.schedule(now)
        if self._returns:
            self._returning.trim(now)
        if chunks is not None:
            self.stepper.begin(now, chunks, self._horizon())
            self.world.began(self)
        if self._returns:
            self._returning.pace(self.stepper.span.first_ps if self.stepping else None)

    def _horizon(self) -> Horizon | None:
        """Times at which the next span must end; None if steps must be taken one by one."""
        if self.growth_hold.missing or self.loads.under_way or not self.world.skipping:
            return None
        event = self._speaker.due if self.limits.elastic else NEVER
        if self._awaits_arrivals:
            event = min(event, self.queues.next_arrival)
        return Horizon(event, self.world.until)

    @property
    def _awaits_arrivals(self) -> bool:
        """True if the next request that arrives may be admitted immediately."""
        return not self.queues.waiting and self.turn.granted

    def _finished(self, request: SimulatedRequest, now: int) -> None:
        self.tally.finished(request, now)
        self.world.finished(self, request)
