"""Random calls of driver, pool and ranges, against a simple model, the bytes, and the kernel."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.examples import examples
from vmm import (
    AlreadyMapped,
    GrantExceeded,
    HostDriver,
    NotMapped,
    OutOfMemory,
    Page,
    PagePool,
    StillMapped,
)

pytestmark = pytest.mark.vmm
PAGE, CAPACITY = 8192, 24


class Memory(RuleBasedStateMachine):
    """Random calls, and the model of them: `loose` pages come from the driver itself, `roles` and
    `spare` are the pool's.
    """

    @initialize(grant=st.integers(0, 16))
    def begin(self, grant: int) -> None:
        self.driver = HostDriver(PAGE, capacity_bytes=CAPACITY * PAGE)
        self.pool = PagePool(self.driver, grant * PAGE)
        self.grant = grant
        self.ranges: dict[int, list[Page | None]] = {}
        self.loose: set[Page] = set()
        self.roles: dict[Page, str] = {}
        self.spare: set[Page] = set()
        self.bytes: dict[Page, int] = {}

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        for address, table in self.ranges.items():
            for i, page in enumerate(table):
                if page is not None:
                    self.driver.unmap(address + i * PAGE, PAGE)
            self.driver.unreserve(address)
        self.pool.give(list(self.roles))
        self.pool.trim()
        self.driver.release(sorted(self.loose))
        assert self.driver.used_bytes() == 0 and self.pool.held_bytes == 0
        self.driver.check_integrity()
        self.driver.close()

    # Addresses

    @precondition(lambda self: len(self.ranges) < 4)
    @rule(count=st.integers(1, 8))
    def reserve(self, count: int) -> None:
        self.ranges[self.driver.reserve(count * PAGE)] = [None] * count

    @precondition(lambda self: self.ranges)
    @rule(data=st.data())
    def unreserve(self, data: st.DataObject) -> None:
        address = data.draw(st.sampled_from(list(self.ranges)))
        if any(page is not None for page in self.ranges[address]):
            with pytest.raises(StillMapped):
                self.driver.unreserve(address)
        else:
            self.driver.unreserve(address)
            del self.ranges[address]

    # Pages

    @rule(count=st.integers(0, 10))
    def create(self, count: int) -> None:
        if len(self.existing) + count > CAPACITY:
            with pytest.raises(OutOfMemory):
                self.driver.create(count)
        else:
            pages = self.driver.create(count)
            self.loose.update(pages)
            self.bytes.update(dict.fromkeys(pages, 0))

    @precondition(lambda self: self.loose)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        pages = data.draw(st.lists(st.sampled_from(sorted(self.loose)), unique=True))
        if self.mapped & set(pages):
            with pytest.raises(StillMapped):
                self.driver.release(pages)
        else:
            self.driver.release(pages)
            self.loose -= set(pages)

    @rule(count=st.integers(0, 10), role=st.sampled_from(["layer", "kv", "slot"]))
    def take(self, count: int, role: str) -> None:
        missing = max(0, count - len(self.spare))
        if count and len(self.roles) + count > self.grant:
            with pytest.raises(GrantExceeded):
                self.pool.take(count, role)
        elif len(self.existing) + missing > CAPACITY:
            with pytest.raises(OutOfMemory):
                self.pool.take(count, role)
        else:
            pages = self.pool.take(count, role)
            new = set(pages) - self.spare
            assert len(set(pages)) == count and len(new) == missing
            assert new.isdisjoint(self.existing)
            self.bytes.update(dict.fromkeys(new, 0))
            self.spare -= set(pages)
            self.roles.update(dict.fromkeys(pages, role))

    @precondition(lambda self: self.roles.keys() - self.mapped)
    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        free = sorted(self.roles.keys() - self.mapped)
        pages = data.draw(st.lists(st.sampled_from(free), unique=True))
        self.pool.give(pages)
        for page in pages:
            del self.roles[page]
        self.spare |= set(pages)
        self.shed()

    @rule(grant=st.integers(0, 20))
    def set_grant(self, grant: int) -> None:
        self.pool.set_grant(grant * PAGE)
        self.grant = grant
        self.shed()

    @rule()
    def trim(self) -> None:
        self.pool.trim()
        self.spare = set()

    # Mappings

    @precondition(lambda self: self.ranges and (self.roles or self.loose))
    @rule(data=st.data())
    def map(self, data: st.DataObject) -> None:
        address, first, count = self.draw_part(data)
        known = st.sampled_from(sorted(self.roles.keys() | self.loose))
        pages = data.draw(st.lists(known, min_size=count, max_size=count))
        table = self.ranges[address]
        if any(page is not None for page in table[first : first + count]):
            with pytest.raises(AlreadyMapped):
                self.driver.map(address + first * PAGE, pages)
        else:
            self.driver.map(address + first * PAGE, pages)
            table[first : first + count] = pages

    @precondition(lambda self: self.ranges)
    @rule(data=st.data())
    def unmap(self, data: st.DataObject) -> None:
        address, first, count = self.draw_part(data)
        table = self.ranges[address]
        if None in table[first : first + count]:
            with pytest.raises(NotMapped):
                self.driver.unmap(address + first * PAGE, count * PAGE)
        else:
            self.driver.unmap(address + first * PAGE, count * PAGE)
            table[first : first + count] = [None] * count

    @precondition(lambda self: self.mapped)
    @rule(data=st.data(), byte=st.integers(0, 255))
    def fill(self, data: st.DataObject, byte: int) -> None:
        address, page = data.draw(st.sampled_from(self.mappings))
        self.driver.fill(address, byte, PAGE)
        self.bytes[page] = byte

    # What always holds

    @invariant()
    def books_add_up(self) -> None:
        self.pool.check_integrity()
        self.driver.check_integrity()
        assert self.pool.in_use_bytes == len(self.roles) * PAGE
        assert self.pool.held_bytes == (len(self.roles) + len(self.spare)) * PAGE
        assert self.pool.available == max(0, self.grant - len(self.roles))
        assert all(self.pool.role(page) == role for page, role in self.roles.items())
        assert self.driver.used_bytes() == len(self.existing) * PAGE

    @invariant()
    def bytes_are_where_they_belong(self) -> None:
        for address, page in self.mappings:
            for offset in (0, PAGE - 1):
                assert ctypes.c_ubyte.from_address(address + offset).value == self.bytes[page]

    @invariant()
    def kernel_agrees(self) -> None:
        assert kernel_mappings() == set(self.mappings)

    # Inside

    @property
    def existing(self) -> set[Page]:
        return self.loose | self.roles.keys() | self.spare

    @property
    def mappings(self) -> list[tuple[int, Page]]:
        return [
            (address + i * PAGE, page)
            for address, table in self.ranges.items()
            for i, page in enumerate(table)
            if page is not None
        ]

    @property
    def mapped(self) -> set[Page]:
        return {page for _, page in self.mappings}

    def draw_part(self, data: st.DataObject) -> tuple[int, int, int]:
        """Drawn part of a range: its address, first page and number of pages. Ranges are drawn by
        the order in which they were made, because the kernel's addresses differ in each run.
        """
        address = data.draw(st.sampled_from(list(self.ranges)))
        total = len(self.ranges[address])
        first = data.draw(st.integers(0, total - 1))
        return address, first, data.draw(st.integers(1, total - first))

    def shed(self) -> None:
        """Follow the pool after it removed spare pages: their number is given, and the pool chooses
        them.
        """
        room = max(0, self.grant - len(self.roles))
        left = self.spare & set(self.driver._table.pages)
        assert len(left) == min(room, len(self.spare))
        self.spare = left


def kernel_mappings() -> set[tuple[int, Page]]:
    """Every mapped page of this process's memory file, from the kernel's own list."""
    found = set()
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "memfd:vmm" in line:
            span, _, offset = line.split()[:3]
            start, end = (int(edge, 16) for edge in span.split("-"))
            first = int(offset, 16) // PAGE
            found |= {(start + i * PAGE, Page(first + i)) for i in range((end - start) // PAGE)}
    return found


TestMemory = Memory.TestCase
TestMemory.settings = examples(60, stateful_step_count=40)
