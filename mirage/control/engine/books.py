"""Books of one engine: the memory that it holds, and the KV blocks in it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from mirage.control.engine.counted import PricedMemory
from mirage.control.engine.extent_book import ExtentBook
from mirage.control.engine.fence import Fence
from mirage.control.engine.orders import MemoryAnswer
from mirage.protocol import ModelShape


class ExtentBlocks(Protocol):
    """KV blocks of an engine: the extents that have memory, and the blocks that requests may be
    given."""

    book: ExtentBook

    def add(self, extents: Sequence[int]) -> None:
        """Make the blocks of unmapped extents available: they have memory now."""

    def to_retire(self, count: int) -> list[int]:
        """Return up to `count` usable extents (with memory, and not retiring), the best to retire
        first: those with the fewest blocks in use, then with the least cached content."""

    def retire(self, extents: Sequence[int]) -> None:
        """Retire these usable extents: requests get no more of their blocks."""

    def call_back(self, count: int) -> int:
        """Make up to `count` retiring extents usable again; return their number."""


class MemoryBooks(PricedMemory):
    """Books of an engine's memory, which `Way` reads; sizes are in bytes. See
    `mirage.control.engine.way.Memory`.

    An ordered move counts as done. Blocks of extents to be mapped are usable once the answer has
    come.
    """

    def __init__(
        self,
        shape: ModelShape,
        blocks: ExtentBlocks,
        fence: Fence,
        may_retire: Callable[[], bool],
        at_rest: Callable[[], bool],
    ) -> None:
        super().__init__(shape, 0, 0, 0, 0)
        self._blocks, self.fence = blocks, fence
        self.may_retire, self.at_rest = may_retire, at_rest
        self._emptied_at: dict[int, int] = {}
        """Retiring extents that no request uses, with the number of steps scheduled when that was
        seen."""
        self._emptied_now: list[int] = []
        """Emptied extents that the worker has not been told of yet."""
        self.mapping: tuple[int, ...] = ()
        """Extents that were ordered to be mapped and are not answered yet."""

    @property
    def extents(self) -> int:
        """Number of extents that have memory or are ordered to be mapped."""
        return self._blocks.book.backed_extents() + len(self.mapping)

    @property
    def usable_extents(self) -> int:
        return self._blocks.book.usable_extents

    @property
    def retiring_extents(self) -> int:
        return len(self._blocks.book.retiring)

    def busy_extents(self) -> int:
        """Return the number of extents with blocks in use, the null block's extent included, or 0
        if no block is in use: see `ExtentBook.busy_extents`."""
        return self._blocks.book.busy_extents()

    def awaits_requests(self) -> bool:
        """True if a retiring extent has a block that a request uses."""
        return self._blocks.book.retiring_blocks > 0

    def emptied_extents(self) -> int:
        """Return the number of retiring extents that no request uses, nor any step in flight."""
        return len(self._emptied())

    # -- entries ------------------------------------------------------------------------

    def call_back(self, count: int) -> bool:
        """Make up to `count` retiring extents usable again; True if any is."""
        back = self._blocks.call_back(count)
        retiring = self._blocks.book.retiring
        self._emptied_at = {e: mark for e, mark in self._emptied_at.items() if e in retiring}
        return bool(back)

    def drop(self, count: int) -> tuple[int, ...]:
        """Take `count` emptied extents out of the books and return them: their memory is to be
        unmapped."""
        extents = tuple(self._emptied()[:count])
        self._blocks.book.drop(extents)
        for extent in extents:
            del self._emptied_at[extent]
        return extents

    def map(self, count: int) -> tuple[int, ...]:
        """Return up to `count` unmapped extents, and note that they are ordered to be mapped."""
        self.mapping = tuple(self._blocks.book.unmapped(count))
        return self.mapping

    def mapped(self, count: int) -> None:
        """Note that the first `count` extents of `mapping` have memory, and the others none."""
        self._blocks.add(self.mapping[:count])
        self.mapping = ()

    def told_emptied(self) -> tuple[int, ...]:
        """Return the extents that were emptied since the last call."""
        emptied, self._emptied_now = tuple(self._emptied_now), []
        return emptied

    def settle(self, answer: MemoryAnswer) -> None:
        """Set the numbers of layers and experts given away, and of slots, to those of the answer.
        Raise `RuntimeError` if its number of KV extents differs from the books."""
        self.layers_remapped, self.stream_slots = answer.layers_remapped, answer.stream_slots
        self.experts = answer.experts
        if answer.extents != self.extents:
            raise RuntimeError(
                f"{answer.extents} KV extents have memory, and {self.extents} by the books"
            )

    def _emptied(self) -> list[int]:
        return [extent for extent in self._blocks.book.emptied() if self._untouched(extent)]

    def _untouched(self, extent: int) -> bool:
        if extent not in self._emptied_at:
            self._emptied_at[extent] = self.fence.scheduled
            self._emptied_now.append(extent)
        return self.fence.passed(self._emptied_at[extent])
