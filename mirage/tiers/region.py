"""The pool's memory: a file without a name, mapped by the server and by every engine.

It is sparse: memory is behind it where somebody wrote, until a hole is punched there. It is gone
with the last process that has it mapped, and nobody can make it shorter under others' feet.
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
    """Shared memory of the pool. `memory` is all of it, zeros at first. Raises `OSError`."""

    def __init__(self, fd: int) -> None:
        """Takes over the file descriptor."""
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
        """A new one, of a multiple of the operating system's page."""
        fd = os.memfd_create("mirage-tier", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, nbytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
        except OSError:
            os.close(fd)
            raise
        return cls(fd)

    def punch(self, hole: ByteRange) -> None:
        """Give memory back: zeros are there from now on."""
        libc.punch(self.fd, hole.offset, hole.nbytes)

    def used_bytes(self) -> int:
        """Memory that is behind it."""
        return os.fstat(self.fd).st_blocks * 512

    def close(self) -> None:
        """Views that others still have of it keep their mapping. Idempotent."""
        if self.fd < 0:
            return
        os.close(self.fd)
        self.fd = -1
        with suppress(BufferError):
            self.memory.release()
            self._map.close()


@dataclass(frozen=True)
class Regions:
    """The pool's memory as one row of offsets: host memory, and behind it that of peers."""

    host: Region
    peer: Region | None = None
    peer_bytes_per_s: float | None = None
    """Speed of copies from and to peers; None is as fast as possible."""
    lenders: tuple[LentBy, ...] = ()
    """Lenders of peers' memory, where `peer` has none."""

    @classmethod
    def create(cls, span: int, peer_span: int, peer_bytes_per_s: float | None) -> Regions:
        """New ones. Raises `OSError`, and nothing is left then."""
        host = Region.create(span)
        try:
            peer = Region.create(peer_span) if peer_span else None
        except OSError:
            host.close()
            raise
        return cls(host, peer, peer_bytes_per_s)

    def place(self, offset: int) -> BlockPlace:
        """Place of an offset of the row."""
        if offset < self.host.nbytes:
            return BlockPlace(Medium.HOST, offset)
        return BlockPlace(Medium.PEER, offset - self.host.nbytes)

    def memory(self, medium: Medium) -> memoryview:
        """Raises `KeyError` without one."""
        region = {Medium.HOST: self.host, Medium.PEER: self.peer}.get(medium)
        if region is None:
            raise KeyError(medium)
        return region.memory

    def view(self, row: ByteRange) -> memoryview:
        """Bytes of the row; they lie in one region."""
        medium, offset = (place := self.place(row.offset)).medium, place.offset
        return self.memory(medium)[offset : offset + row.nbytes]

    def punch(self, hole: ByteRange) -> None:
        """Give memory back. Raises `OSError`."""
        place = self.place(hole.offset)
        region = self.host if place.medium is Medium.HOST else self.peer
        assert region is not None, hole
        region.punch(ByteRange(place.offset, hole.nbytes))

    def bytes_per_s(self, medium: Medium) -> float | None:
        """At what pace it is copied; None is as fast as it goes."""
        return self.peer_bytes_per_s if medium is Medium.PEER else None

    def close(self) -> None:
        """Idempotent."""
        self.host.close()
        if self.peer is not None:
            self.peer.close()
