"""Orders to the memory of an engine, and its answers. Pure.

The scheduler's side decides on its books what moves, and orders it. A worker obeys before the step
that is scheduled next, and answers what it holds then. Orders are numbered: those that are not the
next are refused. An order never raises. The answer says as a number of things done what the device
had memory for, and what failed as an error. After an error nothing moves any more.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


class SetParameters(NamedTuple):
    """Order: remap `layers_remapped`, or `experts` of each layer; stream through `stream_slots`."""

    layers_remapped: int
    stream_slots: int
    experts: int
    takes: bool
    """True if it needs memory that was granted: the device may not have it now."""
    insists: bool = False
    """True if torch's cache is to be emptied for it."""


class UnmapExtents(NamedTuple):
    """Give the memory of these KV extents, which no step touches any more."""

    extents: tuple[int, ...]


class MapExtents(NamedTuple):
    """Take memory for these KV extents: for the first of them that the device has it for."""

    extents: tuple[int, ...]
    insists: bool = False
    """True if torch's cache is to be emptied for it."""


Action = SetParameters | UnmapExtents | MapExtents


class MemoryOrders(NamedTuple):
    """Orders to be carried out before the next step, in the order of the fields."""

    epoch: int
    """Number of these orders, one more than of those before; 0 asks for what is held."""
    grant_bytes: int | None = None
    """Bytes of everything that the engine may hold from now on; None leaves the grant."""
    emptied: tuple[int, ...] = ()
    """KV extents that no request has blocks of any more."""
    actions: tuple[Action, ...] = ()


class Done(NamedTuple):
    """The outcome of one action."""

    number: int
    """KV extents that were mapped or unmapped; 1 if parameters moved, and 0 if not."""
    seconds: float


class MemoryAnswer(NamedTuple):
    """The memory of one worker once it has obeyed."""

    epoch: int
    layers_remapped: int
    stream_slots: int
    experts: int
    extents: int
    """KV extents that have memory."""
    held_bytes: int
    done: tuple[Done, ...] = ()
    """Outcomes of the first actions; of all if there is no error."""
    error: Exception | None = None


class NotTheNext(Exception):
    """Orders were refused: others came before them, or are missing."""


class Hands(Protocol):
    """The memory of an engine, as its books see it."""

    def obey(self, orders: MemoryOrders) -> MemoryAnswer:
        """Carry the orders out. Raises nothing."""
