"""Pages that are given away are NaN from then on: whoever still reads them is seen."""

from __future__ import annotations

from collections.abc import Iterable

from vmm.driver import Page
from vmm.pages import PagePool
from vmm.space import Range

POISON = 0xFF
"""Fill byte: NaN in every float format."""


class PoisoningPool(PagePool):
    """Overwrites every page that a layer or an extent of KV blocks has left."""

    def give(self, pages: Iterable[Page]) -> None:
        """Fill the pages with poison, and then give them as `PagePool.give`."""
        given = list(pages)
        scratch = Range(self.driver, len(given) * self.driver.page_bytes)
        scratch.back(0, given)
        self.driver.fill(scratch.address, POISON, scratch.nbytes)
        scratch.close()
        super().give(given)
