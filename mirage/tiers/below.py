"""What the host pool asks of a tier below it. Pure.

The pool decides what goes down and what comes up; the tier copies. Everything is called in the
pool's thread and returns at once: what takes time ends with `Core.sunk` or `Core.risen`, called in
the pool's thread as well (`Acting.later` brings one there).
"""

from __future__ import annotations

from typing import Protocol

from mirage.tiers.blocks import Name
from mirage.tiers.slabs import Range


class Below(Protocol):
    """Names of blocks that lie in it, and copies between it and the region."""

    def has(self, name: Name, nbytes: int) -> bool:
        """Whether it believes to hold that block; a copy up may still fail."""

    def sink(self, name: Name, place: Range) -> bool:
        """Begin to copy down; False if it does not want the block, and nothing follows."""

    def rise(self, name: Name, place: Range) -> bool:
        """Begin to copy up; False if that is impossible, and nothing follows."""


class Nothing:
    """No tier below."""

    def has(self, name: Name, nbytes: int) -> bool:
        return False

    def sink(self, name: Name, place: Range) -> bool:
        return False

    def rise(self, name: Name, place: Range) -> bool:
        return False
