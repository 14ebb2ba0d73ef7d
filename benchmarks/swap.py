"""Simulated KV swapping, as by Pie: KV blocks without room on the device are in host memory.

In each step the swapped blocks are read, and as many are written out, in both directions at the
link's mixed bandwidth, overlapped with compute. Requests are admitted while the copies stay hidden,
because Pie expands only as far as it costs nothing. Running requests may always grow.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from mirage.config import Policy
from mirage.control.answers import Answered
from mirage.control.growth_hold import GrowthHold
from mirage.simulate.costs import StepCosts
from mirage.simulate.holding import SimulatedMemory
from mirage.simulate.limits import StepLimits
from mirage.simulate.queues import Queues
from mirage.simulate.roofline import CostBound, Roofline, Work
from mirage.simulate.room import QueueRoom
from mirage.simulate.variants import Variant


class SpillRoom(QueueRoom):
    """Room of a static engine that spills. `token_ps` is one token's KV over the link."""

    def __init__(
        self,
        queues: Queues,
        holding: SimulatedMemory,
        growth_hold: GrowthHold,
        limits: StepLimits,
        answered: Callable[[], Answered],
        *,
        roofline: Roofline,
        token_ps: int,
    ) -> None:
        super().__init__(queues, holding, growth_hold, limits, answered)
        self._roofline, self._token_ps = roofline, token_ps

    @property
    def free(self) -> int:
        """Free blocks; host memory counts as large enough for all."""
        return 1 << 40

    def for_newcomers(self) -> int:
        """Blocks for new requests: those left on the device, and those that cross the link while a
        step computes.
        """
        batch = self._queues.batch
        hidden = self._roofline.compute_ps(Work(batch.size, batch.context)) // self._token_ps
        spilled = hidden // self._limits.block_tokens
        return self._holding.blocks + spilled - self._queues.used_blocks


class SpillCosts(StepCosts):
    """Costs of steps in which swapped KV crosses the link: a step takes at least as long as the
    link needs for it.

    `token_ps` is the time in picoseconds in which one token's KV crosses the link. The swapped
    tokens are those beyond the KV blocks on the device, of `block_tokens` tokens each.
    """

    def __init__(
        self,
        roofline: Roofline,
        holding: SimulatedMemory,
        load_ps: int,
        co_runners: Callable[[], tuple[int, int]],
        *,
        token_ps: int,
        block_tokens: int,
    ) -> None:
        super().__init__(roofline, holding, load_ps, co_runners)
        self._token_ps, self._block_tokens = token_ps, block_tokens

    def bounds(self, tokens: int) -> tuple[CostBound, ...]:
        resident = self._holding.blocks * self._block_tokens
        fixed = self.roofline.overhead_ps - resident * self._token_ps
        return (*super().bounds(tokens), CostBound(fixed, self._token_ps, self._token_ps, 0, 0))


class Swap(Variant):
    """Policy `static` with KV swapping: KV memory beyond the device spills to host memory."""

    def parts(self, roofline: Roofline, token_ps: int, block_tokens: int) -> dict[str, Any]:
        return {
            "make_room": partial(SpillRoom, roofline=roofline, token_ps=token_ps),
            "make_costs": partial(SpillCosts, token_ps=token_ps, block_tokens=block_tokens),
        }


SWAP = Swap(
    "swap",
    Policy.STATIC,
    "as static, and KV that finds no place lies in host memory (Pie, arXiv 2411.09317), which is "
    "taken to be as large as need be: what lies there is read back and as much written out in "
    "every step, both at the link's mixed bandwidth, beside compute. In pictures it is what is "
    "above the line.",
)
