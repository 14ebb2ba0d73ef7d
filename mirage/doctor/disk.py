"""Findings on the disk of an SSD tier: O_DIRECT in its folder, and its speed."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from mirage.doctor.finding import Finding, limited, missing, works
from mirage.tiers.ssd.files import existing
from mirage.units import KIB

TOPIC = "disk"
BLOCK_BYTES = 256 * KIB
"""Bytes of a test block, the size of a usual KV block; O_DIRECT needs multiples of the disk's
block.
"""
BLOCKS = 64
ROUNDS = 3
ROUND_S = 0.4
"""Most seconds of one round; a slow disk does fewer blocks in it."""
ADVICE = {
    errno.EACCES: "let this user write there, or name another folder (tiers.ssd.directory)",
    errno.EPERM: "let this user write there, or name another folder (tiers.ssd.directory)",
    errno.EROFS: "name a folder of a file system that can be written (tiers.ssd.directory)",
    errno.ENOSPC: "the disk is full: free some of it, or name another folder (tiers.ssd.directory)",
    errno.EDQUOT: "the quota is used up: free some of it, or name another folder",
    errno.ENOTDIR: "name a folder (tiers.ssd.directory)",
}
OTHERWISE = "name another folder (tiers.ssd.directory)"
NO_DIRECT = (
    "blocks go through the page cache, which holds them twice: name a folder of a file system "
    "with O_DIRECT, as ext4 or XFS"
)


def findings(folder: Path) -> Iterator[Finding]:
    """Findings on the disk that has, or would have, `folder`; the folder need not exist."""
    try:
        with _file(existing(folder)) as (handle, direct):
            write, read = _measure(handle)
    except OSError as error:
        why = error.strerror or str(error)
        advice = ADVICE.get(error.errno or 0, OTHERWISE)
        yield missing(TOPIC, str(folder), f"nothing can be stored there: {why}", advice)
        return
    size = BLOCK_BYTES // KIB
    speed = f"blocks of {size} KiB written at {write / 1e9:.2f} GB/s, read at {read / 1e9:.2f} GB/s"
    if direct:
        yield works(TOPIC, str(folder), f"O_DIRECT, {speed}")
    else:
        yield limited(TOPIC, str(folder), f"no O_DIRECT, {speed}", NO_DIRECT)


@contextmanager
def _file(folder: Path) -> Iterator[tuple[int, bool]]:
    """Open an unnamed file in `folder`; yields its descriptor, and True if it works with O_DIRECT.
    Raises `OSError` if no file can be made there.
    """
    path = folder / f"mirage.doctor.{os.getpid()}"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    handle = os.open(path, flags, 0o600)
    try:
        try:
            again = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_DIRECT)
        except OSError:
            direct = False
        else:
            os.close(handle)
            handle, direct = again, True
        path.unlink()
        yield handle, direct and _takes_direct(handle)
    finally:
        os.close(handle)
        path.unlink(missing_ok=True)


def _takes_direct(handle: int) -> bool:
    """True if a file opened with O_DIRECT can be written. Some file systems refuse that; then the
    flag is removed.
    """
    try:
        with mmap.mmap(-1, mmap.PAGESIZE) as page:
            os.pwritev(handle, [page], 0)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        flags = fcntl.fcntl(handle, fcntl.F_GETFL)
        fcntl.fcntl(handle, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        return False
    return True


def _measure(handle: int) -> tuple[float, float]:
    """Bytes a second written, and bytes a second read: each the median of a few rounds. Raises
    `OSError` if the disk refuses, or has no room."""
    with mmap.mmap(-1, BLOCK_BYTES) as block:
        block.write(random.Random(1).randbytes(BLOCK_BYTES))
        writes, reads, blocks = [], [], BLOCKS
        for _ in range(ROUNDS):
            rate, written = _round(handle, block, range(blocks), write=True)
            writes.append(rate)
            blocks = min(blocks, written)
        for number in range(ROUNDS):
            order = random.Random(number).sample(range(blocks), blocks)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            reads.append(_round(handle, block, order, write=False)[0])
    return median(writes), median(reads)


def _round(
    handle: int, block: mmap.mmap, order: range | list[int], *, write: bool
) -> tuple[float, int]:
    """Bytes a second at which the blocks of `order` are written (`write`) or read in one round, and
    the number of blocks done in it, at least one."""
    begun, done = time.perf_counter(), 0
    for number in order:
        copy = os.pwritev if write else os.preadv
        if copy(handle, [block], number * BLOCK_BYTES) != BLOCK_BYTES:
            code = errno.ENOSPC if write else errno.EIO
            raise OSError(code, os.strerror(code))
        done += 1
        if time.perf_counter() - begun > ROUND_S:
            break
    if write:
        os.fdatasync(handle)
    return done * BLOCK_BYTES / (time.perf_counter() - begun), done
