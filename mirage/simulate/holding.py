"""The memory that one simulated engine holds, and its way to an allotment.

What `mirage/engine/reconcile.py` does with pages is counted here in extents and layers: giving
comes before taking, and nothing that is in use is given. Blocks are taken to lie dense, so an
extent is in use only if the blocks in use would not fit into fewer; or `scattered`, each anywhere.
"""

from __future__ import annotations

from collections.abc import Callable

from mirage.control.targets import Target
from mirage.geometry import footprint
from mirage.protocol import Allotment, ModelShape
from mirage.streaming.giving import affordable
from mirage.units import ceil_div


class Holding:
    """Layers and KV extents of an engine of `shape`; starts with `base`.

    `copies(before, after)` counts the layers that must be loaded when the streamed set of
    `before` = (alpha, beta) becomes that of `after`.
    """

    def __init__(
        self,
        shape: ModelShape,
        base: Target,
        copies: Callable[[tuple[int, int], tuple[int, int]], int],
        scattered: bool = False,
    ) -> None:
        self.shape = shape
        self.alpha, self.beta, self.experts = base.alpha, base.beta, base.experts
        self.extents = base.kv_extents
        self.revision = 0
        self.reconciled = True
        self._copies = copies
        self._scattered = scattered
        self._target = Allotment(
            0,
            base.alpha,
            base.beta,
            base.kv_extents,
            footprint(shape, base.alpha, base.kv_extents, base.experts),
            experts=base.experts,
        )

    @property
    def held_bytes(self) -> int:
        return footprint(self.shape, self.alpha, self.extents, self.experts)

    @property
    def blocks(self) -> int:
        """Blocks that may be allocated; the null block is none of them."""
        usable = min(self.extents, self._target.kv_extents)
        return usable * self.shape.extent_blocks - 1

    @property
    def open_blocks(self) -> int | None:
        """Blocks that waiting requests may use as well; None for all."""
        extents = self._target.open_extents
        return None if extents is None else extents * self.shape.extent_blocks - 1

    def busy_extents(self, used_blocks: int) -> int:
        """Extents that `used_blocks` lie on, the null block beside them."""
        if not used_blocks:
            return 0
        per_extent = self.shape.extent_blocks
        dense = ceil_div(used_blocks + 1, per_extent)
        if not self._scattered:
            return dense
        # Expected, if every block lay anywhere among those that are backed.
        free_share = max(0.0, 1 - used_blocks / (self.extents * per_extent))
        return max(dense, round(self.extents * (1 - free_share**per_extent)))

    def exceeds(self, used_blocks: int) -> bool:
        """Whether running requests sit on more than they may, and are to be preempted."""
        return self._target.recall and self.busy_extents(used_blocks) > self._target.kv_extents

    def aim(self, allotment: Allotment) -> bool:
        """Adopt an allotment; False for one that is not newer than the present."""
        if allotment.revision <= self.revision:
            return False
        self.revision, self._target, self.reconciled = allotment.revision, allotment, False
        return True

    def reconcile(self, used_blocks: int) -> tuple[bool, int]:
        """One pass towards the target: whether anything moved, and layers to load for it."""
        target, before = self._target, self._state
        self._move(target, 0)
        shrunk = min(self.extents, max(target.kv_extents, self.busy_extents(used_blocks), 1))
        self.extents = shrunk
        self._grow(target)
        self._restore(target)
        after = self._state
        self.reconciled = (self.alpha, self.experts, self.extents) == (
            target.alpha,
            target.experts,
            target.kv_extents,
        )
        if before == after:
            return False, 0
        return True, self._copies(before[:2], after[:2])

    def _grow(self, target: Allotment) -> None:
        spare = target.grant_bytes - self.held_bytes
        more = min(target.kv_extents - self.extents, spare // self.shape.extent_bytes)
        self.extents += max(0, more)

    @property
    def _state(self) -> tuple[int, int, int, int]:
        return self.alpha, self.beta, self.experts, self.extents

    def _restore(self, target: Allotment) -> None:
        self._move(target, max(0, target.grant_bytes - self.held_bytes))
        if self.alpha == target.alpha:
            self.beta = target.beta

    def _move(self, target: Allotment, spare: int) -> None:
        now = self.alpha, self.experts
        to = target.alpha, target.experts
        self.alpha, self.experts = affordable(self._parameters, now, to, spare)
        if self.alpha > now[0]:
            self.beta = target.beta
        self.beta = self.beta if self.alpha else 0

    def _parameters(self, alpha: int, experts: int) -> int:
        return footprint(self.shape, alpha, 0, experts)
