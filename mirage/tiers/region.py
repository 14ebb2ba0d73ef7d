"""Pool's memory: a file without a name, mapped by the server and by every engine.

It is sparse: there is memory where a process wrote, until a hole is punched there. It is freed with
the last process that has it mapped, and no process can shrink it while others use it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from contextlib import suppress
from dataclasses import dataclass

from mirage.tiers.contract import BlockPlace, LentBy, Medium
from mirage.tiers.holes import ByteRange
from vmm import libc

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Region:
    """Shared memory of the pool. `memory` is all of it, zeros at first. Raises `OSError` if it
    cannot be mapped, `ValueError` for an empty file."""

    def __init__(self, fd: int) -> None:
        """Map the file; the descriptor belongs to the region from now on."""
        self.fd = fd
        try:
            self.nbytes = os.fstat(fd).st_size
            self._map = mmap.mmap(fd, self.nbytes)
            self._map.madvise(mmap.MADV_DONTFORK)  # a child would keep it alive
        except (OSError, ValueError):
            os.close(fd)
            raise
        self.memory = memoryview(self._map)

    @classmethod
    def create(cls, nbytes: int) -> Region:
        """Make a new region of `nbytes` bytes, a multiple of the operating system's page."""
        fd = os.memfd_create("mirage-tier", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, nbytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
        except OSError:
            os.close(fd)
            raise
        return cls(fd)

    def punch(self, hole: ByteRange) -> None:
        """Give memory back: it reads as zeros from now on."""
        libc.punch(self.fd, hole.offset, hole.nbytes)

    def used_bytes(self) -> int:
        """Return the bytes of memory that the file occupies."""
        return os.fstat(self.fd).st_blocks * 512

    def close(self) -> None:
        """Close the file; views that others still have keep the mapping. A second call does
        nothing."""
        if self.fd < 0:
            return
        os.close(self.fd)
        self.fd = -1
        with suppress(BufferError):
            self.memory.release()
            self._map.close()


@dataclass(frozen=True)
class Regions:
    """Pool's memory under one row of offsets: those of host memory, followed by those of peers'
    memory."""

    host: Region
    peer: Region | None = None
    peer_bytes_per_s: float | None = None
    """Speed in bytes a second of copies from and to peers; None for no limit."""
    lenders: tuple[LentBy, ...] = ()
    """Holders of peers' memory on other GPUs; empty if it is host memory in `peer`, or there are no
    peers."""

    @classmethod
    def create(cls, span: int, peer_span: int, peer_bytes_per_s: float | None) -> Regions:
        """Make new regions. Raise `OSError` if one cannot be made; then the other one is closed."""
        host = Region.create(span)
        try:
            peer = Region.create(peer_span) if peer_span else None
        except OSError:
            host.close()
            raise
        return cls(host, peer, peer_bytes_per_s)

    def place(self, offset: int) -> BlockPlace:
        """Return the place at an offset of the row."""
        if offset < self.host.nbytes:
            return BlockPlace(Medium.HOST, offset)
        return BlockPlace(Medium.PEER, offset - self.host.nbytes)

    def memory(self, medium: Medium) -> memoryview:
        """Return the memory of a medium. Raise `KeyError` if it has no region."""
        region = {Medium.HOST: self.host, Medium.PEER: self.peer}.get(medium)
        if region is None:
            raise KeyError(medium)
        return region.memory

    def view(self, row: ByteRange) -> memoryview:
        """Return a view of the memory at `row`, a range of the row of offsets. The caller makes
        sure that it lies in one region. Raise `KeyError` if there is no such region."""
        medium, offset = (place := self.place(row.offset)).medium, place.offset
        return self.memory(medium)[offset : offset + row.nbytes]

    def punch(self, hole: ByteRange) -> None:
        """Give back the memory at a range of the row of offsets. Raise `OSError` if that fails."""
        place = self.place(hole.offset)
        region = self.host if place.medium is Medium.HOST else self.peer
        assert region is not None, hole
        region.punch(ByteRange(place.offset, hole.nbytes))

    def bytes_per_s(self, medium: Medium) -> float | None:
        """Return the speed in bytes a second at which the medium is copied; None for no limit."""
        return self.peer_bytes_per_s if medium is Medium.PEER else None

    def close(self) -> None:
        """Close the regions. A second call does nothing."""
        self.host.close()
        if self.peer is not None:
            self.peer.close()
