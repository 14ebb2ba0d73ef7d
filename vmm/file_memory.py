"""Memory of a file: allocated, in huge pages where that is allowed, and given back.

The kernel hands out and frees pages of 4 KiB one by one: half a gigabyte takes a third of a second,
and in huge pages a tenth of that. Where these are not allowed, memory is at least freed by a
thread beside what else goes on, since to unmap it takes as long again.
"""

from __future__ import annotations

import os
import threading
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
    """Memory of the file behind descriptor `fd`, which is owned by others.

    Calls may come from any thread.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()
        """Held while what is freed beside is added to, or waited for."""
        self._inside = 0
        """Number of threads inside of `beside`."""
        self._thread: ThreadPoolExecutor | None = None
        """Thread that frees; there while any is inside."""
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
        """Free these bytes of the file; while any thread is inside of `beside`, by its end.

        Raises `OSError`.
        """
        with self._lock:
            if self._thread is not None:
                self._begun.append(self._thread.submit(libc.punch, self._fd, offset, nbytes))
                return
        libc.punch(self._fd, offset, nbytes)

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Inside, a thread frees; at the end all is free. Raises its `OSError`."""
        self._enter()
        try:
            yield
            self.settle()
        finally:
            self._leave()

    def settle(self) -> None:
        """Wait until all that was punched is free. Raises `OSError`."""
        with self._lock:
            begun, self._begun = self._begun, []
            wait(begun)
        for each in begun:
            each.result()

    def _enter(self) -> None:
        with self._lock:
            self._inside += 1
            self._thread = self._thread or ThreadPoolExecutor(1, "vmm-free")

    def _leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside and self._thread is not None:
                self._thread.shutdown()
                self._thread = None
