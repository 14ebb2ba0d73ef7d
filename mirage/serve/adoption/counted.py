"""Device memory of an engine on a host, counted in its memory files by another process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

NAME = "/memfd:vmm"
"""Begin of the link of a descriptor that has device memory (`vmm/host.py`)."""
BLOCK = 512
"""Bytes in which `stat` counts."""
HUGE = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")


def device_bytes(pid: int) -> int:
    """Device memory of a process, in bytes of its memory files.

    0 if it has no such files, or may not be looked at. 0 as well where the kernel may give huge
    pages: the count would be too high, since a part of a huge page cannot be given back.
    """
    if _huge():
        return 0
    files = dict(_files(Path(f"/proc/{pid}/fd")))
    return BLOCK * sum(files.values())


def _huge() -> bool:
    try:
        return "[never]" not in HUGE.read_text()
    except OSError:
        return False


def _files(descriptors: Path) -> Iterator[tuple[int, int]]:
    """Inode and blocks of each."""
    try:
        links = list(descriptors.iterdir())
    except OSError:
        return
    for link in links:
        try:
            if str(link.readlink()).startswith(NAME):
                found = link.stat()
                yield found.st_ino, found.st_blocks
        except OSError:  # it was closed just now
            continue
