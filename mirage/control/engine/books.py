"""The books of one engine: the memory that it holds, and the KV blocks in it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from mirage.control.engine.counted import PricedMemory
from mirage.control.engine.extent_book import ExtentBook
from mirage.control.engine.fence import Fence
from mirage.control.engine.orders import MemoryAnswer
from mirage.protocol import ModelShape


class ExtentBlocks(Protocol):
    """KV blocks whose memory comes and goes by extents; what requests may be given of them."""

    book: ExtentBook

    def add(self, extents: Sequence[int]) -> None:
        """Unmapped extents have memory now."""

    def to_retire(self, count: int) -> list[int]:
        """Up to `count` usable extents, those first that are missed least."""

    def retire(self, extents: Sequence[int]) -> None:
        """No block of these usable extents is given any more."""

    def call_back(self, count: int) -> int:
        """Up to `count` retiring extents are usable again; the number."""


class MemoryBooks(PricedMemory):
    """`mirage.control.engine.way.Memory` of an engine. Its unit is a byte.

    What is ordered counts as done. Blocks of extents to be mapped are usable when the answer is in.
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
        """Retiring extents that no request uses, and the newest step scheduled by then."""
        self._emptied_now: list[int] = []
        """Emptied extents that the hands have not been told of."""
        self.mapping: tuple[int, ...] = ()
        """Extents that are ordered to be mapped, and the answer is not in."""

    @property
    def extents(self) -> int:
        """Extents that hold memory, or are to."""
        return self._blocks.book.backed_extents() + len(self.mapping)

    @property
    def usable_extents(self) -> int:
        return self._blocks.book.usable_extents

    @property
    def retiring_extents(self) -> int:
        return len(self._blocks.book.retiring)

    def busy_extents(self) -> int:
        """Extents with blocks in use, and the null block's: see `ExtentBook.busy_extents`."""
        return self._blocks.book.busy_extents()

    def awaits_requests(self) -> bool:
        """True if a retiring extent has a block that a request uses."""
        return self._blocks.book.retiring_blocks > 0

    def emptied_extents(self) -> int:
        """Number of retiring extents that no request uses, nor any step in flight."""
        return len(self._emptied())

    # -- entries ------------------------------------------------------------------------

    def call_back(self, count: int) -> bool:
        """Up to `count` retiring extents are usable again; True if any is."""
        back = self._blocks.call_back(count)
        retiring = self._blocks.book.retiring
        self._emptied_at = {e: mark for e, mark in self._emptied_at.items() if e in retiring}
        return bool(back)

    def drop(self, count: int) -> tuple[int, ...]:
        """Extents, `count` emptied ones, whose memory is to be unmapped."""
        extents = tuple(self._emptied()[:count])
        self._blocks.book.drop(extents)
        for extent in extents:
            del self._emptied_at[extent]
        return extents

    def map(self, count: int) -> tuple[int, ...]:
        """Up to `count` extents that are to be mapped."""
        self.mapping = tuple(self._blocks.book.unmapped(count))
        return self.mapping

    def mapped(self, count: int) -> None:
        """The first `count` of them have memory, and the others none."""
        self._blocks.add(self.mapping[:count])
        self.mapping = ()

    def told_emptied(self) -> tuple[int, ...]:
        """Extents that were emptied since this was last asked."""
        emptied, self._emptied_now = tuple(self._emptied_now), []
        return emptied

    def settle(self, answer: MemoryAnswer) -> None:
        """Parameters are as the answer says. Raises `RuntimeError` if its KV extents are others."""
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
