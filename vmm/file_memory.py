"""Memory of a file: allocated, in huge pages where that is allowed, and given back.

The kernel hands out and frees pages of 4 KiB one by one: half a gigabyte takes a third of a second,
and in huge pages a tenth of that. Where these are not allowed, memory is at least freed by a
thread beside what else goes on, since to unmap it takes as long again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

from vmm import libc

SHARED_HUGE = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
ALLOWING = ("advise", "within_size", "always")


def huge_pages_allowed() -> bool:
    """True if memory files get huge pages that are asked for."""
    try:
        words = SHARED_HUGE.read_text().split()
    except OSError:
        return False
    return any(f"[{word}]" in words for word in ALLOWING)


class FileMemory:
    """Memory of the file behind descriptor `fd`, which is owned by others."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._thread: ThreadPoolExecutor | None = None
        self._begun: list[Future[None]] = []
        self._huge = huge_pages_allowed()

    def alignment(self, nbytes: int) -> int:
        """Bytes of which offset and address of so much memory are best multiples."""
        return libc.HUGE_PAGE_BYTES if self._huge and nbytes >= libc.HUGE_PAGE_BYTES else 1

    def allocate(self, offset: int, nbytes: int) -> None:
        """Have memory behind these bytes of the file, zeroed. All or none; raises `OSError`."""
        if self.alignment(nbytes) > 1:
            try:
                self._populate(offset, nbytes)
                return
            except OSError:  # not in that way, perhaps in the other
                libc.punch(self._fd, offset, nbytes)
        os.posix_fallocate(self._fd, offset, nbytes)

    def _populate(self, offset: int, nbytes: int) -> None:
        """Allocate by a mapping that asks for huge pages."""
        if os.fstat(self._fd).st_size < offset + nbytes:
            os.ftruncate(self._fd, offset + nbytes)
        address = libc.reserve(nbytes, libc.HUGE_PAGE_BYTES)
        try:
            libc.map_file(address, nbytes, self._fd, offset, populate=False)
            libc.populate_huge(address, nbytes)
        finally:
            libc.free(address, nbytes)

    def punch(self, offset: int, nbytes: int) -> None:
        """Free these bytes of the file, inside of `beside` by its end. Raises `OSError`."""
        if self._thread is None:
            libc.punch(self._fd, offset, nbytes)
        else:
            self._begun.append(self._thread.submit(libc.punch, self._fd, offset, nbytes))

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Inside, a thread frees; at the end all is free. Raises its `OSError`."""
        with ThreadPoolExecutor(1, "vmm-free") as self._thread:
            try:
                yield
                self.settle()
            finally:
                self._thread = None

    def settle(self) -> None:
        """Wait until all that was punched is free. Raises `OSError`."""
        begun, self._begun = self._begun, []
        wait(begun)
        for each in begun:
            each.result()
