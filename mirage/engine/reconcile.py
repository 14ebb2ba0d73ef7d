"""From the memory an engine holds to the memory it shall hold, one safe step at a time.

The control server states an `Allotment`; the `Way` to it says what to move, and the `Reconciler`
moves it, as far as the device has the memory that was granted. It is called again whenever more
may have become possible.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

from mirage.control.engine.way import CallBack, Kind, Map, Move, Parameters, Retire, Unmap, Way
from mirage.engine.blockpool import ElasticBlocks
from mirage.engine.device_memory import DeviceMemory
from mirage.engine.fence import Fence
from mirage.engine.holding import EngineHolding
from mirage.engine.pace import Pace
from mirage.engine.shortage import Shortage
from mirage.protocol import Allotment
from vmm.driver import OutOfMemory

logger = logging.getLogger("mirage.engine.reconcile")

MISSING = "granted and not free yet: %s"


class Reconciler:
    """Moves one engine's memory to its newest allotment."""

    def __init__(
        self,
        memory: DeviceMemory,
        blocks: ElasticBlocks,
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
        self._demote = demote
        self.memory, self.blocks = memory, blocks
        self.holding = EngineHolding(memory, blocks, fence, may_demote)
        self._way = Way(self.holding, self)
        self._pace = pace or Pace(None, lambda: False)
        self._clock = clock
        self._short: dict[Kind, Shortage] = {"extent": Shortage(), "layer": Shortage()}
        """Granted memory, by kind, that the device refused lately."""

    @property
    def target(self) -> Allotment | None:
        """The newest allotment."""
        return self._way.target

    @property
    def reconciled(self) -> bool:
        """True if the engine holds exactly its allotment."""
        return self._way.reached

    @property
    def exceeded(self) -> bool:
        """Whether running requests sit on more than was called back to."""
        return self._way.exceeded

    def recalls(self, running: int) -> bool:
        """True if one of the running requests has to go."""
        return self._way.recalls(running)

    @property
    def open_extents(self) -> int | None:
        """Extents that waiting requests may use as well; None for all."""
        return self._way.open_extents

    def aim(self, allotment: Allotment) -> bool:
        """Adopt an allotment; False for one that is not newer than the present."""
        if not self._way.aim(allotment):
            return False
        self.memory.regrant(allotment.grant_bytes)
        self.reconcile()
        return True

    def reconcile(self) -> bool:
        """One pass; True if anything moved."""
        if self.target is None:
            return False
        self._pace.begin()
        moved = False
        for move in self._way.moves():
            moved |= self._make(move)
        self.memory.pool.trim()
        if moved:
            self.memory.self_check()
        return moved

    def _make(self, move: Move) -> bool:
        match move:
            case Parameters():
                return self._move_parameters(move)
            case Retire(extents, anew):
                return self._retire(extents, anew=anew)
            case CallBack(extents):
                return self.holding.call_back(extents)
            case Unmap(extents):
                return self._unmap(extents)
            case Map(extents, wanted):
                return self._map(extents, wanted)

    # -- bounds of a pass -----------------------------------------------------------------

    def paced(self, kind: Kind, wanted: int) -> int:
        """Number by `Pace.most`."""
        return self._pace.most(kind, wanted)

    def obtainable(self, kind: Kind, wanted: int) -> int:
        """Number by `Shortage.most`."""
        return self._short[kind].most(wanted, self._clock())

    # -- KV extents ---------------------------------------------------------------------

    def _retire(self, count: int, *, anew: bool) -> bool:
        """Nothing has moved yet: these extents hold memory until they are empty."""
        if anew:
            self.holding.call_back(self.holding.retiring_extents)
        retirees = self.blocks.to_retire(count)
        self._demote(retirees)
        self.blocks.retire(retirees)
        return False

    def _unmap(self, count: int) -> bool:
        extents = self.holding.drop(count)
        with self._pace.moving("extent", count):
            self.memory.unmap_extents(extents)
        return True

    def _map(self, count: int, wanted: int) -> bool:
        extents = self.blocks.book.unmapped(count)
        if not extents:
            return False
        with self._pace.moving("extent", count):
            mapped = self._had_of(extents, wanted)
        self.blocks.add(mapped)
        return bool(mapped)

    def _had_of(self, extents: list[int], wanted: int) -> list[int]:
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

    # -- layers and experts ---------------------------------------------------------------

    def _move_parameters(self, move: Parameters) -> bool:
        memory = self.memory
        change = partial(memory.move_layers, move.alpha, move.beta, move.experts)
        if memory.experts or move.experts:
            return self._had("layer", move.back, move.wanted, change)
        with self._pace.moving("layer", abs(move.alpha - memory.alpha)):
            if move.back:
                return self._had("layer", move.back, move.wanted, change)
            change()
            return True

    # -- memory that was granted ----------------------------------------------------------

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
