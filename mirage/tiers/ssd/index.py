"""Index of a disk's blocks: file and cell of each, and the victims for a new one. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from mirage.tiers.blocks import Name


class FileCell(NamedTuple):
    """Cell `number` of the file whose cells have `stride` bytes."""

    stride: int
    number: int

    @property
    def offset(self) -> int:
        """Bytes from the start of the file."""
        return self.stride * self.number


class CellUse(Enum):
    """Use of a cell. `WRITTEN`: a copy from host memory is in progress; the cell can neither be
    read nor given to another block."""

    WRITTEN = "written"
    READY = "ready"


@dataclass(slots=True)
class Entry:
    """Block on the disk. `readers` is the number of its copies to host memory in progress: the cell
    stays until they have ended."""

    cell: FileCell
    use: CellUse
    tenant: str = ""
    readers: int = 0
    doomed: bool = False
    """True if its tenant was removed: it cannot be read any more, and goes once it is idle."""

    @property
    def readable(self) -> bool:
        return self.use is CellUse.READY and not self.doomed

    @property
    def idle(self) -> bool:
        return self.use is CellUse.READY and not self.readers


class CellIndex:
    """Index of at most `capacity` bytes in cells; the least recently used blocks are evicted
    first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held = 0
        """Bytes of cells that are in use."""
        self.evictions = 0
        """Number of evicted blocks."""
        self._entries: OrderedDict[Name, Entry] = OrderedDict()
        self._free: dict[int, list[int]] = {}
        """Numbers of free cells below `_ends`, by stride."""
        self._ends: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def has(self, name: Name, stride: int) -> bool:
        """True if the block can be read, in a cell of that size."""
        entry = self._entries.get(name)
        return entry is not None and entry.readable and entry.cell.stride == stride

    def adopt(self, name: Name, cell: FileCell, tenant: str = "", *, wanted: bool = True) -> bool:
        """Enter a block of `tenant` that was found in a file; False if there is no room, it is held
        already or not `wanted`.

        Cells of one file have to be entered in ascending order, before any block is placed: cells
        that are left out or refused are free.
        """
        end = self._ends.get(cell.stride, 0)
        self._free.setdefault(cell.stride, []).extend(range(end, cell.number))
        self._ends[cell.stride] = cell.number + 1
        if not wanted or name in self._entries or self.held + cell.stride > self.capacity:
            self._free[cell.stride].append(cell.number)
            return False
        self._entries[name] = Entry(cell, CellUse.READY, tenant)
        self.held += cell.stride
        return True

    def place(
        self, name: Name, stride: int, tenant: str = ""
    ) -> tuple[FileCell, list[FileCell]] | None:
        """Return a cell to write a block of `tenant` to, and the cells of blocks evicted for it;
        None if there is no room, or the block is held already.

        The cells of evicted blocks are not given to others until `free` is called for them.
        """
        if name in self._entries or stride > self.capacity:
            return None
        victims = self._victims(self.held + stride - self.capacity)
        if victims is None:
            return None
        gone = [self._remove(victim) for victim in victims]
        cell = next((other for other in gone if other.stride == stride), None) or self._take(stride)
        self._entries[name] = Entry(cell, CellUse.WRITTEN, tenant)
        self.held += stride
        self.evictions += len(gone)
        return cell, [other for other in gone if other != cell]

    def free(self, cells: Iterable[FileCell]) -> None:
        """Note that these cells are not used any more: they may be given to others."""
        for cell in cells:
            self._free.setdefault(cell.stride, []).append(cell.number)

    def written(self, name: Name) -> None:
        """Note that the block can be read from now on."""
        self._entries[name].use = CellUse.READY

    def read(self, name: Name) -> FileCell | None:
        """Return the cell to read, which is kept until `was_read`; None if the block cannot be
        read."""
        entry = self._entries.get(name)
        if entry is None or not entry.readable:
            return None
        entry.readers += 1
        self._entries.move_to_end(name)
        return entry.cell

    def keep(self, name: Name) -> None:
        """Make the block the last to be evicted, if it is held."""
        if name in self._entries:
            self._entries.move_to_end(name)

    def was_read(self, name: Name) -> None:
        """Note that a copy of the block to host memory has ended."""
        self._entries[name].readers -= 1

    def wipe(self, tenant: str) -> list[FileCell]:
        """Remove the idle blocks of a tenant that is removed, and return their cells, which are
        not given to others until `free` is called.

        Its other blocks go later: see `wiped`.
        """
        own = [name for name, entry in self._entries.items() if entry.tenant == tenant]
        for name in own:
            self._entries[name].doomed = True
        return [cell for name in own for cell in self.wiped(name)]

    def wiped(self, name: Name) -> list[FileCell]:
        """Remove a block that `wipe` left, if it has become idle, and return its cell as `wipe`
        does; else return an empty list."""
        entry = self._entries.get(name)
        return [self._remove(name)] if entry is not None and entry.doomed and entry.idle else []

    def drop(self, name: Name) -> FileCell | None:
        """Remove a block that is damaged or was not written; free its cell and return it. None, and
        the block stays, while another copy reads it."""
        entry = self._entries[name]
        if entry.readers:
            return None
        cell = self._remove(name)
        self.free([cell])
        return cell

    def _victims(self, need: int) -> list[Name] | None:
        """Return the blocks to evict for `need` bytes, oldest first; None if they do not
        suffice."""
        gone: list[Name] = []
        for name, entry in self._entries.items():
            if need <= 0:
                break
            if entry.idle:
                gone.append(name)
                need -= entry.cell.stride
        return gone if need <= 0 else None

    def _remove(self, name: Name) -> FileCell:
        cell = self._entries.pop(name).cell
        self.held -= cell.stride
        return cell

    def _take(self, stride: int) -> FileCell:
        if free := self._free.get(stride):
            return FileCell(stride, free.pop())
        number = self._ends.get(stride, 0)
        self._ends[stride] = number + 1
        return FileCell(stride, number)
