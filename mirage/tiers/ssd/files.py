"""The folder of an SSD tier: one sparse file for each size of slot, owned by one process."""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

from mirage.tiers.blocks import Name
from mirage.tiers.ssd.index import Slot
from mirage.tiers.ssd.record import PAGE, header, named, stride_of
from vmm import libc

_OURS = re.compile(r"kv-(\d+)\.blocks")


class Files:
    """Copies whole blocks by O_DIRECT where the file system takes it. Used by several threads."""

    def __init__(self, folder: Path, *, keep: bool) -> None:
        """Raises `OSError`: the folder cannot be made, written, or is another process's."""
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

    def write(self, slot: Slot, name: Name, memory: memoryview, nbytes: int) -> None:
        """`memory` is whole pages, of which the block takes the first `nbytes`.

        Raises `OSError`; then the slot holds nothing that would be believed, or all of it.
        """
        with _Page() as page:
            page[:] = header(name, memory[:nbytes])
            done = os.pwritev(self._file(slot.stride), [page, memory], slot.offset)
        if done != PAGE + len(memory):
            raise OSError(f"{done} bytes of {PAGE + len(memory)} were written")

    def read(self, slot: Slot, memory: memoryview) -> bytes:
        """The header; the block comes into `memory`, of whole pages. Raises `OSError`."""
        with _Page() as page:
            done = os.preadv(self._file(slot.stride), [page, memory], slot.offset)
            if done != PAGE + len(memory):
                raise OSError(f"{done} bytes of {PAGE + len(memory)} were read")
            return bytes(page)

    def punch(self, slot: Slot) -> None:
        """Give the slot's room on the disk back. Raises `OSError`."""
        libc.punch(self._file(slot.stride), slot.offset, slot.stride)

    def found(self) -> Iterator[tuple[Slot, Name]]:
        """What lies in the files from before, each one's slots in ascending order."""
        for path in sorted(self._folder.iterdir()):
            if match := _OURS.fullmatch(path.name):
                yield from self._of_file(int(match[1]))

    def close(self) -> None:
        """Files go, if they are not to be kept. Idempotent."""
        if self._lock < 0:
            return
        # whoever has the lock next opens files by name: ours have to be gone by then
        for handle in self._open.values():
            os.close(handle)
        if not self._keep:
            self._delete()
        os.close(self._lock)
        self._lock = -1

    def _of_file(self, stride: int) -> Iterator[tuple[Slot, Name]]:
        handle = self._file(stride)
        with _Page() as page:
            for number in range(os.fstat(handle).st_size // stride):
                slot = Slot(stride, number)
                if os.preadv(handle, [page], slot.offset) != PAGE:
                    continue
                record = named(page)
                if record is not None and stride_of(record[1]) == stride:
                    yield slot, record[0]

    def _file(self, stride: int) -> int:
        with self._opening:
            handle = self._open.get(stride)
            if handle is None:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                flags |= os.O_DIRECT if self.direct else 0
                handle = os.open(self._folder / f"kv-{stride}.blocks", flags, 0o600)
                self._open[stride] = handle
            return handle

    def _takes_direct(self) -> bool:
        probe = self._folder / "mirage.probe"
        try:
            handle = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_DIRECT, 0o600)
        except OSError:
            return False
        try:
            with _Page() as page:
                return os.pwritev(handle, [page], 0) == PAGE
        except OSError:
            return False
        finally:
            os.close(handle)
            probe.unlink(missing_ok=True)

    def _delete(self) -> None:
        """What we made, and nothing else. The lock stays: another may wait for it."""
        for path in self._folder.glob("kv-*.blocks"):
            if _OURS.fullmatch(path.name):
                path.unlink(missing_ok=True)


class _Page:
    """An aligned page of memory."""

    def __enter__(self) -> memoryview:
        self._map = mmap.mmap(-1, PAGE)
        self._view = memoryview(self._map)
        return self._view

    def __exit__(self, *_: object) -> None:
        self._view.release()
        self._map.close()
