"""Index of cells on a disk: never over capacity, none given twice, none taken while it is read."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mirage.tiers.blocks import Name
from mirage.tiers.contract import Key
from mirage.tiers.ssd.index import CellIndex, FileCell

pytestmark = pytest.mark.pure

CAPACITY = 20
NAMES = [Name(b"w", Key(b"%d" % number)) for number in range(12)]
STRIDES = (2, 5)


def test_the_least_recently_used_goes() -> None:
    index = CellIndex(6)
    for name in NAMES[:3]:
        index.place(name, 2)
        index.written(name)
    assert index.read(NAMES[0]) == FileCell(2, 0)
    index.was_read(NAMES[0])
    assert index.place(NAMES[3], 2) == (FileCell(2, 1), [])
    assert not index.has(NAMES[1], 2) and index.has(NAMES[0], 2)


def test_room_for_another_size_is_made_of_several() -> None:
    index = CellIndex(6)
    for name in NAMES[:3]:
        index.place(name, 2)
        index.written(name)
    cell, gone = index.place(NAMES[3], 5) or (None, [])
    assert cell == FileCell(5, 0)
    assert sorted(gone) == [FileCell(2, 0), FileCell(2, 1), FileCell(2, 2)]


def test_what_was_found_is_held_and_gaps_are_free() -> None:
    index = CellIndex(8)
    assert index.adopt(NAMES[0], FileCell(2, 1))
    assert index.adopt(NAMES[1], FileCell(2, 4))
    assert not index.adopt(NAMES[1], FileCell(2, 5))
    taken = {index.place(name, 2)[0].number for name in NAMES[2:4]}  # type: ignore[index]
    assert taken <= {0, 2, 3, 5}
    assert index.held == 8


def test_what_a_removed_tenant_has_goes_when_it_is_idle() -> None:
    index = CellIndex(8)
    for name, tenant in zip(NAMES[:4], "aaab", strict=True):
        index.place(name, 2, tenant)
    for name in (NAMES[0], NAMES[1], NAMES[3]):
        index.written(name)
    assert index.read(NAMES[1]) is not None
    assert index.wipe("a") == [FileCell(2, 0)]
    assert not any(index.has(name, 2) for name in NAMES[:3]) and index.has(NAMES[3], 2)
    assert index.read(NAMES[1]) is None and index.wiped(NAMES[1]) == []
    index.was_read(NAMES[1])
    assert index.wiped(NAMES[1]) == [FileCell(2, 1)]
    index.written(NAMES[2])
    assert index.wiped(NAMES[2]) == [FileCell(2, 2)] and index.wiped(NAMES[3]) == []
    assert index.held == 2


class Cells(RuleBasedStateMachine):
    """Random operations on an index, compared with sets of cells that are written,
    held and read.
    """

    def __init__(self) -> None:
        super().__init__()
        self.index = CellIndex(CAPACITY)
        self.written: dict[Name, FileCell] = {}
        self.ready: dict[Name, FileCell] = {}
        self.reads: dict[Name, int] = {}
        self.leaving: list[FileCell] = []

    @rule(name=st.sampled_from(NAMES), stride=st.sampled_from(STRIDES))
    def place(self, name: Name, stride: int) -> None:
        placed = self.index.place(name, stride)
        known = name in self.written or name in self.ready
        if placed is None:
            busy = sum(s.stride for s in self.written.values())
            busy += sum(self.ready[n].stride for n, count in self.reads.items() if count)
            assert known or busy + stride > CAPACITY
            return
        assert not known
        kept = {n: s for n, s in self.ready.items() if self.index.has(n, s.stride)}
        for gone in self.ready.keys() - kept.keys():
            assert not self.reads.get(gone)
        self.ready = kept
        assert placed[0] not in {*kept.values(), *self.written.values(), *self.leaving}
        self.leaving += placed[1]
        self.written[name] = placed[0]

    @rule()
    def punched(self) -> None:
        self.index.free(self.leaving)
        self.leaving = []

    @precondition(lambda self: self.written)
    @rule(data=st.data(), whole=st.booleans())
    def end_write(self, data: st.DataObject, whole: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.written)))
        cell = self.written.pop(name)
        if whole:
            self.index.written(name)
            self.ready[name] = cell
        else:
            assert self.index.drop(name) == cell

    @rule(name=st.sampled_from(NAMES))
    def read(self, name: Name) -> None:
        cell = self.index.read(name)
        assert cell == self.ready.get(name)
        if cell is not None:
            self.reads[name] = self.reads.get(name, 0) + 1

    @rule(name=st.sampled_from(NAMES), whole=st.booleans())
    def end_read(self, name: Name, whole: bool) -> None:
        if not self.reads.get(name):
            return
        self.reads[name] -= 1
        self.index.was_read(name)
        if not whole and self.index.drop(name) is not None:
            assert not self.reads[name]
            del self.ready[name]

    @invariant()
    def the_ledger_is_the_truth(self) -> None:
        cells = [*self.written.values(), *self.ready.values()]
        assert len(set(cells)) == len(cells)
        assert self.index.held == sum(cell.stride for cell in cells) <= CAPACITY


TestCells = Cells.TestCase
