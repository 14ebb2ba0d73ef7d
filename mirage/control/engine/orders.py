"""Orders to the memory of an engine, and its answers. Pure.

The scheduler's side decides from its books what moves, and orders it. A worker obeys before the
step that is scheduled next, and answers what it holds then. Orders are numbered; an order whose
number is not the next one is refused. An order never raises. The answer counts what was done, which
is less than ordered if the device lacked memory, and carries any other failure as an error. After
an error nothing moves any more.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


class SetParameters(NamedTuple):
    """Order: from now on `layers_remapped` layers are given away, or `experts` experts of each
    layer; streamed layers share `stream_slots` slots."""

    layers_remapped: int
    stream_slots: int
    experts: int
    takes: bool
    """True if the order needs memory of the device, which was granted and which the device may lack
    at the moment."""
    insists: bool = False
    """True if torch's cache may be emptied to obtain the memory."""


class UnmapExtents(NamedTuple):
    """Order: release the memory of these KV extents, which no step touches any more."""

    extents: tuple[int, ...]


class MapExtents(NamedTuple):
    """Order: take memory for these KV extents, or for as many of the first as the device has memory
    for."""

    extents: tuple[int, ...]
    insists: bool = False
    """True if torch's cache may be emptied to obtain the memory."""


Action = SetParameters | UnmapExtents | MapExtents


class MemoryOrders(NamedTuple):
    """Orders to be carried out before the next step, in the order of the fields."""

    epoch: int
    """Number of these orders, one more than that of the orders before; 0 asks only for what is
    held."""
    grant_bytes: int | None = None
    """Bytes that the engine may hold in total from now on; None leaves the grant as it is."""
    emptied: tuple[int, ...] = ()
    """KV extents that came to have no block of a request since the last orders."""
    actions: tuple[Action, ...] = ()


class Done(NamedTuple):
    """Outcome of one action."""

    number: int
    """KV extents that were mapped or unmapped; for parameters 1 if they moved, else 0."""
    seconds: float


class MemoryAnswer(NamedTuple):
    """Answer of one worker to its memory orders: the memory that it holds after them, and the
    outcome of each action.
    """

    epoch: int
    layers_remapped: int
    stream_slots: int
    experts: int
    extents: int
    """Number of KV extents that have memory."""
    held_bytes: int
    done: tuple[Done, ...] = ()
    """Outcomes of the actions in their order; after an error, only of those before it."""
    error: Exception | None = None


class NotTheNext(Exception):
    """Error: the number of these orders is not the next one, so orders are missing or came
    twice."""


class Hands(Protocol):
    """Part of an engine that carries out orders to its memory: a worker with real memory, or a
    simulated one."""

    def obey(self, orders: MemoryOrders) -> MemoryAnswer:
        """Carry the orders out and return the answer. Raises nothing."""
