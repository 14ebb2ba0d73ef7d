"""Free KV blocks for requests, and the blocks that an engine requests."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mirage.control.answers import Answered
from mirage.control.demand import Demand
from mirage.control.engine.wants import Wants
from mirage.control.growth_hold import GrowthHold
from mirage.facts import KVGroups
from mirage.geometry import gained_extents
from mirage.simulate.holding import SimulatedMemory
from mirage.simulate.limits import StepLimits
from mirage.simulate.queues import Queues


class QueueRoom:
    """Room for the requests in `queues`, in the memory of `holding`. All numbers are KV blocks."""

    def __init__(
        self,
        queues: Queues,
        holding: SimulatedMemory,
        growth_hold: GrowthHold,
        limits: StepLimits,
        answered: Callable[[], Answered],
    ) -> None:
        self._queues, self._holding, self._limits = queues, holding, limits
        self._answered = answered
        self._keeps = limits.kept != "nothing"
        self._wants = Wants(
            KVGroups((limits.group,)),
            holding.shape.extent_blocks,
            limits.lookahead_steps,
            limits.headroom_extents,
            limits.kept,
            growth_hold,
        )

    @property
    def free(self) -> int:
        """Free blocks, which running requests may take."""
        return self._holding.blocks - self._queues.used_blocks

    @property
    def growth(self) -> int:
        """Free blocks that may be taken without dropping cached ones first."""
        return self._queues.reuse.growth(self.free)

    def lacking(self) -> int:
        """KV blocks that running requests lack for their next tokens. If none runs, and the first
        request whose prefix was loaded from a tier waits for the blocks of the rest of its prompt:
        the blocks that it lacks.
        """
        queues = self._queues
        needed = queues.batch.blocks_due() + len(queues.held)
        if queues.loading and not queues.running and (loaded := queues.first_loaded):
            needed = queues.lacks(loaded)
        lacking = needed - self.free
        return lacking if lacking > 0 else 0

    def for_newcomers(self) -> int:
        """Free blocks that waiting requests may take: all free ones, less those that running
        requests need in this step, and less those that are left free for running requests.
        """
        due, holding = self._queues.batch.blocks_due(), self._holding
        if not self._keeps:
            return self.free - due
        left = self._wants.left_free(
            len(self._queues.running),
            holding.usable_extents,
            holding.open_extents,
            partial(self.demand, due),
            lent=holding.lent,
            lent_extents=gained_extents(holding.shape, holding.layers_remapped),
            answered=self._answered(),
        )
        return self.free - due - left

    def demand(self, taken: int = 0) -> Demand:
        """Demand of the engine if `taken` more blocks were in use."""
        queues = self._queues
        running = len(queues.running)
        slots = self._limits.max_num_seqs - running
        used = queues.used_blocks + taken
        return self._wants.demand(used, running, queues.blocks_starting(slots))
