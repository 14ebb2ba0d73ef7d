"""Reports of a simulated engine to the controller, and the times at which they are sent."""

from __future__ import annotations

from collections.abc import Callable

from mirage.control.demand import Demand
from mirage.control.reporting import Cached, HeldMemory, LayerTimes, make_report
from mirage.control.turn_taking import TurnTaking
from mirage.counters import Counters
from mirage.protocol import Report
from mirage.simulate.costs import StepCosts
from mirage.simulate.holding import SimulatedMemory
from mirage.simulate.limits import StepLimits
from mirage.simulate.queues import Queues
from mirage.simulate.roofline import PS
from mirage.simulate.room import QueueRoom
from mirage.simulate.tally import Tally


class Speaker:
    """Sender of one simulated engine's reports, which go out through `send`. Times are
    picoseconds."""

    def __init__(
        self,
        queues: Queues,
        room: QueueRoom,
        costs: StepCosts,
        holding: SimulatedMemory,
        turn: TurnTaking,
        limits: StepLimits,
        tally: Tally,
        send: Callable[[Report, int], None],
    ) -> None:
        self._queues, self._room, self._costs, self._holding = queues, room, costs, holding
        self._turn, self._limits, self._tally, self._send = turn, limits, tally, send
        self.due = 0
        """Time at which an elastic engine reports next, in picoseconds."""
        self._said: tuple[bool, bool] | None = None
        """Last reported state, None before: True if the engine had work; True if it had the
        turn.
        """

    def maybe(self, now: int) -> None:
        """Report if a report is due, or if the engine's work or turn began or ended since the last
        one.
        """
        due = self._limits.elastic and now >= self.due
        if due or (self._queues.unfinished, self._holds_turn()) != self._said:
            self.speak(now)

    def speak(self, now: int) -> None:
        """Send a report now."""
        self.due = now + self._limits.report_ps
        report = self.report()
        self._said = self._queues.unfinished, report.holds_turn
        self._send(report, now)

    def report(self) -> Report:
        """Report of the present state, with the fields that a real engine sends."""
        queues, holding, counters = self._queues, self._holding, self._tally.counters
        used = queues.used_blocks
        return make_report(
            revision=holding.revision,
            holds_turn=self._holds_turn(),
            held=HeldMemory(
                holding.held_bytes,
                holding.layers_remapped,
                holding.stream_slots,
                holding.extents,
                holding.extents_of(used),
                used,
                holding.blocks,
                holding.experts,
            ),
            wanted=self._room.demand() if self._limits.elastic else Demand(),
            extent_blocks=holding.shape.extent_blocks,
            running=len(queues.running),
            waiting=len(queues.waiting) + len(queues.loading),
            counters=Counters(
                started=counters.started,
                preemptions=counters.preemptions,
                steps=counters.steps,
                tokens=counters.tokens,
                prefill_tokens=counters.prefill_tokens,
                recomputed_tokens=counters.recomputed_tokens,
                stall_s=counters.stall_ps / PS,
                bytes_streamed=counters.bytes_streamed,
                **{f"tokens_from_{place}": tokens for place, tokens in counters.found.items()},
                expert_loads=round(counters.expert_loads),
                expert_bytes_loaded=round(counters.expert_loads * holding.shape.expert_bytes),
            ),
            times=LayerTimes(
                self._costs.load_ps / PS,
                self._costs.layer_compute_s(queues.batch),
                *self._costs.expert_times(),
                token_s=self._costs.token_s,
                step_s=self._costs.step_s,
            ),
            cached=Cached(queues.reuse.cached, queues.reuse.again, queues.reuse.keeps_below),
        )

    def _holds_turn(self) -> bool:
        return self._turn.holds(self._queues.begun, executing=False)
