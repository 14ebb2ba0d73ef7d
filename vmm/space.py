"""Reserved address ranges, and the extents of a KV cache inside one."""

from __future__ import annotations

from collections.abc import Sequence, Set
from contextlib import suppress
from math import lcm
from typing import TYPE_CHECKING

from vmm.driver import (
    AlreadyMapped,
    Driver,
    DriverClosed,
    Misaligned,
    NotMapped,
    NotReserved,
    Page,
    VmmError,
)
from vmm.pages import PagePool
from vmm.runs import runs

if TYPE_CHECKING:
    import torch


AT_ONCE_BYTES = 32 << 20
"""Bytes that `ExtentMap.unmap` unmaps in one step; the pages of the step before may be freed
meanwhile.
"""


class Range:
    """`nbytes` of reserved addresses, and the pages mapped there.

    The range does not own the pages: it maps and unmaps them, and never creates or releases one. A
    page may be mapped in several ranges. Offsets and sizes are in bytes, and multiples of the page.
    """

    def __init__(self, driver: Driver, nbytes: int) -> None:
        self.driver = driver
        self.address = driver.reserve(nbytes)
        self.nbytes = nbytes
        self._pages: list[Page | None] = [None] * (nbytes // driver.page_bytes)

    def backed_in(self, offset: int, nbytes: int) -> int:
        """Bytes that have a page, among `nbytes` of the range from `offset`."""
        part = self._pages[self._entries(offset, nbytes)]
        return (len(part) - part.count(None)) * self.driver.page_bytes

    def back(self, offset: int, pages: Sequence[Page]) -> None:
        """Map pages at consecutive addresses from `offset`, all or none.

        Raises `Misaligned` unless `offset` is a multiple of the page, `NotReserved` for addresses
        outside the range, `AlreadyMapped` if one of them has a page, and `UnknownPage` if a page
        does not exist.
        """
        where = self._entries(offset, len(pages) * self.driver.page_bytes)
        self.driver.map(self.address + offset, pages)
        self._pages[where] = pages

    def unback(self, offset: int, nbytes: int) -> list[Page]:
        """Unmap the addresses and return the pages that were mapped there, in order.

        Raises `NotMapped` if any address has no page.
        """
        pages = self.pages_at(offset, nbytes)
        self.driver.unmap(self.address + offset, nbytes)
        self._pages[self._entries(offset, nbytes)] = [None] * len(pages)
        return pages

    def pages_at(self, offset: int, nbytes: int) -> list[Page]:
        """Pages mapped at these addresses, in order. Raises `NotMapped` if any address has none."""
        part = self._pages[self._entries(offset, nbytes)]
        pages = [page for page in part if page is not None]
        if len(pages) < len(part):
            raise NotMapped(
                f"{len(part) - len(pages)} of {len(part)} pages at offset {offset} are not backed"
            )
        return pages

    def tensor(self, offset: int = 0, nbytes: int | None = None) -> torch.Tensor:
        """The part of the range from `offset` on as a flat uint8 tensor without a copy; only bytes
        with a page may be touched. `nbytes` None: up to the end."""
        nbytes = self.nbytes - offset if nbytes is None else nbytes
        self._check_inside(offset, nbytes)
        return self.driver.tensor(self.address + offset, nbytes)

    def close(self) -> None:
        """Unmap all pages and give the addresses back. The pages stay with their owner.

        Idempotent, also after the driver was closed.
        """
        page_bytes = self.driver.page_bytes
        with suppress(DriverClosed):
            for run in runs(i for i, page in enumerate(self._pages) if page is not None):
                self.unback(run[0] * page_bytes, len(run) * page_bytes)
            if self.nbytes:
                self.driver.unreserve(self.address)
        self.nbytes, self._pages = 0, []

    def _entries(self, offset: int, nbytes: int) -> slice:
        page = self.driver.page_bytes
        self._check_inside(offset, nbytes)
        if offset % page or nbytes % page:
            raise Misaligned(f"{nbytes} bytes at offset {offset}: use multiples of {page} bytes")
        return slice(offset // page, (offset + nbytes) // page)

    def _check_inside(self, offset: int, nbytes: int) -> None:
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise NotReserved(f"{nbytes} bytes at offset {offset} of a range of {self.nbytes}")


def extent_blocks(block_bytes: int, page_bytes: int) -> int:
    """KV blocks in an extent: the fewest whose bytes are a multiple of the page.

    `block_bytes` is the size of a block's part in one region (see `ExtentMap`), `page_bytes` that
    of a page. Raises `Misaligned` unless both are positive.
    """
    if block_bytes <= 0 or page_bytes <= 0:
        raise Misaligned(f"blocks of {block_bytes} and pages of {page_bytes} bytes: use positive")
    return lcm(block_bytes, page_bytes) // block_bytes


class ExtentMap:
    """The KV blocks of one buffer as extents, each of which is mapped or not. Mapping clears them.

    `regions` are the offsets of the runs of blocks in `range_`, in bytes: one region if the block
    is the layout's outermost dimension, one per layer if the layer is. In each region block b
    begins at offset + b * `block_bytes`. Extent e is the blocks from e * `blocks_per_extent` on, in
    every region.

    Raises `Misaligned` if a region does not begin on a page, if regions overlap or if `blocks` is
    not a multiple of `blocks_per_extent`; `NotReserved` if a region leaves the range.
    """

    def __init__(
        self,
        range_: Range,
        pool: PagePool,
        regions: Sequence[int],
        block_bytes: int,
        blocks: int,
        role: str = "kv",
    ) -> None:
        self.range, self.pool, self.role = range_, pool, role
        self.regions = tuple(regions)
        self.blocks_per_extent = extent_blocks(block_bytes, range_.driver.page_bytes)
        self.extents = blocks // self.blocks_per_extent
        self._piece_bytes = self.blocks_per_extent * block_bytes
        self._mapped: set[int] = set()
        self._check_layout(block_bytes, blocks)

    @property
    def extent_bytes(self) -> int:
        """Bytes of one extent over all regions."""
        return self._piece_bytes * len(self.regions)

    @property
    def mapped(self) -> Set[int]:
        """The extents that hold memory; a live view."""
        return self._mapped

    def map(self, extents: Sequence[int]) -> None:
        """Take pages for these extents, all or none, map them and clear them.

        They are cleared because stale bytes may be NaN, and attention multiplies masked positions
        by zero. Raises `GrantExceeded`, `OutOfMemory`, `AlreadyMapped` if an extent is mapped or
        named twice, and `NotReserved` if there is no such extent.
        """
        self._check_unmapped(extents)
        self._map(extents, self.pool.take(len(extents) * self._extent_pages, self.role))

    def map_most(self, extents: Sequence[int]) -> list[int]:
        """Map the first of these extents, as many as the device has memory for, and return them.

        An extent is mapped whole or not at all, and cleared as by `map`. Raises `GrantExceeded` if
        all of them would exceed the grant, and `AlreadyMapped` and `NotReserved` as `map` does.
        """
        self._check_unmapped(extents)
        each = self._extent_pages
        pages = self.pool.take_most(len(extents) * each, each, self.role)
        had = list(extents[: len(pages) // each])
        self._map(had, pages)
        return had

    def _map(self, extents: Sequence[int], pages: list[Page]) -> None:
        try:
            self._back(self._pieces(extents), pages)
        except VmmError:
            self.pool.give(pages)
            raise
        self._mapped.update(extents)

    def unmap(self, extents: Sequence[int]) -> None:
        """Unmap these extents and give their pages back to the pool, in steps of `AT_ONCE_BYTES`.

        Raises `NotMapped` if one of them is not mapped, `AlreadyMapped` if one is named twice, and
        `NotReserved` if there is no such extent.
        """
        self._check_extents(extents)
        if absent := set(extents) - self._mapped:
            raise NotMapped(f"extent {min(absent)} is not mapped")
        ordered, count = sorted(extents), max(1, AT_ONCE_BYTES // self.extent_bytes)
        for part in (ordered[n : n + count] for n in range(0, len(ordered), count)):
            pages = self._unback(self._pieces(part))
            self._mapped.difference_update(part)
            self.pool.give(pages)

    def check_integrity(self) -> None:
        """Raise `VmmError` unless exactly the mapped extents have pages, all of this map's role."""
        for extent in range(self.extents):
            held = self.extent_bytes if extent in self._mapped else 0
            pieces = self._pieces([extent])
            if (backed := sum(self.range.backed_in(*piece) for piece in pieces)) != held:
                raise VmmError(f"extent {extent} has {backed} bytes, not {held}")
            for piece in pieces if held else []:
                self._check_roles(self.range.pages_at(*piece))

    def _pieces(self, extents: Sequence[int]) -> list[tuple[int, int]]:
        """Offset and size of every contiguous part of these extents. Neighbouring extents are one
        part, also where one region ends and the next begins.
        """
        pieces: list[tuple[int, int]] = []
        for region in sorted(self.regions):
            for run in runs(sorted(extents)):
                offset, nbytes = region + run[0] * self._piece_bytes, len(run) * self._piece_bytes
                if pieces and sum(pieces[-1]) == offset:
                    offset, before = pieces.pop()
                    nbytes += before
                pieces.append((offset, nbytes))
        return pieces

    def _back(self, pieces: Sequence[tuple[int, int]], pages: Sequence[Page]) -> None:
        page_bytes = self.range.driver.page_bytes
        done: list[tuple[int, int]] = []
        stale: list[tuple[int, int]] = []
        try:
            for offset, nbytes in pieces:
                count = nbytes // page_bytes
                stale += self._stale(offset, pages[:count])
                self.range.back(offset, pages[:count])
                done.append((offset, nbytes))
                pages = pages[count:]
            self.range.driver.fill_all(stale, 0)
        except VmmError:
            for piece in done:
                self.range.unback(*piece)
            raise

    def _stale(self, offset: int, pages: Sequence[Page]) -> list[tuple[int, int]]:
        """Address and size of each part that must be cleared once `pages` are mapped at
        `offset`.
        """
        size, blank = self.range.driver.page_bytes, self.range.driver.blank
        address = self.range.address + offset
        used = runs(n for n, page in enumerate(pages) if page not in blank)
        return [(address + run[0] * size, len(run) * size) for run in used]

    def _unback(self, pieces: Sequence[tuple[int, int]]) -> list[Page]:
        done: list[tuple[int, list[Page]]] = []
        try:
            for offset, nbytes in pieces:
                done.append((offset, self.range.unback(offset, nbytes)))
        except VmmError:
            for offset, pages in done:
                self.range.back(offset, pages)
            raise
        return [page for _, pages in done for page in pages]

    def _check_layout(self, block_bytes: int, blocks: int) -> None:
        if blocks <= 0 or blocks % self.blocks_per_extent:
            raise Misaligned(
                f"{blocks} blocks of {block_bytes} bytes: use a positive multiple of "
                f"{self.blocks_per_extent} blocks, the extent at pages of "
                f"{self.range.driver.page_bytes} bytes"
            )
        size = blocks * block_bytes
        before: int | None = None
        for region in sorted(self.regions):
            self.range.backed_in(region, size)  # raises if misaligned or outside
            if before is not None and before + size > region:
                raise Misaligned(f"regions of {size} bytes at {before} and {region} overlap")
            before = region

    @property
    def _extent_pages(self) -> int:
        return self.extent_bytes // self.range.driver.page_bytes

    def _check_unmapped(self, extents: Sequence[int]) -> None:
        self._check_extents(extents)
        if twice := self._mapped.intersection(extents):
            raise AlreadyMapped(f"extent {min(twice)} is mapped")

    def _check_extents(self, extents: Sequence[int]) -> None:
        for extent in extents:
            if not 0 <= extent < self.extents:
                raise NotReserved(f"extent {extent}: there are {self.extents}")
        if len(set(extents)) < len(extents):
            raise AlreadyMapped(f"an extent is named twice in {list(extents)}")

    def _check_roles(self, pages: Sequence[Page]) -> None:
        for page in pages:
            if (role := self.pool.role(page)) != self.role:
                raise VmmError(f"page {page} backs an extent but has the role {role!r}")
