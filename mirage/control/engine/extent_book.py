"""The KV extents of one engine that have memory, and how many of their blocks are in use. Pure.

          add               retire
    UNMAPPED ──> USABLE  <────────────> RETIRING ──> UNMAPPED
                          call_back             drop

An extent is some blocks that get and lose memory together. One that retires gives no more blocks
and keeps its memory until none of them is in use. With two blocks an extent, two extents:

    book = ExtentBook(extents=2, extent_blocks=2, usable=2)
    book.take([2, 3])         # extent 1 has two blocks in use
    book.retire([1])          # and takes no new ones
    book.free([3]) == {3}     # a block that may not be given again
    book.emptied() == []      # block 2 is in use
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from enum import Enum


class Extent(Enum):
    """State of an extent of KV blocks."""

    UNMAPPED = "unmapped"
    USABLE = "usable"
    RETIRING = "retiring"


class ExtentBook:
    """Book of `extents` extents of `extent_blocks` blocks each. At the beginning the first `usable`
    extents have memory.

    Blocks and extents are numbered from 0. Block 0, in extent 0, is vLLM's null block, which always
    needs memory: extent 0 is never given back. No request uses the null block, so it is counted
    among the usable blocks and not among those in use.
    """

    def __init__(self, extents: int, extent_blocks: int, usable: int) -> None:
        self.extent_blocks, self.usable_extents = extent_blocks, usable
        self.state = [Extent.USABLE] * usable + [Extent.UNMAPPED] * (extents - usable)
        self.used = [0] * extents
        """Number of blocks in use in each extent."""
        self._busy = 0
        """Number of extents with blocks in use."""
        self._retiring: dict[int, None] = {}

    # -- reading ------------------------------------------------------------------------

    @property
    def usable_blocks(self) -> int:
        """Number of blocks of usable extents, in use or not, the null block included."""
        return self.usable_extents * self.extent_blocks

    @property
    def retiring(self) -> Collection[int]:
        """Retiring extents, in the order in which they began to retire."""
        return self._retiring.keys()

    @property
    def retiring_blocks(self) -> int:
        """Number of blocks in use in retiring extents."""
        return sum(self.used[extent] for extent in self._retiring)

    def blocks_of(self, extent: int) -> range:
        """Return the numbers of an extent's blocks."""
        return range(extent * self.extent_blocks, (extent + 1) * self.extent_blocks)

    def backed_extents(self) -> int:
        """Return the number of extents that hold memory: usable or retiring."""
        return self.usable_extents + len(self._retiring)

    def busy_extents(self) -> int:
        """Return the least number of extents that the engine must keep, whatever its allotment.

        They are the extents with blocks in use, and the null block's extent; 0 if no block is in
        use.
        """
        return self._busy + (not self.used[0]) if self._busy else 0

    def unmapped(self, count: int) -> list[int]:
        """Return up to `count` unmapped extents, lowest first, which keeps live blocks low."""
        found: list[int] = []
        for extent, state in enumerate(self.state):
            if len(found) == count:
                break
            if state is Extent.UNMAPPED:
                found.append(extent)
        return found

    def emptied(self) -> list[int]:
        """Return the retiring extents that have no block in use."""
        return [extent for extent in self._retiring if not self.used[extent]]

    # -- blocks -------------------------------------------------------------------------

    def take(self, blocks: Iterable[int]) -> None:
        """Note that these free blocks of usable extents are in use."""
        per_extent, used = self.extent_blocks, self.used
        for block in blocks:
            extent = block // per_extent
            self._busy += not used[extent]
            used[extent] += 1

    def free(self, blocks: Iterable[int]) -> set[int]:
        """Note that these blocks are no longer in use; return those of retiring extents, which must
        not be given again."""
        per_extent, used, retiring = self.extent_blocks, self.used, self._retiring
        leaving: set[int] = set()
        for block in blocks:
            extent = block // per_extent
            used[extent] -= 1
            self._busy -= not used[extent]
            if retiring and extent in retiring:
                leaving.add(block)
        return leaving

    # -- extents ------------------------------------------------------------------------

    def add(self, extents: Iterable[int]) -> None:
        """Note that the memory of these extents has been mapped: they are usable."""
        for extent in extents:
            self._change(extent, Extent.UNMAPPED, Extent.USABLE)
            self.usable_extents += 1

    def to_retire(self, count: int, loss: Callable[[int], tuple[int, int]]) -> list[int]:
        """Return up to `count` extents to hand back: those with the fewest blocks in use, then with
        the least `loss` of cached content, then the highest."""
        usable = (e for e, state in enumerate(self.state) if e and state is Extent.USABLE)
        ranked = sorted((self.used[extent], loss(extent), -extent) for extent in usable)
        return [-rank[-1] for rank in ranked[:count]]

    def retire(self, extents: Iterable[int]) -> None:
        """Begin to retire these usable extents: none of their blocks is given from now on."""
        for extent in extents:
            self._change(extent, Extent.USABLE, Extent.RETIRING)
            self._retiring[extent] = None
            self.usable_extents -= 1

    def call_back(self, count: int) -> list[int]:
        """Make up to `count` retiring extents usable again, those with the most blocks in use, and
        return them."""
        back = sorted(self._retiring, key=lambda extent: -self.used[extent])[:count]
        for extent in back:
            self._change(extent, Extent.RETIRING, Extent.USABLE)
            del self._retiring[extent]
            self.usable_extents += 1
        return back

    def drop(self, extents: Sequence[int]) -> None:
        """Note that the memory of these emptied extents is being unmapped."""
        for extent in extents:
            assert not self.used[extent], (extent, self.used[extent])
            self._change(extent, Extent.RETIRING, Extent.UNMAPPED)
            del self._retiring[extent]

    def _change(self, extent: int, before: Extent, after: Extent) -> None:
        assert self.state[extent] is before, (extent, self.state[extent])
        self.state[extent] = after

    def check_integrity(self) -> None:
        """Raise `AssertionError` unless all counts agree. O(extents)."""
        assert self.usable_extents == self.state.count(Extent.USABLE)
        assert set(self._retiring) == {
            extent for extent, state in enumerate(self.state) if state is Extent.RETIRING
        }
        assert self._busy == sum(map(bool, self.used))
        for extent, used in enumerate(self.used):
            most = self.extent_blocks - (extent == 0)
            assert 0 <= used <= (0 if self.state[extent] is Extent.UNMAPPED else most), extent
