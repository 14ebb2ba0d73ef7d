"""Treatment of a request that lacks blocks in one step: it is held until memory comes, or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mirage.control.growth_hold import GrowthHold
from mirage.engine.step_bounds import StepBounds
from mirage.engine.turn import EngineTurn

if TYPE_CHECKING:
    from mirage.engine.kv_memory import KVMemory
    from mirage.engine.queues import EngineQueues
    from mirage.engine.tiers.scheduling import SchedulerTiers


class StepHold:
    """Treatment in one step of a request that lacks blocks."""

    def __init__(
        self,
        growth_hold: GrowthHold,
        bounds: StepBounds,
        *,
        answerable: bool,
        turn: EngineTurn,
        queues: EngineQueues,
        kv: KVMemory,
        tiers: SchedulerTiers,
    ) -> None:
        """Initialise; `answerable` is False in an engine without a control server, which holds no
        request."""
        self._growth_hold, self._bounds, self._answerable = growth_hold, bounds, answerable
        self._turn, self._queues, self._kv, self._tiers = turn, queues, kv, tiers
        self.held = False
        """True if a request was held in the last step."""
        self.blocked = False
        """True if a request lacked blocks in the last step, no request runs, and no answer is
        awaited."""

    def begin_step(self) -> None:
        """Begin a step, before vLLM's schedule()."""
        self.held = self.blocked = False
        self._growth_hold.begin_step()

    def end_step(self) -> bool:
        """End the scheduling of the step; True if the number of blocks that requests lack has
        changed since the step before, and should be reported immediately."""
        return self._growth_hold.end_step()

    def answered(self) -> None:
        """Note that an allotment came: memory may be on its way, so the engine waits for it instead
        of preempting.
        """
        self._growth_hold.answered()

    def refused(self) -> None:
        """Note that no memory can be had for the present shortage."""
        self._growth_hold.refused()

    # -- what `HoldingKVCacheManager` asks, in the order of a schedule() --------------------

    def recalls(self) -> bool:
        """True if a running request must be preempted although blocks are free (recall)."""
        return self._kv.recalls()

    def copied(self) -> bool:
        """Wait for copies of blocks to the pool, which keep these blocks from requests; True if
        there were any."""
        return self._tiers.copied()

    def stuck(self, request: Any) -> bool:
        """True if `request`, which waits, holds blocks, and no request runs that could free any."""
        return self._queues.stuck(request)

    def lacks(self, blocks: int, free: int) -> None:
        """Note that a request lacks `blocks` blocks beyond the `free` ones: hold it, if an answer
        may come."""
        self._growth_hold.lacks(blocks, free)
        answerable = self._turn.granted
        self.held = self._answerable and self._growth_hold.may_hold(answerable=answerable)
        self._bounds.held = self.held
        self.blocked = not self.held and not self._queues.running
