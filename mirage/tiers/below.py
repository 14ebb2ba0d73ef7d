"""Interface of a tier below the host pool. Pure.

The pool decides what goes down and what comes up; the tier copies. It is called in the pool's
thread and returns at once. It reports the end of each copy to `Above`, from any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from mirage.tiers.blocks import Name
from mirage.tiers.holes import ByteRange


class Above(Protocol):
    """The pool, for a tier below. Calls may come from any thread, also after its end."""

    def sunk(self, name: Name, *, whole: bool) -> None:
        """A copy down has ended: the place may change from now on."""

    def risen(self, name: Name, *, whole: bool) -> None:
        """A copy up has ended. If it is not `whole`, the key is absent."""


class Below(Protocol):
    """Names of blocks that lie in it, and copies between it and the region."""

    def begin(self, above: Above, memory: memoryview) -> None:
        """Before anything else; `memory` is the region that ranges are of."""

    def has(self, name: Name, nbytes: int) -> bool:
        """True if it believes to hold that block; a copy up may still fail."""

    def keep(self, names: Iterable[Name]) -> None:
        """Evict these blocks last, in this order, of those that it holds."""

    def sink(self, name: Name, place: ByteRange, tenant: str) -> bool:
        """Begin to copy down a block of `tenant`.

        False if it does not want the block, and nothing follows.
        """

    def rise(self, name: Name, place: ByteRange) -> bool:
        """Begin to copy up; False if that is impossible, and nothing follows."""

    def wipe(self, tenant: str) -> None:
        """Begin to erase all blocks that were a tenant's when they came down."""

    def end(self) -> None:
        """Stop. Nothing touches `memory` any more when this returns."""


class Nothing:
    """No tier below."""

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
