"""Memory of files: allocated, in huge pages where that is allowed, mapped and given back.

The kernel hands out and frees pages of 4 KiB one by one: half a gigabyte takes a third of a second,
and in huge pages a tenth of that. Where these are not allowed, memory is at least freed by
threads beside what else goes on. It frees memory of one file by one thread at a time, so there are
several files.
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
"""Consecutive offsets of one file."""


def huge_pages_allowed() -> bool:
    """True if memory files get huge pages that are asked for."""
    try:
        words = SHARED_HUGE.read_text().split()
    except OSError:
        return False
    return any(f"[{word}]" in words for word in ALLOWING)


class FileMemory:
    """Memory of several files of one `name`, which die with this process, by one range of offsets.

    Each file has a window of these offsets in turn. Calls may come from any thread.
    """

    def __init__(self, name: str) -> None:
        self._fds = [os.memfd_create(name, os.MFD_CLOEXEC) for _ in range(FILES)]
        self._lock = threading.Lock()
        """Held while what is freed beside is added to, or waited for."""
        self._inside = 0
        """Number of threads inside of `beside`."""
        self._threads: dict[int, ThreadPoolExecutor] = {}
        """Thread that frees memory of each file; there while any is inside."""
        self._begun: list[Future[None]] = []
        self._huge = huge_pages_allowed()

    def alignment(self, nbytes: int) -> int:
        """Alignment, in bytes, of offset and address that is best for `nbytes` of memory."""
        return libc.HUGE_PAGE_BYTES if self._huge and nbytes >= libc.HUGE_PAGE_BYTES else 1

    def allocate(self, offset: int, nbytes: int) -> None:
        """Have memory behind these bytes, zeroed. All or none; raises `OSError`."""
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
        """Put these bytes at addresses. Raises `OSError`, with a part of them mapped perhaps."""
        for fd, place, size in self._pieces(offset, nbytes):
            libc.map_file(address, size, fd, place)
            address += size

    def used_bytes(self) -> int:
        """Memory of the files, as the kernel counts it."""
        return sum(os.fstat(fd).st_blocks * 512 for fd in self._fds)

    def close(self) -> None:
        """Give up the files. Their memory goes with the last mapping."""
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
        """By one thread for each file: the kernel adds to one by one thread at a time."""
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
        """Free these bytes; while any thread is inside of `beside`, by its end.

        Raises `OSError`.
        """
        for piece in self._pieces(offset, nbytes):
            with self._lock:
                if thread := self._threads.get(piece[0]):
                    self._begun.append(thread.submit(libc.punch, *piece))
                    continue
            libc.punch(*piece)

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Inside, threads free; at the end all is free. Raises their `OSError`."""
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
    """Allocate by a mapping that asks for huge pages."""
    if os.fstat(fd).st_size < offset + nbytes:
        os.ftruncate(fd, offset + nbytes)
    address = libc.reserve(nbytes, libc.HUGE_PAGE_BYTES)
    try:
        libc.map_file(address, nbytes, fd, offset, populate=False)
        libc.populate_huge(address, nbytes)
    finally:
        libc.free(address, nbytes)
