"""The book of extents: requests come and go while extents get memory, retire and lose it."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mirage.control.engine.extent_book import Extent, ExtentBook
from tests.examples import examples

pytestmark = pytest.mark.pure

EXTENTS, START = 9, 4


class BookMachine(RuleBasedStateMachine):
    """Random requests and allotments on an extent book, compared with sets: `free` has the blocks
    that may be given to requests, `used` those that they have.
    """

    per_extent = 1

    def __init__(self) -> None:
        super().__init__()
        self.book = ExtentBook(EXTENTS, self.per_extent, START)
        self.mapped = set(range(START))
        self.free = set(range(1, START * self.per_extent))  # block 0 is the null block
        self.used: set[int] = set()

    def extent(self, block: int) -> int:
        return block // self.per_extent

    @rule(data=st.data(), count=st.integers(1, 6))
    def take(self, data: st.DataObject, count: int) -> None:
        if count <= len(self.free):
            order = data.draw(st.permutations(sorted(self.free)))
            taken = set(order[:count])
            self.book.take(taken)
            self.free -= taken
            self.used |= taken

    @precondition(lambda self: self.used)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        some = data.draw(st.sets(st.sampled_from(sorted(self.used)), min_size=1))
        retiring = set(self.book.retiring)
        left = self.book.free(some)
        assert left == {block for block in some if self.extent(block) in retiring}
        self.used -= some
        self.free |= some - left

    @rule(count=st.integers(1, 4))
    def grow(self, count: int) -> None:
        extents = self.book.unmapped(count)
        lacking = sorted(set(range(EXTENTS)) - self.mapped)
        assert extents == lacking[:count], "the lowest"
        self.book.add(extents)
        self.mapped |= set(extents)
        self.free |= {block for extent in extents for block in self.book.blocks_of(extent)}

    @rule(count=st.integers(1, 4), losses=st.lists(st.integers(0, 2), min_size=EXTENTS))
    def retire(self, count: int, losses: list[int]) -> None:
        loss = [(value, 0) for value in losses]
        picked = self.book.to_retire(count, loss.__getitem__)
        usable = self.mapped - set(self.book.retiring)
        assert set(picked) <= usable - {0} and len(picked) == min(count, len(usable - {0}))
        ranks = {e: (self.uses(e), loss[e], -e) for e in usable - {0}}
        assert [ranks[e] for e in picked] == sorted(ranks.values())[:count]
        self.book.retire(picked)
        self.free -= {block for extent in picked for block in self.book.blocks_of(extent)}

    @rule(count=st.integers(1, 4))
    def call_back(self, count: int) -> None:
        before = sorted((self.uses(e) for e in self.book.retiring), reverse=True)
        back = self.book.call_back(count)
        assert [self.uses(e) for e in back] == before[:count], "those in most use"
        self.free |= {b for e in back for b in self.book.blocks_of(e)} - self.used - {0}

    @rule()
    def drop(self) -> None:
        emptied = self.book.emptied()
        assert set(emptied) == {e for e in self.book.retiring if not self.uses(e)}
        self.book.drop(emptied)
        self.mapped -= set(emptied)

    def uses(self, extent: int) -> int:
        return len(self.used & set(self.book.blocks_of(extent)))

    @invariant()
    def sound(self) -> None:
        book = self.book
        book.check_integrity()
        assert {e for e, s in enumerate(book.state) if s is not Extent.UNMAPPED} == self.mapped
        assert book.backed_extents() == len(self.mapped)
        assert book.used == [self.uses(e) for e in range(EXTENTS)]
        busy = set(map(self.extent, self.used))
        assert book.busy_extents() == (len(busy | {0}) if busy else 0)
        assert book.retiring_blocks == sum(map(self.uses, book.retiring))
        used_usable = len(self.used) - book.retiring_blocks
        assert book.usable_blocks == len(self.free) + used_usable + 1


class WideBookMachine(BookMachine):
    per_extent = 3


LIMITS = examples(80, stateful_step_count=40)
TestSingleBlockExtents = BookMachine.TestCase
TestSingleBlockExtents.settings = LIMITS
TestWideExtents = WideBookMachine.TestCase
TestWideExtents.settings = LIMITS


def test_the_example_of_the_docstring() -> None:
    book = ExtentBook(extents=2, extent_blocks=2, usable=2)
    book.take([2, 3])
    book.retire([1])
    assert book.free([3]) == {3}
    assert book.emptied() == []
    assert (book.usable_blocks, book.retiring_blocks, book.busy_extents()) == (2, 1, 2)
    assert book.free([2]) == {2} and book.emptied() == [1]


@pytest.mark.parametrize("used", [0, 1])
def test_nothing_moves_to_where_it_cannot(used: int) -> None:
    book = ExtentBook(extents=3, extent_blocks=1, usable=2)
    book.take([1][:used])
    for change, extent in ((book.add, 1), (book.retire, 2), (book.drop, 1)):
        with pytest.raises(AssertionError):
            change([extent])
    book.check_integrity()
    book.retire([1])
    if used:
        with pytest.raises(AssertionError):
            book.drop([1])
    else:
        book.drop([1])
        assert book.unmapped(3) == [1, 2]


def test_no_memory_is_a_book_too() -> None:
    book = ExtentBook(0, 1, 0)
    book.check_integrity()
    assert book.busy_extents() == book.backed_extents() == book.usable_blocks == 0
    assert book.unmapped(1) == []
