"""Memory files of masters: in huge pages where there are some, sealed once they are full."""

from __future__ import annotations

import fcntl
import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
NAME = "mirage-weights"
ANY = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
MEMINFO = Path("/proc/meminfo")


class HugePages(NamedTuple):
    """Huge pages that were set aside (vm.nr_hugepages): bytes of one page, of free ones, of all."""

    page: int
    free: int
    total: int


def huge_pages(meminfo: Path = MEMINFO) -> HugePages:
    """Huge pages of this machine by /proc/meminfo; all fields are 0 if it cannot be read."""
    found = {"Hugepagesize": 0, "HugePages_Free": 0, "HugePages_Total": 0}
    with suppress(OSError):
        for line in meminfo.read_text().splitlines():
            name, _, value = line.partition(":")
            if name in found:
                found[name] = int(value.split()[0])
    page = found["Hugepagesize"] * 1024
    return HugePages(page, found["HugePages_Free"] * page, found["HugePages_Total"] * page)


def new_file(nbytes: int) -> int:
    """Make an empty memory file that may grow to about `nbytes`; return its descriptor.

    The caller closes it. The file is in huge pages if enough of them are free. Raises `OSError` if
    no file can be made.
    """
    if 0 < nbytes + nbytes // 16 <= huge_pages().free:
        with suppress(OSError):
            return _tried_in_huge_pages()
    return os.memfd_create(NAME, ANY)


def _tried_in_huge_pages() -> int:
    """Make an empty file in huge pages. Raises `OSError` if one page cannot be written to.

    That is so in a container that may use none.
    """
    fd = os.memfd_create(NAME, ANY | os.MFD_HUGETLB)
    try:
        page = os.fstat(fd).st_blksize
        os.ftruncate(fd, page)
        with mmap.mmap(fd, page) as one:
            one[0] = 0
        os.ftruncate(fd, 0)
    except (OSError, ValueError):
        os.close(fd)
        raise OSError from None
    return fd


def seal(fd: int) -> int:
    """Seal a file against writing; returns the bytes of memory that it takes.

    Raises `OSError` while a writable mapping exists. Idempotent.
    """
    if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SEALS != SEALS:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    return os.fstat(fd).st_blocks * 512
