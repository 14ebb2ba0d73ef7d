"""Memory of a file, mapped at a fixed address: it is written first and from then on only read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from vmm import libc
from vmm.at_once import populate
from vmm.host import host_tensor, refusing

if TYPE_CHECKING:
    import torch


class HostFile:
    """All of a memory file, mapped at an address that stays: for reading, and with `writable` for
    writing too. Raises `OutOfMemory` if addresses or memory are short.

    Memory comes from NUMA node `node` while that node has some. Forked children do not inherit the
    mapping.
    """

    def __init__(self, fd: int, *, node: int | None = None, writable: bool = False) -> None:
        self.nbytes = os.fstat(fd).st_size
        self._fd, self._node = fd, node
        with refusing(f"{self.nbytes} bytes of addresses"):
            self.address = libc.reserve(self.nbytes, libc.HUGE_PAGE_BYTES)
        try:
            self._map(writable)
        except BaseException:
            self.close()
            raise

    @classmethod
    def grown(cls, fd: int, nbytes: int, *, node: int | None = None) -> HostFile:
        """The file, set to `nbytes` rounded up to its block size (a longer file is cut), and mapped
        for writing. Its memory comes from NUMA node `node` while that has some. Raises
        `OutOfMemory` if host memory or addresses are short."""
        unit = os.fstat(fd).st_blksize
        with refusing(f"{nbytes} bytes of host memory"):
            os.ftruncate(fd, -(-nbytes // unit) * unit)
        return cls(fd, node=node, writable=True)

    def tensor(self) -> torch.Tensor:
        """The whole file as a flat uint8 tensor without a copy. Not to be used after `close`."""
        return host_tensor(self.address, self.nbytes)

    def leave(self) -> None:
        """Unmap the file; the address stays reserved."""
        libc.unmap_file(self.address, self.nbytes)

    def read(self) -> None:
        """Map the file again, for reading alone. Raises `OutOfMemory` if the kernel refuses."""
        self._map(writable=False)

    def close(self) -> None:
        """Unmap the file and give its address back; the file and its descriptor stay.
        Idempotent.
        """
        if self.nbytes:
            libc.free(self.address, self.nbytes)
            self.nbytes = 0

    def _map(self, writable: bool) -> None:
        with refusing(f"mapping {self.nbytes} bytes of host memory"):
            where = self.address, self.nbytes
            libc.map_file(*where, self._fd, 0, writable=writable, populate=False)
            libc.advise(*where, self._node)
            try:
                populate(*where, writable=writable)
            except OSError:
                libc.fence_off(*where)
                raise
