"""The five system calls behind the host driver, through libc. All of them raise `OSError`.

Python's own `mmap` module cannot place a mapping at a chosen address, and the standard
library has no hole punching.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os

PROT_NONE = 0
MAP_FIXED = 0x10
MAP_NORESERVE = 0x4000
PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01
OS_PAGE_BYTES = mmap.PAGESIZE

_NOTHING = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def reserve(nbytes: int, align: int) -> int:
    """Addresses without memory behind them, the first a multiple of `align`."""
    start = _mmap(None, nbytes + align, PROT_NONE, _NOTHING)
    address = -(-start // align) * align
    if head := address - start:
        free(start, head)
    if tail := align - head:
        free(address + nbytes, tail)
    return address


def anonymous(nbytes: int) -> int:
    """Zeroed private memory, aligned to the operating system's page."""
    return _mmap(None, nbytes, _READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def map_file(address: int, nbytes: int, fd: int, offset: int) -> None:
    """Put a part of a file at these addresses, in place of what was there.

    Populated at once: the page faults of a first touch would otherwise fall into a step.
    """
    flags = mmap.MAP_SHARED | MAP_FIXED | mmap.MAP_POPULATE
    _mmap(address, nbytes, _READ_WRITE, flags, fd, offset)


def fence_off(address: int, nbytes: int) -> None:
    """Keep the addresses and take away what is behind them: touching them faults."""
    _mmap(address, nbytes, PROT_NONE, _NOTHING | MAP_FIXED)


def free(address: int, nbytes: int) -> None:
    """Give addresses, and what is behind them, back to the operating system."""
    if _libc.munmap(address, nbytes) != 0:
        raise _error("munmap")


def punch(fd: int, offset: int, nbytes: int) -> None:
    """Return a part of a file's memory; the file keeps its size."""
    while _libc.fallocate(fd, PUNCH_HOLE_KEEP_SIZE, offset, nbytes) != 0:
        if ctypes.get_errno() != errno.EINTR:
            raise _error("fallocate")


def _mmap(
    address: int | None, nbytes: int, prot: int, flags: int, fd: int = -1, offset: int = 0
) -> int:
    found = _libc.mmap(address, nbytes, prot, flags, fd, offset)
    if found is None or found == ctypes.c_void_p(-1).value:
        raise _error("mmap")
    return int(found)


def _error(call: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}")
