"""The memory that one engine holds, as its way to an allotment asks of it."""

from __future__ import annotations

from collections.abc import Callable

from mirage.engine.blockpool import ElasticBlocks
from mirage.engine.device_memory import DeviceMemory
from mirage.engine.fence import Fence


class EngineHolding:
    """`mirage.control.engine.way.Memory` of an engine's pages and blocks. Its unit is a page."""

    def __init__(
        self,
        memory: DeviceMemory,
        blocks: ElasticBlocks,
        fence: Fence,
        may_retire: Callable[[], bool],
    ) -> None:
        self._memory, self._blocks, self.fence = memory, blocks, fence
        self.may_retire = may_retire
        self._emptied_at: dict[int, int] = {}
        """Retiring extents that no request uses, and the newest step scheduled by then."""

    @property
    def alpha(self) -> int:
        return self._memory.alpha

    @property
    def beta(self) -> int:
        return self._memory.beta

    @property
    def experts(self) -> int:
        return self._memory.experts

    @property
    def usable_extents(self) -> int:
        return self._blocks.book.usable_extents

    @property
    def retiring_extents(self) -> int:
        return len(self._blocks.book.retiring)

    def busy_extents(self) -> int:
        """See `ExtentBook.busy_extents`."""
        return self._blocks.book.busy_extents()

    def awaits_requests(self) -> bool:
        """True if a retiring extent has a block that a request uses."""
        return self._blocks.book.retiring_blocks > 0

    def emptied_extents(self) -> int:
        """Number of retiring extents that no request uses, nor any step in flight."""
        return len(self._emptied())

    def call_back(self, count: int) -> bool:
        """Up to `count` retiring extents are usable again; True if any is."""
        back = self._blocks.call_back(count)
        retiring = self._blocks.book.retiring
        self._emptied_at = {e: mark for e, mark in self._emptied_at.items() if e in retiring}
        return bool(back)

    def drop(self, count: int) -> list[int]:
        """So many emptied extents, whose memory is unmapped now."""
        extents = self._emptied()[:count]
        self._blocks.book.drop(extents)
        for extent in extents:
            del self._emptied_at[extent]
        return extents

    def _emptied(self) -> list[int]:
        return [extent for extent in self._blocks.book.emptied() if self._untouched(extent)]

    def _untouched(self, extent: int) -> bool:
        if extent not in self._emptied_at:
            self._emptied_at[extent] = self.fence.scheduled
            self._memory.emptied.add(extent)
        return self.fence.passed(self._emptied_at[extent])

    def affordable_extents(self) -> int:
        """Number that the pages allow which are granted and not in use."""
        return self._memory.affordable_extents()

    def spare(self) -> int:
        """Pages that are granted and not in use."""
        return self._memory.pool.available

    def cost(self, alpha: int, experts: int) -> int:
        """Pages; of layers that stay where they are none."""
        return self._memory.layer_pages(alpha, experts)
