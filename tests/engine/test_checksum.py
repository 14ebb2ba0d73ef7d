"""Checksums of a step's outputs; for those on a device, of sums that the device makes."""

from __future__ import annotations

import pytest
import torch

from mirage.engine.checksum import CHUNK, ROW, checksum, weighted_sums

pytestmark = pytest.mark.engine
SIZES = (0, 1, ROW - 1, ROW, ROW + 1, CHUNK, 2 * CHUNK + 3 * ROW + 5)


def numbers(size: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size)
    return torch.randint(0, 100, (size,), generator=generator).to(dtype)


@pytest.mark.parametrize("size", SIZES)
def test_any_number_that_changes_is_seen(size: int) -> None:
    tensor = numbers(size)
    before, places = weighted_sums(tensor), {0, 1, size // 2, ROW - 1, ROW, CHUNK, size - 1}
    assert torch.equal(weighted_sums(tensor.clone()), before)
    for place in places & set(range(size)):
        kept = tensor[place].clone()
        tensor[place] += 1
        assert not torch.equal(weighted_sums(tensor), before), place
        tensor[place] = kept
    assert torch.equal(weighted_sums(tensor), before)


def test_numbers_that_change_places_are_seen() -> None:
    tensor = numbers(2 * ROW + 10)
    tensor[0], tensor[-1], tensor[ROW] = 1, 2, 3
    before = weighted_sums(tensor)
    for one, other in ((0, -1), (0, ROW), (ROW, -1)):
        swapped = tensor.clone()
        swapped[one], swapped[other] = tensor[other], tensor[one]
        assert not torch.equal(weighted_sums(swapped), before)
    assert not torch.equal(weighted_sums(tensor.roll(1)), before)


@pytest.mark.parametrize("extreme", [-(1 << 15), (1 << 15) - 1])
def test_the_largest_sums_are_exact(extreme: int) -> None:
    words = torch.full((ROW + 7,), extreme, dtype=torch.int16)
    ones = weighted_sums(torch.ones_like(words))
    assert weighted_sums(words).tolist() == [extreme * one for one in ones.tolist()]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
)
def test_all_types_have_one(dtype: torch.dtype) -> None:
    tensor = numbers(ROW + 3, dtype)
    other = tensor.clone()
    other[ROW] = ~other[ROW] if dtype is torch.bool else other[ROW] + 1
    for told in (weighted_sums, lambda t: torch.tensor(checksum(t))):
        assert torch.equal(told(tensor), told(tensor.clone()))
        assert not torch.equal(told(tensor), told(other))


def test_bits_count_and_strides_do_not() -> None:
    tensor = torch.full((3, 4), torch.nan)
    assert checksum(tensor) == checksum(tensor.clone())
    assert checksum(torch.zeros(2)) != checksum(-torch.zeros(2))
    rows = torch.arange(12.0).view(3, 4)
    assert checksum(rows.T) == checksum(rows.T.contiguous()) != checksum(rows)
