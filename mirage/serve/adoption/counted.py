"""Device memory of an engine's process, where host memory is the device: counted by the process's
memory files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

NAME = "/memfd:vmm"
"""Beginning of the link in /proc of a descriptor for device memory (`vmm/host.py`)."""
BLOCK = 512
"""Bytes of a block in the counts of `stat`."""
HUGE = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")


def device_bytes(pid: int) -> int:
    """Bytes of device memory of process `pid`, where host memory is the device: those of its memory
    files.

    0 if it has no such files, as on a GPU, or if they may not be read. 0 also if the kernel may use
    huge pages, because the count would be too high: part of a huge page cannot be given back.
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
    """Inode and number of blocks of each memory file for device memory."""
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
