"""Index of a disk's blocks: file and slot of each, and the victims for a new one. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from mirage.tiers.blocks import Name


class FileSlot(NamedTuple):
    """The `number`th place of `stride` bytes in the file of that stride."""

    stride: int
    number: int

    @property
    def offset(self) -> int:
        """Bytes from the start of the file."""
        return self.stride * self.number


class SlotUse(Enum):
    """`WRITTEN`: a copy down is under way. Nobody may read it or take its slot."""

    WRITTEN = "written"
    READY = "ready"


@dataclass(slots=True)
class Entry:
    """`readers` are copies up that are under way: the slot stays until they have ended."""

    slot: FileSlot
    use: SlotUse
    tenant: str = ""
    readers: int = 0
    doomed: bool = False
    """Its tenant was removed: nobody reads it any more, and it goes once it is idle."""

    @property
    def readable(self) -> bool:
        return self.use is SlotUse.READY and not self.doomed

    @property
    def idle(self) -> bool:
        return self.use is SlotUse.READY and not self.readers


class SlotIndex:
    """At most `capacity` bytes in slots, least recently used ones first to go."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held = 0
        """Bytes of slots that are in use."""
        self.evictions = 0
        """Blocks that went for others."""
        self._entries: OrderedDict[Name, Entry] = OrderedDict()
        self._free: dict[int, list[int]] = {}
        """Slots that were in use, by stride; there are none beyond `_ends`."""
        self._ends: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def has(self, name: Name, stride: int) -> bool:
        """True if it can be read, in a slot of that size."""
        entry = self._entries.get(name)
        return entry is not None and entry.readable and entry.slot.stride == stride

    def adopt(self, name: Name, slot: FileSlot, tenant: str = "", *, wanted: bool = True) -> bool:
        """A block that was found in a file; False if it has no room, is held already or not wanted.

        Slots of one file have to be told in ascending order, before anything is placed there:
        those left out, and those refused, are free.
        """
        end = self._ends.get(slot.stride, 0)
        self._free.setdefault(slot.stride, []).extend(range(end, slot.number))
        self._ends[slot.stride] = slot.number + 1
        if not wanted or name in self._entries or self.held + slot.stride > self.capacity:
            self._free[slot.stride].append(slot.number)
            return False
        self._entries[name] = Entry(slot, SlotUse.READY, tenant)
        self.held += slot.stride
        return True

    def place(
        self, name: Name, stride: int, tenant: str = ""
    ) -> tuple[FileSlot, list[FileSlot]] | None:
        """A slot to write to, and those whose blocks had to go; None without room for it.

        The slots of blocks that went are nobody's until they are said to be `free`.
        """
        if name in self._entries or stride > self.capacity:
            return None
        victims = self._victims(self.held + stride - self.capacity)
        if victims is None:
            return None
        gone = [self._remove(victim) for victim in victims]
        slot = next((other for other in gone if other.stride == stride), None) or self._take(stride)
        self._entries[name] = Entry(slot, SlotUse.WRITTEN, tenant)
        self.held += stride
        self.evictions += len(gone)
        return slot, [other for other in gone if other != slot]

    def free(self, slots: Iterable[FileSlot]) -> None:
        """Nothing touches them any more: they may be given again."""
        for slot in slots:
            self._free.setdefault(slot.stride, []).append(slot.number)

    def written(self, name: Name) -> None:
        """It can be read from now on."""
        self._entries[name].use = SlotUse.READY

    def read(self, name: Name) -> FileSlot | None:
        """Slot to read; it is kept until `was_read`. None if the block cannot be read."""
        entry = self._entries.get(name)
        if entry is None or not entry.readable:
            return None
        entry.readers += 1
        self._entries.move_to_end(name)
        return entry.slot

    def keep(self, name: Name) -> None:
        """It goes last of all, if it is held."""
        if name in self._entries:
            self._entries.move_to_end(name)

    def was_read(self, name: Name) -> None:
        """A copy up has ended."""
        self._entries[name].readers -= 1

    def wipe(self, tenant: str) -> list[FileSlot]:
        """Slots of a removed tenant's idle blocks, nobody's until they are said to be `free`.

        Its other blocks go later: see `wiped`.
        """
        own = [name for name, entry in self._entries.items() if entry.tenant == tenant]
        for name in own:
            self._entries[name].doomed = True
        return [slot for name in own for slot in self.wiped(name)]

    def wiped(self, name: Name) -> list[FileSlot]:
        """Slot of a removed tenant's block that has become idle, as of `wipe`; else none."""
        entry = self._entries.get(name)
        return [self._remove(name)] if entry is not None and entry.doomed and entry.idle else []

    def drop(self, name: Name) -> FileSlot | None:
        """It is not believed, or was not written; its slot, None while another reads it."""
        entry = self._entries[name]
        if entry.readers:
            return None
        slot = self._remove(name)
        self.free([slot])
        return slot

    def _victims(self, need: int) -> list[Name] | None:
        """Blocks that have to go for `need` bytes, oldest first; None if that does not suffice."""
        gone: list[Name] = []
        for name, entry in self._entries.items():
            if need <= 0:
                break
            if entry.idle:
                gone.append(name)
                need -= entry.slot.stride
        return gone if need <= 0 else None

    def _remove(self, name: Name) -> FileSlot:
        slot = self._entries.pop(name).slot
        self.held -= slot.stride
        return slot

    def _take(self, stride: int) -> FileSlot:
        if free := self._free.get(stride):
            return FileSlot(stride, free.pop())
        number = self._ends.get(stride, 0)
        self._ends[stride] = number + 1
        return FileSlot(stride, number)
