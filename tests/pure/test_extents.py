"""Sizes of extents, and runs of consecutive numbers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmm import Misaligned, extent_blocks
from vmm.runs import pick, runs

pytestmark = pytest.mark.pure
numbers = st.lists(st.integers(0, 60), unique=True)


@given(block=st.integers(1, 5000), page=st.integers(1, 5000))
def test_an_extent_is_the_fewest_blocks_that_end_on_a_page(block: int, page: int) -> None:
    blocks = extent_blocks(block, page)
    assert blocks * block % page == 0
    assert all(fewer * block % page for fewer in range(1, blocks))


@pytest.mark.parametrize(
    ("block_bytes", "page_bytes", "blocks"),
    [
        (2 << 20, 2 << 20, 1),
        (64 << 10, 2 << 20, 32),
        (12_800 << 10, 2 << 20, 4),  # OPT-13B, 16 tokens, block outermost: 50 MiB
        (320 << 10, 2 << 20, 32),
        (3, 2, 2),
    ],
)
def test_known_extents(block_bytes: int, page_bytes: int, blocks: int) -> None:
    assert extent_blocks(block_bytes, page_bytes) == blocks


@pytest.mark.parametrize(("block", "page"), [(0, 4096), (-1, 4096), (4096, 0)])
def test_sizes_are_positive(block: int, page: int) -> None:
    with pytest.raises(Misaligned):
        extent_blocks(block, page)


@given(numbers)
def test_runs_are_the_numbers_and_as_few_as_can_be(values: list[int]) -> None:
    cut = runs(values)
    assert [n for run in cut for n in run] == values
    assert all(b == a + 1 for run in cut for a, b in pairwise(run))
    assert all(b[0] != a[-1] + 1 for a, b in pairwise(cut))


@given(numbers, st.integers(0, 70))
def test_pick_takes_what_is_there_and_breaks_few_runs(values: list[int], count: int) -> None:
    picked = pick(values, count)
    assert picked == sorted(set(picked)) and set(picked) <= set(values)
    assert len(picked) == min(count, len(values))
    lengths = sorted((len(run) for run in runs(sorted(values))), reverse=True)
    fewest = next((n for n in range(len(lengths)) if sum(lengths[:n]) >= count), len(lengths))
    assert len(runs(picked)) <= fewest


def test_pick_keeps_long_runs_whole() -> None:
    assert pick([0, 1, 2, 3, 4, 10, 11, 20], 2) == [10, 11]
    assert pick([0, 1, 2, 3, 4, 10, 11, 20], 6) == [0, 1, 2, 3, 4, 20]
