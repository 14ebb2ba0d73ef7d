"""Size of a device's pages, if the configuration leaves it open (`device.page: auto`).

Large pages are few: mapping a layer of 600 MiB takes 300 calls of the driver with pages of 2 MiB,
and ten with pages of 64 MiB. But layers are rounded up to pages, and KV extents, the unit in which
a KV cache grows, consist of whole pages. All tenants of a device share one size, in which the
ledger counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mirage.units import MIB, align_up, size
from vmm.space import extent_blocks

SMALLEST, LARGEST = 2 * MIB, 64 * MIB
"""Smallest page that CUDA maps, and the size from which larger pages hardly save calls."""
LOST = 0.02
"""Largest fraction by which a layer may grow by being rounded up to pages."""
EXTENTS = 64
"""Least number of extents in the KV memory of a share; with fewer, memory would move too
coarsely.
"""


@dataclass(frozen=True)
class PageSizes:
    """Sizes of one tenant on which the page size depends, in bytes.

    `run_bytes` is the size of a KV block in each of its `runs`; 0 if the model has no KV cache.
    """

    name: str
    layer_bytes: int
    layers: int
    fixed_bytes: int
    run_bytes: int
    runs: int
    share_bytes: int
    request_blocks: int
    """KV blocks of one request of the greatest length, which the tenant needs to be served."""

    def extent_bytes(self, page: int) -> int:
        """Bytes of a KV extent, over all runs; 0 if the model has no KV cache."""
        if not self.run_bytes:
            return 0
        return extent_blocks(self.run_bytes, page) * self.run_bytes * self.runs

    def kv_bytes(self, page: int) -> int:
        """Bytes of the share that are left for the KV cache with pages of this size."""
        layers = self.layers * align_up(self.layer_bytes, page)
        return self.share_bytes - self.fixed_bytes - layers

    def lost(self, page: int) -> float:
        """Fraction by which a layer grows if it is rounded up to pages of `page` bytes; 0 if the
        layer has no bytes.
        """
        return align_up(self.layer_bytes, page) / self.layer_bytes - 1 if self.layer_bytes else 0.0

    def fits(self, page: int) -> bool:
        """True if the share holds the parameters and one request of the greatest length."""
        extent = self.extent_bytes(page)
        blocks = self.request_blocks * self.run_bytes * self.runs
        return (align_up(blocks, extent) if extent else 0) <= self.kv_bytes(page)


@dataclass(frozen=True)
class PageSize:
    """Page size in bytes, and the reason for it; the reason is empty if the configuration has the
    size.
    """

    bytes: int
    reason: str = ""


def page_size(asked: int | None, tenants: Iterable[PageSizes]) -> PageSize:
    """Size that was `asked` for. Else it doubles from `SMALLEST` to `LARGEST`, until a tenant has
    an objection to the next size.
    """
    if asked is not None:
        return PageSize(asked)
    known = list(tenants)
    for page in _sizes():
        if why := next((w for tenant in known if (w := _objection(tenant, 2 * page))), ""):
            return PageSize(page, why)
    return PageSize(LARGEST, "the largest")


def _sizes() -> Iterator[int]:
    """Page sizes in bytes: the powers of two from `SMALLEST` to below `LARGEST`, ascending."""
    page = SMALLEST
    while page < LARGEST:
        yield page
        page *= 2


def _objection(tenant: PageSizes, page: int) -> str:
    """Reason why a tenant should not have pages of this size; empty if there is none."""
    if (lost := tenant.lost(page)) > LOST:
        return f"with {size(page)} a layer of {tenant.name!r} would lose {lost:.1%}"
    extent = tenant.extent_bytes(page)
    if extent * EXTENTS > tenant.kv_bytes(page) and extent > tenant.extent_bytes(SMALLEST):
        return f"with {size(page)} a KV extent of {tenant.name!r} would be {size(extent)}"
    if tenant.fits(SMALLEST) and not tenant.fits(page):
        return f"with {size(page)} {tenant.name!r} would not fit into its share"
    return ""
