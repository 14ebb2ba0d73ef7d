"""Offsets cut into slabs: best fit, no range given twice, every byte counted."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mirage.tiers.holes import ByteRange, Holes
from mirage.tiers.slabs import Slabs
from tests.examples import examples

pytestmark = pytest.mark.pure

SPAN = 64


def test_the_smallest_hole_that_fits_is_taken() -> None:
    slabs = Slabs(Holes(20))
    assert all(slabs.open(stride, 1) for stride in (4, 1, 8, 1, 6))
    first, _, third, _, fifth = sorted(slabs.all(), key=lambda s: s.offset)
    for slab in (first, third, fifth):
        slabs.close(slab)
    assert slabs.fragmentation() == (2, 8, 18)
    assert slabs.open(5, 1)
    assert {s.offset for s in slabs.all()} == {4, 13, 14}
    assert slabs.open(3, 1)
    assert {s.offset for s in slabs.all()} == {0, 4, 13, 14}
    assert not slabs.open(9, 1)


def test_the_fullest_slab_is_filled_first() -> None:
    slabs = Slabs(Holes(SPAN))
    slabs.open(1, 4)
    slabs.open(1, 4)
    places = [slabs.take(1) for _ in range(8)]
    assert sorted(places) == list(range(8))
    assert slabs.take(1) is None
    for place in (0, 1, 2, 4):
        assert slabs.give(place) is None
    assert slabs.take(1) == 4
    assert slabs.empty() == []


def test_a_retiring_slab_gives_back_block_by_block() -> None:
    slabs = Slabs(Holes(SPAN))
    slabs.open(2, 3)
    one, two = slabs.take(2), slabs.take(2)
    slab = slabs.of(one)
    assert slabs.retire(slab) == [ByteRange(4, 2)]
    assert slabs.counted == 4
    assert slabs.take(2) is None
    assert slabs.give(one) == ByteRange(one, 2)
    assert slabs.counted == 2
    assert slabs.give(two) == ByteRange(two, 2)
    assert slabs.counted == 0
    assert slabs.all() == []
    with pytest.raises(KeyError):
        slabs.of(two)


def test_a_slab_with_blocks_is_not_closed() -> None:
    slabs = Slabs(Holes(SPAN))
    slabs.open(2, 3)
    place = slabs.take(2)
    with pytest.raises(ValueError, match="still has 1 block"):
        slabs.close(slabs.of(place))


class Cut(RuleBasedStateMachine):
    """Slabs that are opened, filled, emptied, retired and closed in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.slabs = Slabs(Holes(SPAN))
        self.blocks: dict[int, int] = {}
        """Bytes of each block's place (stride), by its offset."""

    @rule(stride=st.integers(1, 7), blocks=st.integers(1, 5))
    def open(self, stride: int, blocks: int) -> None:
        largest = self.slabs.fragmentation().largest_free
        assert self.slabs.open(stride, blocks) == (largest >= stride * blocks)

    @rule(stride=st.integers(1, 7))
    def take(self, stride: int) -> None:
        place = self.slabs.take(stride)
        if place is not None:
            taken = range(place, place + stride)
            for other, width in self.blocks.items():
                assert not set(taken) & set(range(other, other + width))
            self.blocks[place] = stride

    @precondition(lambda self: self.blocks)
    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(sorted(self.blocks)))
        retiring = self.slabs.of(place).retiring
        given = self.slabs.give(place)
        assert given == (ByteRange(place, self.blocks[place]) if retiring else None)
        del self.blocks[place]

    @precondition(lambda self: self.slabs.empty())
    @rule()
    def close(self) -> None:
        slab = self.slabs.empty()[0]
        assert self.slabs.close(slab) == ByteRange(slab.offset, slab.nbytes)

    @precondition(lambda self: self.blocks)
    @rule(data=st.data())
    def retire(self, data: st.DataObject) -> None:
        slab = self.slabs.of(data.draw(st.sampled_from(sorted(self.blocks))))
        if not slab.retiring:
            self.slabs.retire(slab)

    @invariant()
    def every_offset_is_somewhere_once(self) -> None:
        slabs = self.slabs.all()
        assert sum(s.nbytes for s in slabs) + self.slabs.fragmentation().free == SPAN
        assert self.slabs.counted == sum(s.counted for s in slabs)
        spans = sorted((s.offset, s.offset + s.nbytes) for s in slabs)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
        assert {offset for s in slabs for offset in s.used} == set(self.blocks)


TestCut = Cut.TestCase
TestCut.settings = examples(60, stateful_step_count=40)
