"""The size of pages: a power of two, as large as it may be without waste at any tenant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.serve.fit.page_size import (
    EXTENTS,
    LARGEST,
    LOST,
    SMALLEST,
    PageSize,
    PageSizes,
    page_size,
)
from mirage.units import GIB, KIB, MIB

pytestmark = pytest.mark.pure


def sizes(
    name: str = "a",
    layer: int = 640 * MIB,
    layers: int = 40,
    block: int = 2 * MIB,
    share: int = 70 * GIB,
) -> PageSizes:
    return PageSizes(name, layer, layers, GIB, block, 1, share, 129)


TENANTS = st.builds(
    PageSizes,
    name=st.sampled_from("abc"),
    layer_bytes=st.integers(1, 2 * GIB),
    layers=st.integers(1, 100),
    fixed_bytes=st.integers(0, 4 * GIB),
    run_bytes=st.integers(0, 16 * 1024).map(lambda n: n * 4 * KIB),
    runs=st.integers(1, 64),
    share_bytes=st.integers(GIB, 200 * GIB),
    request_blocks=st.integers(1, 5000),
)


@given(st.lists(TENANTS, min_size=1, max_size=3))
def test_nobody_minds_it_and_somebody_would_mind_the_next(tenants: list[PageSizes]) -> None:
    found = page_size(None, tenants)
    page = found.bytes
    assert SMALLEST <= page <= LARGEST and page & (page - 1) == 0 and found.reason
    assert page == SMALLEST or all(accepts(tenant, page) for tenant in tenants)
    assert page == LARGEST or not all(accepts(tenant, 2 * page) for tenant in tenants)


def accepts(tenant: PageSizes, page: int) -> bool:
    extent = tenant.extent_bytes(page)
    coarse = extent > tenant.extent_bytes(SMALLEST) and extent * EXTENTS > tenant.kv_bytes(page)
    loses_its_place = tenant.fits(SMALLEST) and not tenant.fits(page)
    return tenant.lost(page) <= LOST and not coarse and not loses_its_place


@given(st.lists(TENANTS, min_size=1, max_size=3), st.sampled_from([4096, 1 << 16, 1 << 30]))
def test_what_is_asked_for_is_what_there_is(tenants: list[PageSizes], asked: int) -> None:
    assert page_size(asked, tenants) == PageSize(asked)


def test_one_tenant_may_hold_all_back() -> None:
    assert page_size(None, [sizes()]) == PageSize(64 * MIB, "the largest")
    small = sizes("small", layer=33 * MIB)
    assert page_size(None, [sizes(), small]) == PageSize(
        2 * MIB, "with 4.0 MiB a layer of 'small' would lose 9.1%"
    )


def test_blocks_that_fill_no_page_keep_pages_small() -> None:
    # OPT-13B: 12.5 MiB a block, so an extent is four blocks at 2 MiB, and 128 at 64 MiB.
    opt = sizes(layer=600 * MIB, block=25 * MIB // 2, share=60 * GIB)
    found = page_size(None, [opt])
    assert opt.extent_bytes(found.bytes) <= opt.kv_bytes(found.bytes) / EXTENTS
    assert "a KV extent of 'a' would be" in found.reason


def test_a_tight_share_is_not_rounded_out_of_the_device() -> None:
    tight = sizes(layer=2 * MIB, layers=10, block=0, share=GIB + 20 * MIB)
    assert tight.fits(SMALLEST)
    assert page_size(None, [tight]).bytes == SMALLEST


def test_no_tenant_minds_anything_without_a_model() -> None:
    assert page_size(None, []).bytes == LARGEST
