"""From the memory an engine holds to the memory it shall hold, one safe step at a time.

The control server states an `Allotment`; `Reconciler.reconcile` moves towards it as far as the
pages at hand and the blocks in use allow, and is called again whenever that may have changed.
Giving comes before taking: layers are given away first, idle KV extents next; what became
free is then mapped where it is wanted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

from mirage.engine.blockpool import ElasticBlockPool
from mirage.engine.memory import EngineMemory
from mirage.engine.pace import Kind, Pace
from mirage.engine.shortage import Shortage
from mirage.protocol import Allotment
from mirage.streaming.giving import affordable
from vmm.driver import OutOfMemory

logger = logging.getLogger("mirage.engine.reconcile")

MISSING = "granted and not free yet: %s"


class Fence:
    """Which scheduled steps have been processed.

    With asynchronous scheduling two steps are in flight. A block that became free belongs to
    no request, yet a step scheduled before may still touch it.
    """

    def __init__(self) -> None:
        self.scheduled = 0
        self.processed = 0

    @property
    def idle(self) -> bool:
        """Whether no step is in flight."""
        return self.processed == self.scheduled

    def passed(self, mark: int) -> bool:
        """Whether every step scheduled up to `mark` has been processed."""
        return self.processed >= mark


class Reconciler:
    """Moves one engine's memory to its newest allotment."""

    def __init__(
        self,
        memory: EngineMemory,
        blocks: ElasticBlockPool,
        fence: Fence,
        *,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
        demote: Callable[[list[int]], None] = lambda extents: None,
        may_demote: Callable[[], bool] = lambda: True,
    ) -> None:
        """`demote` is told of extents that are about to forget what is cached in them.

        None does while it may not be told: a later pass sees to it.
        """
        self._demote, self._may_demote = demote, may_demote
        self.memory, self.blocks, self.fence = memory, blocks, fence
        self._pace = pace or Pace(None, lambda: False)
        self.target: Allotment | None = None
        self._emptied_at: dict[int, int] = {}
        self._clock = clock
        self._short: dict[Kind, Shortage] = {"extent": Shortage(), "layer": Shortage()}
        """Granted memory, by kind, that the device refused lately."""

    @property
    def reconciled(self) -> bool:
        """True if the engine holds exactly its allotment."""
        target = self.target
        return target is None or (
            self.blocks.backed_extents() == target.kv_extents
            and not self.blocks.retiring
            and (self.memory.alpha, self.memory.experts) == (target.alpha, target.experts)
        )

    @property
    def exceeded(self) -> bool:
        """Whether running requests sit on more than was called back to."""
        target = self.target
        return (
            target is not None
            and target.recall
            and self.blocks.backed_extents() > target.kv_extents
            and self.blocks.busy_extents() > target.kv_extents
        )

    @property
    def open_blocks(self) -> int | None:
        """Blocks that waiting requests may use as well; None for all."""
        if self.target is None or self.target.open_extents is None:
            return None
        return self.target.open_extents * self.blocks.extent_blocks

    def aim(self, allotment: Allotment) -> bool:
        """Adopt an allotment; False for one that is not newer than the present."""
        if self.target is not None and allotment.revision <= self.target.revision:
            return False
        self.target = allotment
        self.memory.regrant(allotment.grant_bytes)
        self.reconcile()
        return True

    def reconcile(self) -> bool:
        """One pass; True if anything moved."""
        target = self.target
        if target is None:
            return False
        self._pace.begin()
        moved = self._give_layers(target)
        moved |= self._shrink(target.kv_extents)
        moved |= self._grow(target.kv_extents)
        moved |= self._restore(target)
        self.memory.pool.trim()
        if moved:
            self.memory.self_check()
        return moved

    # -- KV extents ---------------------------------------------------------------------

    def _shrink(self, wanted: int) -> bool:
        if self.target is not None and self.target.recall and any(self.blocks.retiring.values()):
            # Requests went that sat elsewhere: what is empty now shall go instead.
            self._unretire(len(self.blocks.retiring))
        usable = self.blocks.usable_blocks // self.blocks.extent_blocks
        if usable > wanted and self._may_demote():
            retirees = self.blocks.pick_retirees(usable - wanted)
            self._demote(retirees)
            self.blocks.retire(retirees)
        ready = [extent for extent in self.blocks.emptied() if self._untouched(extent)]
        ready = ready[: self._pace.most("extent", len(ready))]
        if ready:
            self.blocks.drop(ready)
            with self._pace.moving("extent", len(ready)):
                self.memory.unmap_extents(ready)
            for extent in ready:
                self._emptied_at.pop(extent, None)
        return bool(ready)

    def _untouched(self, extent: int) -> bool:
        """Whether no step in flight can touch the emptied extent."""
        if extent not in self._emptied_at:
            self._emptied_at[extent] = self.fence.scheduled
            self.memory.emptied.add(extent)
        return self.fence.passed(self._emptied_at[extent])

    def _grow(self, wanted: int) -> bool:
        usable = self.blocks.usable_blocks // self.blocks.extent_blocks
        missing = wanted - usable
        if missing <= 0:
            return False
        called_back = self._unretire(missing)
        wanted = min(missing - called_back, self.memory.affordable_extents())
        count = self._most("extent", wanted)
        extents = self.blocks.unmapped(count) if count > 0 else []
        mapped: list[int] = []
        if extents:
            with self._pace.moving("extent", count):
                mapped = self._map(extents, wanted)
            self.blocks.add(mapped)
        return bool(called_back or mapped)

    def _map(self, extents: list[int], wanted: int) -> list[int]:
        """Extents that the device has memory for; it is asked once more if torch cached some."""
        short, asked = self._short["extent"], len(extents)
        mapped = self._mapped(extents)
        if len(mapped) < asked and not short.lasts:
            logger.warning(MISSING, f"{len(mapped)} of {asked} KV extents could be had")
            self.memory.uncache()
            mapped += self._mapped(extents[len(mapped) :])
        if len(mapped) < asked:
            short.refused(asked - len(mapped), self._clock())
        else:
            short.had(asked, wanted)
        return mapped

    def _mapped(self, extents: list[int]) -> list[int]:
        """None if the device has pages and no memory to map them."""
        try:
            return self.memory.map_extents(extents)
        except OutOfMemory as error:
            logger.warning(MISSING, error)
            return []

    def _unretire(self, count: int) -> int:
        called_back = self.blocks.unretire(count)
        self._emptied_at = {e: m for e, m in self._emptied_at.items() if e in self.blocks.retiring}
        return called_back

    # -- layers -------------------------------------------------------------------------

    def _give_layers(self, target: Allotment) -> bool:
        memory = self.memory
        if memory.experts or target.experts:
            return self._move_experts(target, 0)
        count = self._pace.most("layer", target.alpha - memory.alpha)
        if count <= 0:
            return False
        with self._pace.moving("layer", count):
            memory.move_layers(memory.alpha + count, target.beta)
        return True

    def _restore(self, target: Allotment) -> bool:
        """Bring layers back as far as pages allow, and adopt the wanted beta."""
        memory = self.memory
        if memory.streamer is None:
            return False
        if memory.experts or target.experts:
            return self._move_experts(target, memory.pool.available)
        back = min(memory.alpha - target.alpha, memory.affordable_layers())
        count = self._most("layer", back)
        alpha = memory.alpha - count
        # The wanted beta belongs to the wanted alpha: on the way there it could cost a layer.
        beta = (target.beta if alpha == target.alpha else memory.beta) if alpha else 0
        if (alpha, beta) == (memory.alpha, memory.beta):
            return False
        with self._pace.moving("layer", count):
            return self._had("layer", count, back, partial(memory.move_layers, alpha, beta))

    def _move_experts(self, target: Allotment, spare: int) -> bool:
        """From or to experts given away, as far as `spare` pages allow, in one go."""
        memory = self.memory
        now = memory.alpha, memory.experts
        alpha, experts = affordable(memory.layer_pages, now, (target.alpha, target.experts), spare)
        if (alpha, experts) == now:
            return False
        beta = (target.beta if alpha == target.alpha else memory.beta) if alpha else 0
        if spare and not self._short["layer"].most(1, self._clock()):
            return False
        return self._had("layer", 1, 1, partial(memory.move_layers, alpha, beta, experts))

    # -- memory that was granted ----------------------------------------------------------

    def _most(self, kind: Kind, wanted: int) -> int:
        """Number of the `wanted` extents or layers to ask the device for in this pass."""
        return self._short[kind].most(self._pace.most(kind, wanted), self._clock())

    def _had(self, kind: Kind, asked: int, wanted: int, take: Callable[[], None]) -> bool:
        """True if memory that was granted could be had. If not, a later pass tries again."""
        short = self._short[kind]
        try:
            self._take(short, take)
        except OutOfMemory:
            short.refused(asked, self._clock())
            return False
        short.had(asked, wanted)
        return True

    def _take(self, short: Shortage, take: Callable[[], None]) -> None:
        """Call `take`; after a first refusal empty torch's cache and call it again.

        Raises `OutOfMemory` if the device refuses again, or a shortage lasts already.
        """
        try:
            take()
        except OutOfMemory as error:
            if short.lasts:
                raise
            logger.warning(MISSING, error)
            self.memory.uncache()
            take()
