"""Interface of a tier below the host pool. Pure.

The pool decides which blocks are copied to the tier and back, and the tier copies them. The tier is
called in the pool's thread and returns immediately. It reports the end of each copy to `Above`,
from any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from mirage.tiers.blocks import Name
from mirage.tiers.holes import ByteRange


class Above(Protocol):
    """The pool as the tier below it sees it: the receiver of ended copies. Calls may come from any
    thread, also after the pool's end.
    """

    def sunk(self, name: Name, *, whole: bool) -> None:
        """Note that a copy to the tier has ended: the block's place in host memory may change from
        now on. `whole` is True if the copy succeeded."""

    def risen(self, name: Name, *, whole: bool) -> None:
        """Note that a copy from the tier to host memory has ended. `whole` is True if it succeeded;
        otherwise the key becomes absent."""


class Below(Protocol):
    """Tier below the pool: the names of its blocks, and copies between it and the pool's region."""

    def begin(self, above: Above, memory: memoryview) -> None:
        """Prepare the tier, before any other call; `memory` is the region that byte ranges refer
        to."""

    def has(self, name: Name, nbytes: int) -> bool:
        """True if the tier seems to have that block; a copy of it may still fail."""

    def keep(self, names: Iterable[Name]) -> None:
        """Sort the blocks for eviction: of these, the tier evicts the first name first. All other
        blocks are evicted before them.
        """

    def sink(self, name: Name, place: ByteRange, tenant: str) -> bool:
        """Begin to copy a block of `tenant` from its `place` in the region to the tier.

        False if the tier does not take the block; then no end is reported.
        """

    def rise(self, name: Name, place: ByteRange) -> bool:
        """Begin to copy a block from the tier to a `place` in the region; False if that is not
        possible, and then no end is reported."""

    def wipe(self, tenant: str) -> None:
        """Begin to erase all blocks that belonged to a tenant when they were copied to the tier."""

    def end(self) -> None:
        """Stop. When this returns, `memory` is no longer used."""


class Nothing:
    """`Below` of a pool without a tier below."""

    def begin(self, above: Above, memory: memoryview) -> None: ...

    def has(self, name: Name, nbytes: int) -> bool:
        return False

    def keep(self, names: Iterable[Name]) -> None: ...

    def sink(self, name: Name, place: ByteRange, tenant: str) -> bool:
        return False

    def rise(self, name: Name, place: ByteRange) -> bool:
        return False

    def wipe(self, tenant: str) -> None: ...

    def end(self) -> None: ...
