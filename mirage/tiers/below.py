"""Interface of a tier below the host pool. Pure.

The pool decides which blocks go down and come up; the tier copies them. It is called in the pool's
thread and returns at once. It reports the end of each copy to `Above`, from any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from mirage.tiers.blocks import Name
from mirage.tiers.holes import ByteRange


class Above(Protocol):
    """Pool as a tier below sees it. Calls may come from any thread, also after its end."""

    def sunk(self, name: Name, *, whole: bool) -> None:
        """Note that a copy down has ended: the place in host memory may change from now on.
        `whole`: it succeeded."""

    def risen(self, name: Name, *, whole: bool) -> None:
        """Note that a copy up has ended. If it is not `whole`, the key becomes absent."""


class Below(Protocol):
    """Tier below the pool: the names of its blocks, and copies between it and the pool's region."""

    def begin(self, above: Above, memory: memoryview) -> None:
        """Prepare the tier, before any other call; `memory` is the region that byte ranges refer
        to."""

    def has(self, name: Name, nbytes: int) -> bool:
        """True if the tier seems to have that block; a copy up may still fail."""

    def keep(self, names: Iterable[Name]) -> None:
        """Evict those of these blocks that the tier has last, in this order."""

    def sink(self, name: Name, place: ByteRange, tenant: str) -> bool:
        """Begin to copy down a block of `tenant`.

        False if the tier does not take the block; then no end is reported.
        """

    def rise(self, name: Name, place: ByteRange) -> bool:
        """Begin to copy a block up; False if that is not possible; then no end is reported."""

    def wipe(self, tenant: str) -> None:
        """Begin to erase all blocks that belonged to a tenant when they came down."""

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
