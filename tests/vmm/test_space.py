"""Ranges, and extents with real tensors over them, in both layouts of a KV cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import vmm.space
from tests.vmm.conftest import standin
from vmm import (
    AlreadyMapped,
    Driver,
    ExtentMap,
    GrantExceeded,
    HostDriver,
    Misaligned,
    NotMapped,
    NotReserved,
    OutOfMemory,
    Page,
    PagePool,
    Range,
)
from vmm.cuda import CudaDriver
from vmm.driver import VmmError

pytestmark = pytest.mark.vmm
PAGE = 65536


@pytest.fixture
def pool(driver: Driver) -> PagePool:
    return PagePool(driver, 200 * PAGE)


class TestRange:
    def test_back_and_unback_keep_the_order(self, driver: Driver, pool: PagePool) -> None:
        space, pages = Range(driver, 4 * PAGE), pool.take(3, "layer")[::-1]
        space.back(PAGE, pages)
        assert space.pages_at(PAGE, 3 * PAGE) == pages
        assert space.backed_in(0, space.nbytes) == 3 * PAGE
        assert space.unback(2 * PAGE, PAGE) == [pages[1]]
        assert space.backed_in(PAGE, 2 * PAGE) == PAGE

    def test_one_page_behind_two_ranges(self, driver: Driver, pool: PagePool) -> None:
        slot = pool.take(2, "slot")
        first, second = Range(driver, 2 * PAGE), Range(driver, 2 * PAGE)
        first.back(0, slot)
        second.back(0, first.pages_at(0, 2 * PAGE))
        first.tensor().fill_(6)
        assert second.tensor().eq(6).all()
        first.close()
        assert second.tensor().eq(6).all()

    def test_refusals(self, driver: Driver, pool: PagePool) -> None:
        space, pages = Range(driver, 2 * PAGE), pool.take(3, "layer")
        for offset, wrong in ((0, pages), (2 * PAGE, pages[:1]), (-PAGE, pages[:1])):
            with pytest.raises(NotReserved, match=f"offset {offset}"):
                space.back(offset, wrong)
        with pytest.raises(Misaligned, match="offset 5"):
            space.back(5, pages[:1])
        space.back(0, pages[:1])
        with pytest.raises(AlreadyMapped):
            space.back(0, pages[:2])
        with pytest.raises(NotMapped, match="1 of 2"):
            space.unback(0, 2 * PAGE)
        with pytest.raises(NotReserved):
            space.tensor(PAGE, PAGE + 1)
        assert space.backed_in(0, space.nbytes) == PAGE

    def test_a_tensor_of_any_part(self, driver: Driver, pool: PagePool) -> None:
        space = Range(driver, 2 * PAGE)
        space.back(0, pool.take(2, "layer"))
        driver.fill(space.address + PAGE, 1, PAGE)
        assert space.tensor(PAGE - 2, 4).tolist() == [0, 0, 1, 1]
        assert space.tensor(PAGE).numel() == PAGE

    def test_closing_leaves_the_pages_to_their_owner(self, driver, pool: PagePool) -> None:
        space, pages = Range(driver, 4 * PAGE), pool.take(2, "layer")
        space.back(0, pages[:1])
        space.back(3 * PAGE, pages[1:])
        space.close()
        space.close()
        assert driver.used_bytes() == 2 * PAGE
        pool.give(pages)
        pool.trim()
        assert driver.used_bytes() == 0
        with pytest.raises(NotReserved):
            space.back(0, pages)

    def test_closing_after_the_driver(self, driver: Driver) -> None:
        kind: Any = type(driver)
        made = kind(PAGE)
        space = Range(made, PAGE)
        made.close()
        space.close()


LAYERS, BLOCKS, BLOCK_TOKENS, WIDTH = 3, 16, 8, 256
"""A block's float32 entries of one layer are 8 KiB: 8 blocks to a page and layer."""
SLICE = BLOCK_TOKENS * WIDTH * 4


def extents_for(layout: str, driver: Driver, pool: PagePool) -> tuple[ExtentMap, torch.Tensor]:
    """An extent map, and a tensor of its buffer as [block, layer, token, width], in this layout."""
    space = Range(driver, LAYERS * BLOCKS * SLICE)
    if layout == "block outermost":
        extents = ExtentMap(space, pool, [0], LAYERS * SLICE, BLOCKS)
        shape, order = (BLOCKS, LAYERS, BLOCK_TOKENS, WIDTH), (0, 1, 2, 3)
    else:
        regions = [layer * BLOCKS * SLICE for layer in range(LAYERS)]
        extents = ExtentMap(space, pool, regions, SLICE, BLOCKS)
        shape, order = (LAYERS, BLOCKS, BLOCK_TOKENS, WIDTH), (1, 0, 2, 3)
    return extents, space.tensor().view(torch.float32).view(shape).permute(order)


@pytest.mark.parametrize("layout", ["block outermost", "layer outermost"])
class TestExtents:
    def test_an_extent_is_whole_pages_in_every_region(self, layout, driver, pool) -> None:
        extents, _ = extents_for(layout, driver, pool)
        assert extents.extents * extents.blocks_per_extent == BLOCKS
        assert extents.extent_bytes * extents.extents == LAYERS * BLOCKS * SLICE
        assert extents.blocks_per_extent == 8

    def test_mapped_blocks_are_a_real_kv_cache(self, layout, driver, pool) -> None:
        extents, kv = extents_for(layout, driver, pool)
        extents.map([1])
        usable = range(extents.blocks_per_extent, 2 * extents.blocks_per_extent)
        expected = torch.randn(len(usable), *kv.shape[1:])
        for block, values in zip(usable, expected, strict=True):
            kv[block] = values
        assert torch.equal(kv[usable.start : usable.stop], expected)
        assert driver.used_bytes() == extents.extent_bytes

    def test_remapped_extents_begin_as_zeros(self, layout, driver, pool) -> None:
        extents, kv = extents_for(layout, driver, pool)
        extents.map([0, 1])
        kv.fill_(float("nan"))
        extents.unmap([0, 1])
        extents.map([1])
        extents.map([0])
        assert torch.equal(kv, torch.zeros(kv.shape))

    def test_pages_go_back_to_the_pool(self, layout, driver, pool) -> None:
        extents, _ = extents_for(layout, driver, pool)
        extents.map([0, 1])
        assert extents.mapped == {0, 1} and pool.in_use_bytes == 2 * extents.extent_bytes
        extents.unmap([0])
        assert extents.mapped == {1} and pool.in_use_bytes == extents.extent_bytes
        extents.check_integrity()
        extents.unmap([1])
        pool.trim()
        assert driver.used_bytes() == 0

    def test_a_grant_too_small_maps_nothing(self, layout, driver, pool) -> None:
        extents, _ = extents_for(layout, driver, pool)
        pool.set_grant(2 * extents.extent_bytes - 1)
        with pytest.raises(GrantExceeded):
            extents.map([0, 1])
        assert extents.mapped == set()
        assert extents.range.backed_in(0, extents.range.nbytes) == 0
        extents.map([1])
        extents.check_integrity()

    def test_a_failure_half_way_maps_nothing(self, layout, driver, pool, monkeypatch) -> None:
        extents, _ = extents_for(layout, driver, pool)
        real, calls = driver.map, []

        def last_fails(address: int, pages: list[Page]) -> None:
            calls.append(address)
            if len(calls) == len(extents.regions):
                raise OutOfMemory("on purpose")
            real(address, pages)

        def refuse(places: list[tuple[int, int]], byte: int) -> None:
            raise OutOfMemory("on purpose")

        for name, fails in (("map", last_fails), ("fill_all", refuse)):
            with monkeypatch.context() as patch:
                patch.setattr(driver, name, fails)
                with pytest.raises(OutOfMemory):
                    extents.map([1])
            assert extents.mapped == set()
        assert extents.range.backed_in(0, extents.range.nbytes) == 0
        assert pool.in_use_bytes == 0
        extents.map([0, 1])
        extents.check_integrity()

    def test_an_unmap_that_fails_half_way_unmaps_nothing(
        self, layout, driver, pool, monkeypatch
    ) -> None:
        extents, kv = extents_for(layout, driver, pool)
        extents.map([0, 1])
        kv.fill_(7)
        real, calls = driver.unmap, []

        def last_fails(address: int, nbytes: int) -> None:
            calls.append(address)
            if len(calls) == len(extents.regions):
                raise OutOfMemory("on purpose")
            real(address, nbytes)

        with monkeypatch.context() as patch:
            patch.setattr(driver, "unmap", last_fails)
            with pytest.raises(OutOfMemory):
                extents.unmap([0])
        assert extents.mapped == {0, 1} and kv.eq(7).all()
        extents.check_integrity()

    def test_as_many_whole_extents_as_the_device_has(
        self, layout, driver, pool, monkeypatch
    ) -> None:
        extents, kv = extents_for(layout, driver, pool)
        each = extents.extent_bytes // driver.page_bytes
        real = driver.create_most
        with monkeypatch.context() as patch:
            # One page less than both need.
            patch.setattr(driver, "create_most", lambda count: real(min(count, 2 * each - 1)))
            assert extents.map_most([1, 0]) == [1]
        extents.check_integrity()
        assert extents.mapped == {1} and pool.in_use_bytes == extents.extent_bytes
        pool.trim()
        assert driver.used_bytes() == extents.extent_bytes, "of the other there is nothing left"
        assert extents.map_most([0]) == [0] and kv.eq(0).all()
        assert extents.map_most([]) == []
        extents.check_integrity()

    def test_refusals(self, layout, driver, pool) -> None:
        extents, _ = extents_for(layout, driver, pool)
        extents.map([1])
        for wrong, error in (
            ([0, 1], AlreadyMapped),
            ([0, 0], AlreadyMapped),
            ([2], NotReserved),
            ([-1], NotReserved),
        ):
            with pytest.raises(error):
                extents.map(wrong)
        with pytest.raises(NotMapped, match="extent 0"):
            extents.unmap([1, 0])
        with pytest.raises(NotReserved):
            extents.unmap([2])
        assert extents.mapped == {1}
        extents.map([])
        extents.unmap([])

    def test_integrity_notices(self, layout, driver, pool) -> None:
        extents, _ = extents_for(layout, driver, pool)
        extents.map([0, 1])
        extents.check_integrity()
        pool.give(extents.range.pages_at(0, PAGE))
        with pytest.raises(VmmError, match="has the role None"):
            extents.check_integrity()
        extents.range.unback(0, PAGE)
        with pytest.raises(VmmError, match="extent 0"):
            extents.check_integrity()


class TestLayoutChecks:
    @pytest.mark.parametrize(
        ("regions", "block_bytes", "blocks", "error"),
        [
            ([0], PAGE // 4, 7, Misaligned),  # 4 blocks to an extent
            ([0], PAGE // 4, 0, Misaligned),
            ([0], 0, 4, Misaligned),
            ([512], PAGE, 4, Misaligned),
            ([0, 2 * PAGE], PAGE, 4, Misaligned),  # overlap
            ([0, 5 * PAGE], PAGE, 4, NotReserved),  # past the end
            ([-PAGE], PAGE, 4, NotReserved),
        ],
    )
    def test_refused(self, driver, pool, regions, block_bytes, blocks, error) -> None:
        with pytest.raises(error):
            ExtentMap(Range(driver, 8 * PAGE), pool, regions, block_bytes, blocks)

    def test_only_pages_that_were_in_use_are_cleared(self, monkeypatch) -> None:
        with HostDriver(PAGE) as driver:
            pool, filled = PagePool(driver, 8 * PAGE), []
            fill = driver.fill

            def seen(address: int, byte: int, nbytes: int) -> None:
                filled.append((address - home.address, nbytes))
                fill(address, byte, nbytes)

            monkeypatch.setattr(driver, "fill", seen)
            home = Range(driver, 8 * PAGE)
            extents = ExtentMap(home, pool, [0], PAGE, 8)
            extents.map([0, 1])
            assert not filled and not home.tensor(0, 2 * PAGE).any()
            home.tensor(0, 2 * PAGE).fill_(7)
            extents.unmap([0, 1])
            extents.map([2, 3, 4, 5])
            assert filled == [(2 * PAGE, 2 * PAGE)], "two spare pages, and two new ones"
            assert not home.tensor(2 * PAGE, 4 * PAGE).any()

    def test_many_extents_are_given_some_after_the_others(self, monkeypatch) -> None:
        monkeypatch.setattr(vmm.space, "AT_ONCE_BYTES", 3 * PAGE)
        with HostDriver(PAGE) as driver:
            pool, held = PagePool(driver, 8 * PAGE), []
            extents = ExtentMap(Range(driver, 8 * PAGE), pool, [0], PAGE, 8)
            extents.map(list(range(8)))
            pool.set_grant(0)
            unmap = driver.unmap

            def seen(address: int, nbytes: int) -> None:
                held.append(driver.used_bytes() // PAGE)
                unmap(address, nbytes)

            monkeypatch.setattr(driver, "unmap", seen)
            extents.unmap([7, 0, 1, 2, 3, 4, 5, 6])
            assert held == [8, 5, 2] and not driver.used_bytes() and not extents.mapped
            extents.check_integrity()

    def test_neighbouring_pieces_are_mapped_in_one_call_and_cleared_with_one_wait(self) -> None:
        device = standin()
        device.reset(memory_bytes=64 * PAGE, granularity=PAGE)
        with CudaDriver(tensors_on="cpu") as gpu:
            extents, kv = extents_for("layer outermost", gpu, PagePool(gpu, 64 * PAGE))
            names = ("cuMemSetAccess", "cuMemUnmap", "cuMemsetD8Async", "cuStreamSynchronize")

            def made(act: Callable[[list[int]], None], mapped: list[int]) -> tuple[int, ...]:
                before = device.calls()
                act(mapped)
                after = device.calls()
                return tuple(after.get(name, 0) - before.get(name, 0) for name in names)

            # the last extent of a layer ends where the first one of the next layer begins
            assert made(extents.map, [0, 1]) == (1, 0, 1, 1)
            assert kv.eq(0).all()
            assert made(extents.unmap, [0, 1]) == (0, 1, 0, 0)
            assert made(extents.map, [1]) == (LAYERS, 0, LAYERS, 1)
            assert made(extents.map, [0]) == (LAYERS, 0, LAYERS, 1)
            extents.check_integrity()

    def test_what_was_cleared_before_a_refusal_has_run_when_it_is_unmapped(self) -> None:
        device = standin()
        device.reset(memory_bytes=64 * PAGE, granularity=PAGE)
        with CudaDriver(tensors_on="cpu") as gpu:
            pool = PagePool(gpu, 64 * PAGE)
            extents, kv = extents_for("layer outermost", gpu, pool)
            device.delay(0.1)
            device.fail(LAYERS, "cuMemsetD8Async")
            with pytest.raises(VmmError, match="cuMemsetD8Async"):
                extents.map([1])
            device.delay(0)
            assert extents.range.backed_in(0, extents.range.nbytes) == pool.in_use_bytes == 0
            extents.map([0, 1])
            assert kv.eq(0).all()

    def test_gaps_between_regions_stay_unbacked(self, driver: Driver, pool: PagePool) -> None:
        space = Range(driver, 8 * PAGE)
        extents = ExtentMap(space, pool, [PAGE, 5 * PAGE], PAGE // 2, 4)
        extents.map([0, 1])
        backed = [space.backed_in(i * PAGE, PAGE) > 0 for i in range(8)]
        assert backed == [False, True, True, False, False, True, True, False]
