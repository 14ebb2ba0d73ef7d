"""Where KV blocks are: on the device, and in the pool's memory as this process maps it."""

from __future__ import annotations

import ctypes
import logging

from mirage.engine.kvbuffer import KVBuffer
from mirage.tiers.contract import Medium, Place, Pool
from vmm.driver import Driver, VmmError

logger = logging.getLogger("mirage.engine.tiers")


class DeviceBlocks:
    """The runs of each block of an engine's KV buffer."""

    def __init__(self, kv: KVBuffer) -> None:
        self._starts = [kv.range.address + offset for offset in kv.regions]
        self._block_bytes = kv.block_bytes

    def runs(self, block: int) -> list[tuple[int, int]]:
        """(address, bytes) of each; together they are the block over all layers."""
        return [(start + block * self._block_bytes, self._block_bytes) for start in self._starts]


class PoolMemory:
    """Addresses of the pool's regions, locked for the device as each is first used."""

    def __init__(self, pool: Pool, driver: Driver) -> None:
        self._pool, self._driver = pool, driver
        self._mapped: dict[Medium, tuple[int, int]] = {}
        self._pinned: list[int] = []
        self._views: list[ctypes.Array[ctypes.c_char]] = []

    @property
    def media(self) -> list[Medium]:
        """Those that have a region."""
        return [medium for medium in Medium if self._has(medium)]

    def address(self, place: Place) -> int:
        """Of a place. Raises `KeyError` for a medium without a region, or outside of it."""
        if place.medium not in self._mapped:
            self._map(place.medium)
        start, nbytes = self._mapped[place.medium]
        if not 0 <= place.offset < nbytes:
            raise KeyError(f"{place}: the region has {nbytes} bytes")
        return start + place.offset

    def close(self) -> None:
        """With no copy under way."""
        for address in self._pinned:
            self._driver.unpin(address)
        self._pinned.clear()
        self._mapped.clear()
        self._views.clear()

    def _has(self, medium: Medium) -> bool:
        try:
            self._pool.memory(medium)
        except KeyError:
            return False
        return True

    def _map(self, medium: Medium) -> None:
        region = self._pool.memory(medium)
        view = (ctypes.c_char * region.nbytes).from_buffer(region)
        address = ctypes.addressof(view)
        self._views.append(view)
        self._mapped[medium] = (address, region.nbytes)
        try:
            self._driver.pin(address, region.nbytes)
            self._pinned.append(address)
        except VmmError as error:
            logger.warning("the %s memory of KV blocks is not locked: %s", medium.value, error)
