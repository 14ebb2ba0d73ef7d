"""The pool itself in its engine's process, above a real folder that is read as slowly as told."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

from mirage.tiers.blocks import Name
from mirage.tiers.contract import Key, Member
from mirage.tiers.core import Core
from mirage.tiers.holes import ByteRange
from mirage.tiers.local import LocalPool
from mirage.tiers.space import PAGE
from mirage.tiers.ssd.index import FileCell
from mirage.tiers.ssd.store import SsdStore

HOST_BLOCKS = 400
SSD_BLOCKS = 800
PORTION = 100
"""Blocks that are sent down at once."""


class SlowStore(SsdStore):
    """Disk tier in which each block that is read takes `read_s` seconds more; two reads run at a
    time.
    """

    read_s = 0.0

    def __init__(self, folder: Path, capacity: int) -> None:
        super().__init__(folder, capacity)
        self.risen: list[Key] = []
        """In the order in which they were asked for."""
        self.under_way = self.most_under_way = 0
        self._counting = threading.Lock()

    def rise(self, name: Name, place: ByteRange) -> bool:
        self.risen.append(name.key)
        with self._counting:
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
        return super().rise(name, place)

    def _read(self, name: Name, place: ByteRange, cell: FileCell) -> None:
        time.sleep(self.read_s)
        super()._read(name, place, cell)
        with self._counting:
            self.under_way -= 1


class DiskPool(LocalPool):
    """Pool above a slow disk, whose folder ends with the process's temporary files."""

    def __init__(self, member: Member) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="mirage-disk-")
        size = member.block_bytes
        self.disk = SlowStore(Path(self._folder.name), SSD_BLOCKS * (size + 2 * PAGE))
        super().__init__(Core(HOST_BLOCKS * size, below=self.disk), member)

    def sink_all(self) -> None:
        """Move all blocks of host memory to the disk."""
        core = self._shared.core
        names = [block.name for block in core._host._blocks.values() if block.idle]
        for start in range(0, len(names), PORTION):
            core._cleaning.save(names[start : start + PORTION])
            while core._cleaning.sinking:
                self._shared.carry_out()
                time.sleep(0.001)
        budget = core.ledger.budget
        self.resize(0)
        self.resize(budget)

    @property
    def idle(self) -> bool:
        """True if no request seeks and no block is reserved or copied. Each call lets copies
        proceed.
        """
        self._shared.carry_out()
        tenants = self._shared.core.state().tenants.values()
        return not any(own.pinned_bytes for own in tenants) and not self._answers

    def close(self) -> None:
        super().close()
        self._folder.cleanup()
