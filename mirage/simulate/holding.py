"""The memory that one simulated engine holds, counted in layers, experts and KV extents.

Blocks are taken to lie dense, so an extent is in use only if the blocks in use would not fit into
fewer; or `scattered`, each anywhere.
"""

from __future__ import annotations

from collections.abc import Callable

from mirage.control.engine.way import CallBack, Map, Move, Parameters, Retire, Unmap, Way
from mirage.control.targets import Target
from mirage.geometry import footprint
from mirage.protocol import Allotment, ModelShape
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
        self.usable_extents, self.retiring_extents = base.kv_extents, 0
        self.reconciled = True
        self._copies = copies
        self._scattered = scattered
        self._used_blocks = 0
        """By requests, when it was told last."""
        self._way = Way(self)
        self._way.aim(_as_allotment(shape, base))

    @property
    def revision(self) -> int:
        """Of the newest allotment; 0 before the first."""
        return self._target.revision

    @property
    def extents(self) -> int:
        """That hold memory."""
        return self.usable_extents + self.retiring_extents

    @property
    def held_bytes(self) -> int:
        return footprint(self.shape, self.alpha, self.extents, self.experts)

    @property
    def blocks(self) -> int:
        """Blocks that may be allocated; the null block is none of them."""
        return self.usable_extents * self.shape.extent_blocks - 1

    @property
    def open_blocks(self) -> int | None:
        """Blocks that waiting requests may use as well; None for all."""
        extents = self._way.open_extents
        return None if extents is None else extents * self.shape.extent_blocks - 1

    def recalls(self, used_blocks: int, running: int) -> bool:
        """Whether one of the running requests, which have so many blocks, is to be preempted."""
        self._used_blocks = used_blocks
        return self._way.recalls(running)

    def aim(self, allotment: Allotment) -> bool:
        """Adopt an allotment; False for one that is not newer than the present."""
        newer = self._way.aim(allotment)
        self.reconciled = self.reconciled and not newer
        return newer

    def reconcile(self, used_blocks: int) -> tuple[bool, int]:
        """One pass towards the target: whether anything moved, and layers to load for it."""
        self._used_blocks = used_blocks
        before = self._state
        for move in self._way.moves():
            self._make(move)
        self.reconciled = self._way.reached
        after = self._state
        if before == after:
            return False, 0
        return True, self._copies(before[:2], after[:2])

    def _make(self, move: Move) -> None:
        match move:
            case Parameters():
                self.alpha, self.beta, self.experts = move.alpha, move.beta, move.experts
            case Retire(extents, anew):
                if anew:
                    self._call_back(self.retiring_extents)
                self._call_back(-extents)
            case CallBack(extents):
                self._call_back(extents)
            case Unmap(extents):
                self.retiring_extents -= extents
            case Map(extents):
                self.usable_extents += extents

    def _call_back(self, extents: int) -> None:
        self.usable_extents += extents
        self.retiring_extents -= extents

    @property
    def _target(self) -> Allotment:
        assert self._way.target is not None, "it started with one"
        return self._way.target

    @property
    def _state(self) -> tuple[int, int, int, int]:
        return self.alpha, self.beta, self.experts, self.extents

    # -- what the way asks --------------------------------------------------------------

    def busy_extents(self) -> int:
        """Extents that requests sat on when it was told last."""
        return self.extents_of(self._used_blocks)

    def extents_of(self, used_blocks: int) -> int:
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

    def awaits_requests(self) -> bool:
        """False: whatever retires, the blocks in use lie elsewhere if there is room."""
        return False

    def may_retire(self) -> bool:
        """At any time."""
        return True

    def emptied_extents(self) -> int:
        """All that retire, but for those that the blocks in use need; one holds the null block."""
        return max(0, self.extents - max(self.usable_extents, self.busy_extents(), 1))

    def affordable_extents(self) -> int:
        """That the rest of the grant pays for."""
        return self.spare() // self.shape.extent_bytes

    def spare(self) -> int:
        """Bytes of the grant that are not held."""
        return max(0, self._target.grant_bytes - self.held_bytes)

    def cost(self, alpha: int, experts: int) -> int:
        """Bytes without KV extents."""
        return footprint(self.shape, alpha, 0, experts)


def _as_allotment(shape: ModelShape, base: Target) -> Allotment:
    nbytes = footprint(shape, base.alpha, base.kv_extents, base.experts)
    return Allotment(0, base.alpha, base.beta, base.kv_extents, nbytes, experts=base.experts)
