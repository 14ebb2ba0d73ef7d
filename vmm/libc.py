"""System calls of the host driver, through libc. A call that fails raises `OSError`, unless its
docstring says otherwise.

Python's own `mmap` module cannot place a mapping at a chosen address, and the standard library has
no hole punching.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform

PROT_NONE = 0
MAP_FIXED = 0x10
MAP_NORESERVE = 0x4000
POPULATE_READ, POPULATE_WRITE = 22, 23
PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01
OS_PAGE_BYTES = mmap.PAGESIZE
HUGE_PAGE_BYTES = 2 << 20
MBIND = {"x86_64": 237, "aarch64": 235}
"""Number of the system call `mbind`, which libc has no function for, by machine."""
PREFERRED = 1
"""Policy of `mbind`: memory comes from one NUMA node while that node has some."""

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
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def reserve(nbytes: int, align: int) -> int:
    """First of `nbytes` reserved addresses without memory, a multiple of `align`."""
    start = _mmap(None, nbytes + align, PROT_NONE, _NOTHING)
    address = -(-start // align) * align
    if head := address - start:
        free(start, head)
    if tail := align - head:
        free(address + nbytes, tail)
    return address


def anonymous(nbytes: int) -> int:
    """Address of zeroed private memory, aligned to the operating system's page, or from 2 MiB on to
    a huge page.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    if nbytes < HUGE_PAGE_BYTES:
        return _mmap(None, nbytes, _READ_WRITE, flags)
    whole = -(-nbytes // OS_PAGE_BYTES) * OS_PAGE_BYTES
    return _mmap(reserve(whole, HUGE_PAGE_BYTES), nbytes, _READ_WRITE, flags | MAP_FIXED)


def advise(address: int, nbytes: int, node: int | None) -> None:
    """Advise the kernel on memory that stays and that a device may read. Refusals are ignored.

    Huge pages make registration and copies faster. `node` is the NUMA node nearest to the device,
    None for any. Forked children do not get the memory: after a fork, copy-on-write could give the
    parent other pages than those that are registered. Call this before the first touch.
    """
    for advice in (mmap.MADV_HUGEPAGE, mmap.MADV_DONTFORK):
        _libc.madvise(address, nbytes, advice)
    if node is not None:
        prefer(address, nbytes, node)


def prefer(address: int, nbytes: int, node: int) -> int:
    """Let memory come from NUMA node `node` while that node has some. Returns 0, or the error's
    number.

    Containers may refuse it: the call is not in the usual profiles of system calls.
    """
    if (number := MBIND.get(platform.machine())) is None:
        return errno.ENOSYS
    mask = (ctypes.c_ulong * (node // 64 + 1))()
    mask[node // 64] = 1 << node % 64
    refused = _libc.syscall(
        ctypes.c_long(number),
        ctypes.c_void_p(address),
        ctypes.c_ulong(nbytes),
        ctypes.c_ulong(PREFERRED),
        mask,
        ctypes.c_ulong(len(mask) * 64 + 1),
        ctypes.c_ulong(0),
    )
    return ctypes.get_errno() if refused else 0


def map_file(
    address: int,
    nbytes: int,
    fd: int,
    offset: int,
    *,
    writable: bool = True,
    populate: bool = True,
) -> None:
    """Map `nbytes` of a file from `offset` at `address`, in place of the mapping before; only for
    reading unless `writable`.

    With `populate` the kernel allocates all pages now; otherwise the page faults of the first touch
    would fall into a step.
    """
    flags = mmap.MAP_SHARED | MAP_FIXED | (mmap.MAP_POPULATE if populate else 0)
    _mmap(address, nbytes, _READ_WRITE if writable else mmap.PROT_READ, flags, fd, offset)


def populate_huge(address: int, nbytes: int) -> None:
    """Allocate the file's memory behind these addresses now, in huge pages as far as there are
    some.
    """
    _libc.madvise(address, nbytes, mmap.MADV_HUGEPAGE)
    populate(address, nbytes)


def populate(address: int, nbytes: int, *, writable: bool = True) -> None:
    """Allocate the memory behind these addresses now, instead of when they are touched: for writing
    if `writable`, else for reading."""
    if _libc.madvise(address, nbytes, POPULATE_WRITE if writable else POPULATE_READ) != 0:
        raise _error("madvise")


def fence_off(address: int, nbytes: int) -> None:
    """Remove the mapping behind these addresses but keep them reserved: touching them faults."""
    _mmap(address, nbytes, PROT_NONE, _NOTHING | MAP_FIXED)


def unmap_file(address: int, nbytes: int) -> None:
    """Remove the mapping of a file from these addresses but keep them reserved, as `fence_off`
    does.

    For a mapping that is read in order, the kernel marks each page as recently used when it is
    unmapped, which takes longer than the unmapping. `MADV_RANDOM` avoids that.
    """
    _libc.madvise(address, nbytes, mmap.MADV_RANDOM)
    fence_off(address, nbytes)


def free(address: int, nbytes: int) -> None:
    """Give addresses and the memory behind them back to the operating system."""
    if _libc.munmap(address, nbytes) != 0:
        raise _error("munmap")


def punch(fd: int, offset: int, nbytes: int) -> None:
    """Free the memory of a part of a file; the file keeps its size."""
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
