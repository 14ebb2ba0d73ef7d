"""Tier below the host pool: copies blocks to a disk and back in threads of its own.

A block is used only if its header and all its bytes are those that were stored under its name. A
disk that fails is not used for a while; meanwhile the host pool is the lowest tier.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from mirage.tiers.below import Above
from mirage.tiers.blocks import Name
from mirage.tiers.holes import ByteRange
from mirage.tiers.space import PAGE
from mirage.tiers.ssd.files import Files
from mirage.tiers.ssd.index import CellIndex, FileCell
from mirage.tiers.ssd.record import believed, cell_bytes
from mirage.units import align_up

logger = logging.getLogger("mirage.tiers.ssd")

THREADS = 2
"""Number of threads for each direction: few keep a disk busy, and reads never wait for all
writes."""
RETRY_S = 30.0
"""Seconds for which a disk that failed is not used."""
MOST_WRITES = 128
"""Largest number of copies to the disk that may wait; further ones are refused."""


class FolderRefused(OSError):
    """Error: a folder cannot be used; the message has its name and the reason."""


@dataclass
class SsdCounts:
    """Counts of the SSD tier since its start, in blocks and bytes."""

    stored: int = 0
    loaded: int = 0
    unbelieved: int = 0
    """Number of blocks whose header or bytes were wrong: they are dropped, never served."""
    refused: int = 0
    """Number of blocks that were not taken: no cell was free, too many copies waited, or the disk
    had failed."""
    errors: int = 0
    stored_bytes: int = 0
    loaded_bytes: int = 0
    found: int = 0
    """Number of blocks found from an earlier run."""


class SsdStore:
    """`mirage.tiers.below.Below` on a disk. With `keep`, blocks outlive the process."""

    def __init__(
        self,
        folder: Path,
        capacity: int,
        *,
        keep: bool = False,
        tenants: Collection[str] | None = None,
    ) -> None:
        """Initialise; the disk is not used before `begin`, which erases kept blocks of tenants that
        are not in `tenants`, or no blocks if that is None."""
        self.counts = SsdCounts()
        self._files: Files | None = None
        self._keep, self._folder, self._tenants = keep, folder, tenants
        self._index = CellIndex(capacity)
        self._lock = threading.Lock()
        """Lock of index and counts."""
        self._writes = ThreadPoolExecutor(THREADS, "ssd-write")
        self._reads = ThreadPoolExecutor(THREADS, "ssd-read")
        self._writing = 0
        self._failed_at: float | None = None
        self._ended = False

    def begin(self, above: Above, memory: memoryview) -> None:
        """Open the folder; with `keep` find the blocks that an earlier run left, else delete them.
        Raise `FolderRefused` if the folder cannot be used."""
        self._above, self._memory = above, memory
        try:
            self._files = Files(self._folder, keep=self._keep)
        except BlockingIOError:
            raise FolderRefused(f"{self._folder}: another process has it") from None
        except OSError as error:
            raise FolderRefused(f"{self._folder}: {error.strerror or error}") from None
        if self._keep:
            self._adopt()
        how = "with O_DIRECT" if self._direct else "buffered: O_DIRECT is not taken there"
        logger.info("ssd folder=%s blocks=%d %s", self._folder, len(self._index), how)

    def has(self, name: Name, nbytes: int) -> bool:
        with self._lock:
            return not self._resting() and self._index.has(name, cell_bytes(nbytes))

    def keep(self, names: Iterable[Name]) -> None:
        with self._lock:
            for name in names:
                self._index.keep(name)

    def sink(self, name: Name, place: ByteRange, tenant: str) -> bool:
        with self._lock:
            if not self._takes():
                self.counts.refused += 1
                return False
            placed = self._index.place(name, cell_bytes(place.nbytes), tenant)
            if placed is None:
                self.counts.refused += 1
                return False
            cell, gone = placed
            self._writing += 1
        self._writes.submit(self._write, name, place, cell, gone, tenant)
        return True

    def rise(self, name: Name, place: ByteRange) -> bool:
        with self._lock:
            cell = None if self._ended else self._index.read(name)
        if cell is None:
            return False
        self._reads.submit(self._read, name, place, cell)
        return True

    def wipe(self, tenant: str) -> None:
        with self._lock:
            cells = self._index.wipe(tenant)
            if cells and not self._ended:
                self._writes.submit(self._erase, cells)

    def end(self) -> None:
        """Stop: copies in progress end, waiting ones are dropped. A second call does nothing."""
        with self._lock:
            self._ended = True
        for threads in (self._writes, self._reads):
            threads.shutdown(wait=True, cancel_futures=True)
        self._memory = memoryview(b"")
        if self._files is not None:
            self._files.close()

    def state(self) -> dict[str, int | bool]:
        """Return for operators the bytes on the disk, the blocks, the counts, and whether the disk
        has failed."""
        with self._lock:
            index = self._index
            return {
                "held_bytes": index.held,
                "capacity_bytes": index.capacity,
                "blocks": len(index),
                "evictions": index.evictions,
                "writing": self._writing,
                "failed": self._failed_at is not None,
                "direct": self._direct,
                **asdict(self.counts),
            }

    @property
    def _disk(self) -> Files:
        assert self._files is not None, "before `begin`"
        return self._files

    @property
    def _direct(self) -> bool:
        return self._files is not None and self._files.direct

    # -- in threads ---------------------------------------------------------------------

    def _write(
        self, name: Name, place: ByteRange, cell: FileCell, gone: list[FileCell], tenant: str
    ) -> None:
        done = False
        try:
            for other in gone:
                self._disk.punch(other)
            if done := not self._resting():  # it may have failed while this one waited
                self._disk.write(cell, name, self._pages(place), place.nbytes, tenant)
        except (OSError, ValueError) as error:
            done = False
            self._fail(error)
        with self._lock:
            self._index.free(gone)
            self._writing -= 1
            if done:
                self._index.written(name)
                self.counts.stored += 1
                self.counts.stored_bytes += place.nbytes
                self._recovered()
            else:
                self._index.drop(name)
            wiped = self._index.wiped(name)
        self._erase(wiped)
        self._above.sunk(name, whole=done)

    def _read(self, name: Name, place: ByteRange, cell: FileCell) -> None:
        page, whole = None, False
        start, nbytes = place
        try:
            page = self._disk.read(cell, self._pages(place))
            whole = believed(page, name, self._memory[start : start + nbytes])
        except OSError as error:
            self._fail(error)
        with self._lock:
            self._index.was_read(name)
            if whole:
                self.counts.loaded += 1
                self.counts.loaded_bytes += nbytes
            else:
                self.counts.unbelieved += page is not None
                self._index.drop(name)
            wiped = self._index.wiped(name)
        self._erase(wiped)
        self._above.risen(name, whole=whole)

    def _erase(self, cells: list[FileCell]) -> None:
        """Give back and free the cells of a removed tenant's blocks."""
        try:
            for cell in cells:
                self._disk.punch(cell)
        except OSError as error:
            self._fail(error)
        with self._lock:
            self._index.free(cells)

    def _pages(self, place: ByteRange) -> memoryview:
        """Return the whole pages of a place: places take whole pages, blocks need not."""
        return self._memory[place.offset : place.offset + align_up(place.nbytes, PAGE)]

    # -- failures -----------------------------------------------------------------------

    def _takes(self) -> bool:
        """True if a block may be written to the disk. The caller has the lock.

        After a failure one block is tried alone, so that others lose nothing if it fails too.
        """
        most = MOST_WRITES if self._failed_at is None else 1
        return not self._ended and not self._resting() and self._writing < most

    def _recovered(self) -> None:
        if self._failed_at is not None:
            logger.info("ssd folder=%s: takes KV blocks again", self._folder)
        self._failed_at = None

    def _resting(self) -> bool:
        """True if the disk failed less than `RETRY_S` seconds ago."""
        return self._failed_at is not None and time.monotonic() - self._failed_at < RETRY_S

    def _fail(self, error: OSError | ValueError) -> None:
        with self._lock:
            self.counts.errors += 1
            first, self._failed_at = self._failed_at is None, time.monotonic()
        if first:
            logger.warning(
                "ssd folder=%s: %s: no KV blocks are written to it for %.0f s at least",
                self._folder,
                error,
                RETRY_S,
            )

    def _adopt(self) -> None:
        try:
            for cell, (name, _, tenant) in self._disk.found():
                wanted = self._tenants is None or tenant in self._tenants
                if self._index.adopt(name, cell, tenant, wanted=wanted):
                    self.counts.found += 1
                else:
                    with suppress(OSError):
                        self._disk.punch(cell)
        except OSError as error:
            self._fail(error)
