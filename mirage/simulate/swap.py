"""KV swapping, as Pie has it: KV that finds no place on the device lies in host memory.

What spilled is read back in each step while as much is written out, both ways at the link's
mixed bandwidth, overlapped with compute. Requests are admitted while that stays hidden, as Pie
expands only as far as it costs nothing; running requests may always grow.
"""

from __future__ import annotations

from collections.abc import Iterator

from mirage.simulate.batch import Request
from mirage.simulate.engine import Engine, StepLimits, Surroundings
from mirage.simulate.holding import Holding
from mirage.simulate.roofline import CostBound, Roofline, Work


class SwapEngine(Engine):
    """An engine of policy static that spills. `token_ps` is one token's KV over the link."""

    def __init__(
        self,
        name: str,
        holding: Holding,
        roofline: Roofline,
        load_ps: int,
        limits: StepLimits,
        arrivals: Iterator[Request],
        world: Surroundings,
        token_ps: int,
    ) -> None:
        super().__init__(name, holding, roofline, load_ps, limits, arrivals, world)
        self._token_ps = token_ps

    @property
    def free_blocks(self) -> int:
        """Host memory is taken to be as large as need be."""
        return 1 << 40

    def _admissible_blocks(self) -> int:
        work = Work(self.batch.size, self.batch.context)
        hidden = self.roofline.compute_ps(work) // self._token_ps
        return self.holding.blocks + hidden // self.limits.block_tokens - self.used_blocks

    def _bounds(self) -> tuple[CostBound, ...]:
        bounds = super()._bounds()
        resident = self.holding.blocks * self.limits.block_tokens
        fixed = self.roofline.overhead_ps - resident * self._token_ps
        return (*bounds, CostBound(fixed, self._token_ps, self._token_ps, 0, 0))
