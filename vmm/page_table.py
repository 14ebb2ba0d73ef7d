"""A driver's page table: existing pages, reserved addresses, and the mappings between them.

Pure, and shared by the drivers, so that all refuse the same calls with the same words. A driver
calls `check_...` first, which raises and changes nothing, then the device, and enters the result
only when the device has accepted the call.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Sequence

from vmm.driver import (
    AlreadyMapped,
    Misaligned,
    NotMapped,
    NotReserved,
    Page,
    StillMapped,
    UnknownPage,
    VmmError,
)
from vmm.runs import runs

Table = list[Page | None]
"""Pages mapped in one reservation, one entry per page of addresses; None where nothing is
mapped.
"""


class PageTable:
    """Pages and mappings of one driver. `page_bytes` is the size of each page and the alignment of
    each mapping.
    """

    def __init__(self, page_bytes: int) -> None:
        self.page_bytes = page_bytes
        self._bases: list[int] = []
        self._tables: dict[int, Table] = {}
        self._mappings: dict[Page, int] = {}

    @property
    def pages(self) -> list[Page]:
        """All pages that exist."""
        return list(self._mappings)

    @property
    def page_count(self) -> int:
        return len(self._mappings)

    @property
    def reservations(self) -> list[tuple[int, int]]:
        """First address and size of every reservation."""
        return [(base, len(self._tables[base]) * self.page_bytes) for base in self._bases]

    @property
    def mapped(self) -> list[tuple[int, int]]:
        """First address and size of every contiguous mapped part of a reservation."""
        return [
            (base + run[0] * self.page_bytes, len(run) * self.page_bytes)
            for base in self._bases
            for run in runs(i for i, page in enumerate(self._tables[base]) if page is not None)
        ]

    # Pages

    def add_pages(self, pages: Sequence[Page]) -> None:
        self._mappings.update(dict.fromkeys(pages, 0))

    def check_release(self, pages: Sequence[Page]) -> None:
        self.check_known(pages)
        if twice := [page for page, times in Counter(pages).items() if times > 1]:
            raise UnknownPage(f"page {twice[0]} is released twice in one call")
        for page in pages:
            if times := self._mappings[page]:
                raise StillMapped(f"page {page} is mapped {times} times: unmap it first")

    def drop_pages(self, pages: Sequence[Page]) -> None:
        for page in pages:
            del self._mappings[page]

    # Reservations

    def check_size(self, nbytes: int) -> None:
        if nbytes <= 0 or nbytes % self.page_bytes:
            raise Misaligned(
                f"{nbytes} bytes: use a positive multiple of the page ({self.page_bytes} bytes)"
            )

    def add_reservation(self, address: int, nbytes: int) -> None:
        self._tables[address] = [None] * (nbytes // self.page_bytes)
        insort(self._bases, address)

    def check_unreserve(self, address: int) -> int:
        """Size in bytes of the reservation that begins at `address`. Raises `NotReserved`, or
        `StillMapped` if any of it is mapped.
        """
        table = self._tables.get(address)
        if table is None:
            raise NotReserved(f"no reservation begins at {address:#x}")
        if mapped := sum(page is not None for page in table):
            raise StillMapped(
                f"{mapped} of {len(table)} pages of the reservation at {address:#x} are mapped: "
                "unmap them first"
            )
        return len(table) * self.page_bytes

    def drop_reservation(self, address: int) -> None:
        del self._tables[address]
        self._bases.remove(address)

    # Mappings

    def check_map(self, address: int, pages: Sequence[Page]) -> None:
        table, where = self._entries(address, len(pages) * self.page_bytes)
        self.check_known(pages)
        for index, page in enumerate(table[where], where.start):
            if page is not None:
                raise AlreadyMapped(
                    f"page {page} is mapped at {self._address(address, where, index):#x}"
                )

    def enter_map(self, address: int, pages: Sequence[Page]) -> None:
        table, where = self._entries(address, len(pages) * self.page_bytes)
        table[where] = pages
        for page in pages:
            self._mappings[page] += 1

    def check_unmap(self, address: int, nbytes: int) -> None:
        table, where = self._entries(address, nbytes)
        if None in table[where]:
            index = table.index(None, where.start)
            raise NotMapped(
                f"nothing is mapped at {self._address(address, where, index):#x}, "
                f"inside the {nbytes} bytes at {address:#x}"
            )

    def enter_unmap(self, address: int, nbytes: int) -> None:
        table, where = self._entries(address, nbytes)
        for page in table[where]:
            assert page is not None
            self._mappings[page] -= 1
        table[where] = [None] * (where.stop - where.start)

    # Access

    def check_reserved(self, address: int, nbytes: int) -> None:
        """Raise `NotReserved` unless these bytes lie inside one reservation; address and size need
        no alignment.
        """
        if self._reservation(address, nbytes) is None:
            raise NotReserved(f"{nbytes} bytes at {address:#x} are in no reservation")

    def holds(self, address: int, nbytes: int) -> bool:
        """True if any of these bytes lies in a reservation."""
        return self._touches(address, nbytes)

    def check_mapped(self, address: int, nbytes: int, host: bool = False) -> None:
        """Raise `NotMapped` unless all these bytes are mapped; with `host`, bytes outside all
        reservations are accepted too. Raise `Misaligned` unless `nbytes` is positive.
        """
        if nbytes <= 0:
            raise Misaligned(f"{nbytes} bytes at {address:#x}: a size is positive")
        base = self._reservation(address, nbytes)
        if base is None:
            if host and not self._touches(address, nbytes):
                return
            raise NotMapped(f"{nbytes} bytes at {address:#x} are not inside one reservation")
        first = (address - base) // self.page_bytes
        last = (address + nbytes - 1 - base) // self.page_bytes
        if None in self._tables[base][first : last + 1]:
            raise NotMapped(f"{nbytes} bytes at {address:#x} are not all mapped")

    def check_fill(self, address: int, byte: int, nbytes: int) -> None:
        if not 0 <= byte <= 255:
            raise VmmError(f"fill with {byte}: a byte is 0 to 255")
        self.check_mapped(address, nbytes)

    def check_copy(self, dst: int, src: int, nbytes: int) -> None:
        self.check_mapped(dst, nbytes, host=True)
        self.check_mapped(src, nbytes, host=True)

    def check(self) -> None:
        """Raise `VmmError` unless the counts of mappings and the tables agree."""
        counted = Counter(p for t in self._tables.values() for p in t if p is not None)
        for page in counted.keys() | self._mappings.keys():
            if counted[page] != self._mappings.get(page):
                raise VmmError(
                    f"page {page}: {counted[page]} mappings in the tables, "
                    f"{self._mappings.get(page)} in the count"
                )
        if sorted(self._tables) != self._bases:
            raise VmmError(f"{len(self._tables)} tables for {len(self._bases)} reservations")

    # Inside

    def check_known(self, pages: Sequence[Page]) -> None:
        for page in pages:
            if page not in self._mappings:
                raise UnknownPage(f"page {page} was never created, or was released")

    def _entries(self, address: int, nbytes: int) -> tuple[Table, slice]:
        """Table of a reservation, and the slice of it for `nbytes` at `address`. Raises
        `Misaligned` unless both are multiples of the page, and `NotReserved` unless all these bytes
        lie in one reservation.
        """
        self.check_size(nbytes)
        base = self._reservation(address, nbytes)
        if base is None:
            raise NotReserved(f"{nbytes} bytes at {address:#x} are not inside one reservation")
        if (address - base) % self.page_bytes:
            raise Misaligned(
                f"address {address:#x} is not a multiple of the page ({self.page_bytes} bytes)"
            )
        first = (address - base) // self.page_bytes
        return self._tables[base], slice(first, first + nbytes // self.page_bytes)

    def _reservation(self, address: int, nbytes: int) -> int | None:
        """First address of the reservation in which all these bytes lie; None if there is none."""
        place = bisect_right(self._bases, address)
        if place == 0:
            return None
        base = self._bases[place - 1]
        end = base + len(self._tables[base]) * self.page_bytes
        return base if address + nbytes <= end else None

    def _touches(self, address: int, nbytes: int) -> bool:
        """True if any of these bytes lies in a reservation."""
        place = bisect_right(self._bases, address + nbytes - 1)
        if place == 0:
            return False
        base = self._bases[place - 1]
        return address < base + len(self._tables[base]) * self.page_bytes

    def _address(self, address: int, where: slice, index: int) -> int:
        return address + (index - int(where.start)) * self.page_bytes
