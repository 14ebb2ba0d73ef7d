"""Memory of files: allocated, mapped and freed, in huge pages where the system allows them.

The kernel allocates and frees pages of 4 KiB one by one: half a gigabyte takes a third of a second,
and a tenth of that in huge pages. Where huge pages are not allowed, threads free memory in the
background. The kernel frees memory of one file by one thread at a time, so there are several files.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

from vmm import libc
from vmm.at_once import at_once

SHARED_HUGE = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
ALLOWING = ("advise", "within_size", "always")
FILES = 4
WINDOW_BYTES = 32 << 20
"""Bytes of consecutive offsets that belong to one file."""


def huge_pages_allowed() -> bool:
    """True if the kernel gives huge pages to memory files that request them."""
    try:
        words = SHARED_HUGE.read_text().split()
    except OSError:
        return False
    return any(f"[{word}]" in words for word in ALLOWING)


class FileMemory:
    """One range of offsets over several memory files called `name`, which end with this process.

    The files take turns in windows of `WINDOW_BYTES`. Calls may come from any thread.
    """

    def __init__(self, name: str) -> None:
        self._fds = [os.memfd_create(name, os.MFD_CLOEXEC) for _ in range(FILES)]
        self._lock = threading.Lock()
        """Held while `_inside`, `_threads` or `_begun` changes, and during the waits of
        `settle`.
        """
        self._inside = 0
        """Number of threads inside of `beside`."""
        self._threads: dict[int, ThreadPoolExecutor] = {}
        """Thread that frees memory of a file, by its descriptor; present while any thread is inside
        of `beside`.
        """
        self._begun: list[Future[None]] = []
        self._huge = huge_pages_allowed()

    def alignment(self, nbytes: int) -> int:
        """Alignment in bytes that offset and address should have for `nbytes` of memory."""
        return libc.HUGE_PAGE_BYTES if self._huge and nbytes >= libc.HUGE_PAGE_BYTES else 1

    def allocate(self, offset: int, nbytes: int) -> None:
        """Allocate zeroed memory for these offsets, all or none. Raises `OSError` if there is not
        enough.
        """
        files: dict[int, list[tuple[int, int, int]]] = {}
        for piece in self._pieces(offset, nbytes):
            files.setdefault(piece[0], []).append(piece)
        try:
            at_once(self._allocate_all, [(pieces,) for pieces in files.values()])
        except OSError:
            for piece in self._pieces(offset, nbytes):
                libc.punch(*piece)
            raise

    def map(self, address: int, offset: int, nbytes: int) -> None:
        """Map the memory at these offsets to `address`. Raises `OSError` if the kernel refuses; a
        part may be mapped then.
        """
        for fd, place, size in self._pieces(offset, nbytes):
            libc.map_file(address, size, fd, place)
            address += size

    def used_bytes(self) -> int:
        """Bytes of memory of the files, as the kernel counts them."""
        return sum(os.fstat(fd).st_blocks * 512 for fd in self._fds)

    def close(self) -> None:
        """Close the files. Their memory is freed with the last mapping."""
        for fd in self._fds:
            os.close(fd)

    def _pieces(self, offset: int, nbytes: int) -> Iterator[tuple[int, int, int]]:
        """Descriptor, offset and size of each part that lies in one window."""
        end = offset + nbytes
        while offset < end:
            window = offset // WINDOW_BYTES
            size = min(end, (window + 1) * WINDOW_BYTES) - offset
            yield self._fds[window % FILES], offset, size
            offset += size

    def _allocate_all(self, pieces: Sequence[tuple[int, int, int]]) -> None:
        """Allocate pieces of one file one after the other: the kernel extends a file by one thread
        at a time.
        """
        for piece in pieces:
            self._allocate(*piece)

    def _allocate(self, fd: int, offset: int, nbytes: int) -> None:
        if self.alignment(nbytes) > 1:
            try:
                _populate(fd, offset, nbytes)
                return
            except OSError:  # not in that way, perhaps in the other
                libc.punch(fd, offset, nbytes)
        os.posix_fallocate(fd, offset, nbytes)

    def punch(self, offset: int, nbytes: int) -> None:
        """Free the memory at these offsets; while a thread is inside of `beside`, in the
        background.

        Raises `OSError` if the kernel refuses; in the background, `settle` raises it.
        """
        for piece in self._pieces(offset, nbytes):
            with self._lock:
                if thread := self._threads.get(piece[0]):
                    self._begun.append(thread.submit(libc.punch, *piece))
                    continue
            libc.punch(*piece)

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Context inside of which `punch` frees in the background; all is free when it ends. Raises
        the threads' `OSError`.
        """
        self._enter()
        try:
            yield
            self.settle()
        finally:
            self._leave()

    def settle(self) -> None:
        """Wait until the memory of all `punch` calls is free. Raises `OSError` if one of them
        failed in the background.
        """
        with self._lock:
            begun, self._begun = self._begun, []
            wait(begun)
        for each in begun:
            each.result()

    def _enter(self) -> None:
        with self._lock:
            self._inside += 1
            for fd in self._fds:
                if fd not in self._threads:
                    self._threads[fd] = ThreadPoolExecutor(1, "vmm-free")

    def _leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                for thread in self._threads.values():
                    thread.shutdown()
                self._threads = {}


def _populate(fd: int, offset: int, nbytes: int) -> None:
    """Allocate a part of a file through a temporary mapping that requests huge pages. Raises
    `OSError` if the kernel refuses.
    """
    if os.fstat(fd).st_size < offset + nbytes:
        os.ftruncate(fd, offset + nbytes)
    address = libc.reserve(nbytes, libc.HUGE_PAGE_BYTES)
    try:
        libc.map_file(address, nbytes, fd, offset, populate=False)
        libc.populate_huge(address, nbytes)
    finally:
        libc.free(address, nbytes)
