"""Folder of an SSD tier: one sparse file for each size of cell, owned by one process."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mirage.tiers.blocks import Name
from mirage.tiers.space import PAGE
from mirage.tiers.ssd.index import FileCell
from mirage.tiers.ssd.record import BlockRecord, cell_bytes, header, named
from vmm import libc

READERS = 16
"""Number of headers that are read at the same time at the start: a disk answers many as fast as
one."""

_OURS = re.compile(r"kv-(\d+)\.blocks")


def existing(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that exists. Raises `OSError` if a folder
    cannot be looked into."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def taken_bytes(folder: Path) -> int:
    """Bytes of the disk that blocks of an earlier run take in the folder; 0 if there is none.
    Raises `OSError` if the folder cannot be read."""
    if not folder.is_dir():
        return 0
    ours = (each for each in folder.iterdir() if _OURS.fullmatch(each.name))
    return sum(each.stat().st_blocks * 512 for each in ours)


class Files:
    """Copies whole blocks by O_DIRECT where the file system supports it. Used by several
    threads."""

    def __init__(self, folder: Path, *, keep: bool) -> None:
        """Open the folder. Raise `OSError` if it cannot be made or written, or another process has
        it."""
        self._pages = threading.local()
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._keep = folder, keep
        self._lock = os.open(folder / "mirage.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._open: dict[int, int] = {}
            self._opening = threading.Lock()
            if not keep:
                self._delete()
            self.direct = self._takes_direct()
        except OSError:
            os.close(self._lock)
            raise

    def write(
        self, cell: FileCell, name: Name, memory: memoryview, nbytes: int, tenant: str
    ) -> None:
        """Write a block of `tenant` to a cell; `memory` is whole pages, and the block is its first
        `nbytes` bytes.

        Raise `OSError`; the cell then holds the whole block, or nothing that passes the check.
        """
        page = self._page()
        page[:] = header(name, memory[:nbytes], tenant)
        done = os.pwritev(self._file(cell.stride), [page, memory], cell.offset)
        if done != PAGE + len(memory):
            # The next byte would have failed with this: a file is written to its end otherwise.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def read(self, cell: FileCell, memory: memoryview) -> bytes:
        """Return the header of a cell; the block is read into `memory`, whole pages. Raises
        `OSError` if the disk fails, or the file ends inside the cell."""
        page = self._page()
        done = os.preadv(self._file(cell.stride), [page, memory], cell.offset)
        if done != PAGE + len(memory):
            raise OSError(f"{done} bytes of {PAGE + len(memory)} were read")
        return bytes(page)

    def punch(self, cell: FileCell) -> None:
        """Give the cell's space on the disk back. Raises `OSError` if the file system refuses."""
        libc.punch(self._file(cell.stride), cell.offset, cell.stride)

    def found(self) -> Iterator[tuple[FileCell, BlockRecord]]:
        """Yield cells and records of files that existed before, each file's cells in ascending
        order."""
        for path in sorted(self._folder.iterdir()):
            if match := _OURS.fullmatch(path.name):
                yield from self._of_file(int(match[1]))

    def close(self) -> None:
        """Close the files; those that are not to be kept have no name, and are deleted by that. A
        second call does nothing."""
        if self._lock < 0:
            return
        for handle in self._open.values():
            os.close(handle)
        os.close(self._lock)
        self._lock = -1

    def _of_file(self, stride: int) -> Iterator[tuple[FileCell, BlockRecord]]:
        cells = [FileCell(stride, n) for n in range(os.fstat(self._file(stride)).st_size // stride)]
        with ThreadPoolExecutor(READERS, "ssd-find") as readers:
            for cell, record in zip(cells, readers.map(self._named, cells), strict=True):
                if record is not None:
                    yield cell, record

    def _named(self, cell: FileCell) -> BlockRecord | None:
        """Read the header of a cell: name, bytes and tenant of the block there. None if the header
        is damaged, or its block belongs into cells of another size."""
        page = self._page()
        if os.preadv(self._file(cell.stride), [page], cell.offset) != PAGE:
            return None
        record = named(page)
        return record if record and cell_bytes(record.nbytes) == cell.stride else None

    def _page(self) -> memoryview:
        """Return an aligned page of memory, this thread's own."""
        if not hasattr(self._pages, "own"):
            self._pages.own = memoryview(mmap.mmap(-1, PAGE))
        own: memoryview = self._pages.own
        return own

    def _file(self, stride: int) -> int:
        with self._opening:
            handle = self._open.get(stride)
            if handle is None:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                flags |= os.O_DIRECT if self.direct else 0
                path = self._folder / f"kv-{stride}.blocks"
                handle = os.open(path, flags, 0o600)
                if not self._keep:
                    path.unlink()  # so that nothing is left of a process that is killed
                self._open[stride] = handle
            return handle

    def _takes_direct(self) -> bool:
        probe = self._folder / "mirage.probe"
        try:
            handle = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_DIRECT, 0o600)
        except OSError:
            return False
        try:
            return os.pwritev(handle, [self._page()], 0) == PAGE
        except OSError:
            return False
        finally:
            os.close(handle)
            probe.unlink(missing_ok=True)

    def _delete(self) -> None:
        """Delete the files that an earlier run kept, and no others.

        The lock file stays, because another process may wait for it.
        """
        for path in self._folder.glob("kv-*.blocks"):
            if _OURS.fullmatch(path.name):
                path.unlink(missing_ok=True)
