"""Pool's memory as this process maps it, page-locked for the device's copies slab by slab.

Locking takes memory for all that is locked, and if a hole is punched later a device goes on reading
the old memory. So the whole region is never locked: it is sparse, twice as long as the pool may
grow, and holes are punched in it. A slab counts as in use as a whole. It stays locked until the
pool announces that it will punch there, and the pool waits for the answer (`mirage.tiers.locks`).

A place in a slab that may not be locked, because the pool wants its memory back or does not answer,
is page-locked alone while it is copied from or to. A request or a reservation holds the place, so
no hole is punched meanwhile; the place is unlocked before the request or reservation ends.
"""

from __future__ import annotations

import ctypes
import logging
from collections import Counter
from functools import partial

from mirage.engine.tiers.slab_locks import LockedSlab, slab_locks
from mirage.tiers.contract import BlockPlace, Medium, Pool
from mirage.tiers.lending.borrower import Borrower
from mirage.tiers.lending.engine_line import EngineLine
from mirage.tiers.space import PAGE
from mirage.units import align_up
from vmm.driver import DeviceUnavailable, Driver, VmmError

logger = logging.getLogger("mirage.engine.tiers")


def borrowing(pool: Pool, driver: Driver) -> Borrower | None:
    """Return the mapper of memory of other GPUs that a process on each of them (its holder) lends
    to the pool.

    None if the pool has no holders: it has no peers, or their memory is host memory in its region.
    Raise `DeviceUnavailable` if the engine is not on a GPU.
    """
    if not (lenders := pool.lenders()):
        return None
    from vmm.cuda import CudaDriver
    from vmm.cuda_slab import Slab

    if not isinstance(driver, CudaDriver):
        raise DeviceUnavailable("memory of another GPU is for an engine on a GPU")
    return Borrower(lenders, partial(Slab.borrow, driver))


class PoolMemory:
    """Addresses of places, each of `block_bytes` bytes. Used by one thread."""

    def __init__(
        self, pool: Pool, driver: Driver, block_bytes: int, borrower: Borrower | None = None
    ) -> None:
        """Initialise; with a `borrower`, places on peers are in its memory, and it is closed after
        all their uses."""
        self._pool, self._driver = pool, driver
        self._nbytes = align_up(block_bytes, PAGE)
        self._mapped: dict[Medium, tuple[int, int]] = {}
        self._views: list[ctypes.Array[ctypes.c_char]] = []
        self._borrower = borrower
        self._slabs: EngineLine[LockedSlab] | None = None
        if (line := pool.locks()) is not None:
            self._map(Medium.HOST)
            self._slabs = slab_locks(line, driver, self._mapped[Medium.HOST][0])
        self._uses: Counter[int] = Counter()
        """Number of copies in progress from or to places outside of locked slabs, by address."""
        self._locked: set[int] = set()
        """Addresses of places outside of locked slabs that are page-locked separately."""
        self._warned = False

    @property
    def media(self) -> list[Medium]:
        """Media that this process can copy from and to."""
        lent = [Medium.PEER] if self._borrower is not None else []
        return lent + [medium for medium in Medium if self._has(medium)]

    def use(self, place: BlockPlace) -> int:
        """Return the address of a place, page-locked until `let_go` was called as often as this.

        Raise `KeyError` for a medium without a region, or a place outside of it.
        """
        if self._borrower is not None and place.medium is Medium.PEER:
            return self._borrower.use(place.offset)
        address, nbytes = self._address(place)
        if address not in self._uses and self._in_slab(place):
            return address
        self._uses[address] += 1
        if self._uses[address] == 1:
            self._lock(address, nbytes)
        return address

    def let_go(self, place: BlockPlace) -> None:
        """Note that one copy from or to a place has ended."""
        if self._borrower is not None and place.medium is Medium.PEER:
            self._borrower.let_go(place.offset)
            return
        address, _ = self._address(place)
        if address not in self._uses:
            assert self._slabs is not None, place
            self._slabs.let_go(place.offset)
            return
        self._uses[address] -= 1
        if not self._uses[address]:
            del self._uses[address]
            self._unlock(address)

    def close(self) -> None:
        """Unlock and unmap everything. No copy may be in progress."""
        for address in list(self._locked):
            self._unlock(address)
        for held in (self._borrower, self._slabs):
            if held is not None:
                held.close()
        self._uses.clear()
        self._mapped.clear()
        self._views.clear()

    def _address(self, place: BlockPlace) -> tuple[int, int]:
        """Return the address of a place, and its bytes."""
        if place.medium not in self._mapped:
            self._map(place.medium)
        start, nbytes = self._mapped[place.medium]
        if not 0 <= place.offset < nbytes:
            raise KeyError(f"{place}: the region has {nbytes} bytes")
        return start + place.offset, min(self._nbytes, nbytes - place.offset)

    def _in_slab(self, place: BlockPlace) -> bool:
        """True if the place is in a locked slab, which is in use from now on."""
        if self._slabs is None or place.medium is not Medium.HOST:
            return False
        try:
            self._slabs.use(place.offset)
        except KeyError:
            return False
        return True

    def _has(self, medium: Medium) -> bool:
        try:
            self._pool.memory(medium)
        except KeyError:
            return False
        return True

    def _map(self, medium: Medium) -> None:
        region = self._pool.memory(medium)
        view = (ctypes.c_char * region.nbytes).from_buffer(region)
        self._views.append(view)
        self._mapped[medium] = (ctypes.addressof(view), region.nbytes)

    def _lock(self, address: int, nbytes: int) -> None:
        """Page-lock memory of a place. A copy works without it as well, only slower."""
        try:
            self._driver.pin(address, nbytes)
            self._locked.add(address)
        except VmmError as error:
            if not self._warned:
                logger.warning("KV blocks below the device are copied unlocked: %s", error)
            self._warned = True

    def _unlock(self, address: int) -> None:
        if address in self._locked:
            self._locked.remove(address)
            self._driver.unpin(address)
