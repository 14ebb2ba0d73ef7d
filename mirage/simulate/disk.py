"""Tiers below another tier: a disk below host memory, and host memory below a peer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from mirage.simulate.lanes import Lane
from mirage.tiers.below import Above, Below
from mirage.tiers.blocks import Name
from mirage.tiers.holes import ByteRange
from mirage.tiers.space import stride_of
from mirage.tiers.ssd.index import CellIndex

After = Callable[[int, Callable[[], None]], None]
"""Function that schedules a call at a time in picoseconds."""
Now = Callable[[], int]


class Disk(Below):
    """A disk of `capacity` bytes for blocks. Reads and writes each have a lane of their own.

    `ends` has the time, in picoseconds, at which each block that is read will have come up.
    """

    def __init__(self, capacity: int, read: Lane, write: Lane, now: Now, after: After) -> None:
        self.index = CellIndex(capacity)
        self.ends: dict[Name, int] = {}
        self._read, self._write, self._now, self._after = read, write, now, after
        self._above: Above | None = None

    def begin(self, above: Above, memory: memoryview) -> None:
        self._above = above

    def has(self, name: Name, nbytes: int) -> bool:
        return self.index.has(name, stride_of(nbytes))

    def keep(self, names: Iterable[Name]) -> None:
        for name in names:
            self.index.keep(name)

    def sink(self, name: Name, place: ByteRange, tenant: str) -> bool:
        cells = self.index.place(name, stride_of(place.nbytes))
        if cells is None:
            return False
        self.index.free(cells[1])
        self._after(self._write.copy(self._now(), place.nbytes), partial(self._sunk, name))
        return True

    def rise(self, name: Name, place: ByteRange) -> bool:
        if self.index.read(name) is None:
            return False
        end = self.ends[name] = self._read.copy(self._now(), place.nbytes)
        self._after(end, partial(self._risen, name))
        return True

    def wipe(self, tenant: str) -> None: ...

    def end(self) -> None: ...

    def _sunk(self, name: Name) -> None:
        assert self._above is not None
        self.index.written(name)
        self._above.sunk(name, whole=True)

    def _risen(self, name: Name) -> None:
        assert self._above is not None
        self.index.was_read(name)
        del self.ends[name]
        self._above.risen(name, whole=True)


class HostBelow(Below):
    """Host memory below a peer: it receives blocks that the peer evicts. Engines read them in host
    memory, so nothing rises.
    """

    def __init__(self, store: Callable[[Name], int | None], after: After) -> None:
        """`store` begins a copy into host memory and returns its end in picoseconds; None if there
        is no room.
        """
        self._store, self._after = store, after
        self._above: Above | None = None

    def begin(self, above: Above, memory: memoryview) -> None:
        self._above = above

    def has(self, name: Name, nbytes: int) -> bool:
        return False

    def keep(self, names: Iterable[Name]) -> None: ...

    def sink(self, name: Name, place: ByteRange, tenant: str) -> bool:
        end = self._store(name)
        if end is None:
            return False
        assert self._above is not None
        self._after(end, partial(self._above.sunk, name, whole=True))
        return True

    def rise(self, name: Name, place: ByteRange) -> bool:
        return False

    def wipe(self, tenant: str) -> None: ...

    def end(self) -> None: ...
