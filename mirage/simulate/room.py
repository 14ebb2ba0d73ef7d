"""KV blocks that requests find free, and those that an engine asks for."""

from __future__ import annotations

from functools import partial

from mirage.control.demand import Demand, blocks_ahead, blocks_soon, demand, left_free
from mirage.control.growth_hold import GrowthHold
from mirage.simulate.holding import Holding
from mirage.simulate.limits import StepLimits
from mirage.simulate.queues import Queues


class Room:
    """Of one engine: `queues` in the memory of `holding`. All numbers are KV blocks."""

    def __init__(
        self, queues: Queues, holding: Holding, growth_hold: GrowthHold, limits: StepLimits
    ) -> None:
        self._queues, self._holding = queues, holding
        self._growth_hold, self._limits = growth_hold, limits

    @property
    def free(self) -> int:
        """Blocks that running requests may take."""
        return self._holding.blocks - self._queues.used_blocks

    @property
    def growth(self) -> int:
        """Free blocks that may be taken without a look at what is cached in them."""
        return self._queues.reuse.growth(self.free)

    def lacking(self) -> int:
        """Blocks that running requests lack for their next token."""
        queues = self._queues
        return max(0, queues.batch.blocks_due() + len(queues.held) - self.free)

    def for_newcomers(self) -> int:
        """Blocks that waiting requests may have, once the running ones have this step's."""
        due, limits, holding = self._queues.batch.blocks_due(), self._limits, self._holding
        running = len(self._queues.running)
        return (
            self.free
            - due
            - left_free(
                limits.kept,
                soon=blocks_soon(limits.groups, running, limits.lookahead_steps),
                usable_blocks=holding.blocks,
                open_blocks=holding.open_blocks,
                wanted=partial(self.demand, due),
            )
        )

    def demand(self, taken: int = 0) -> Demand:
        """What is wanted, with `taken` blocks more in use than now."""
        queues = self._queues
        return demand(
            used_blocks=queues.used_blocks + taken,
            due_blocks=self._growth_hold.due,
            ahead=self._ahead(),
            starting=queues.blocks_starting(
                self._limits.max_num_seqs - len(queues.running) - len(queues.loading)
            ),
        )

    def _ahead(self) -> int:
        limits, running = self._limits, len(self._queues.running)
        headroom = limits.headroom_extents * self._holding.shape.extent_blocks
        return blocks_ahead(limits.groups, running, limits.lookahead_steps, headroom)
