"""Memory of one engine, counted in numbers. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod

from mirage.control.engine.way import CallBack, Map, Move, Parameters, Retire, Unmap
from mirage.geometry import footprint
from mirage.protocol import ModelShape


class PricedMemory(ABC):
    """Base of memories that `Way` reads: computes bytes from the counts of layers, experts and
    extents.

    `shape` has the bytes of each of these; a subclass keeps the number of extents. See
    `way.Memory`.
    """

    def __init__(
        self, shape: ModelShape, remapped: int, slots: int, experts: int, granted: int
    ) -> None:
        self.shape = shape
        self.layers_remapped, self.stream_slots, self.experts = remapped, slots, experts
        self.granted_bytes = granted

    @property
    @abstractmethod
    def extents(self) -> int:
        """Number of KV extents that hold memory."""

    @property
    def absent(self) -> bool:
        """True if there are layers and all are given away."""
        return 0 < self.shape.layers == self.layers_remapped

    @property
    def least_extents(self) -> int:
        """KV extents that a request of the greatest length needs."""
        return self.shape.min_extents

    @property
    def held_bytes(self) -> int:
        return footprint(self.shape, self.layers_remapped, self.extents, self.experts)

    def affordable_extents(self) -> int:
        """Return the number of KV extents that the unused part of the grant pays for."""
        return self.spare() // self.shape.extent_bytes

    def spare(self) -> int:
        """Return the bytes of the grant that are not held; 0 if more is held than was granted."""
        return max(0, self.granted_bytes - self.held_bytes)

    def cost(self, remapped: int, experts: int) -> int:
        """Return the bytes that are held without KV extents, with `remapped` layers away or
        `experts` of each layer."""
        return footprint(self.shape, remapped, 0, experts)


class CountedMemory(PricedMemory):
    """Memory of an engine without requests, kept as numbers only, to calculate where a way leads.
    Sizes are in bytes. See `way.Memory`."""

    def __init__(
        self, shape: ModelShape, remapped: int, slots: int, experts: int, extents: int, granted: int
    ) -> None:
        super().__init__(shape, remapped, slots, experts, granted)
        self.usable_extents, self.retiring_extents = extents, 0

    @property
    def extents(self) -> int:
        """Number of KV extents that hold memory."""
        return self.usable_extents + self.retiring_extents

    def make(self, move: Move) -> None:
        """Carry out a move on the numbers."""
        match move:
            case Parameters():
                self.layers_remapped, self.stream_slots = move.layers_remapped, move.stream_slots
                self.experts = move.experts
            case Retire(extents, anew):
                self._call_back((self.retiring_extents if anew else 0) - extents)
            case CallBack(extents):
                self._call_back(extents)
            case Unmap(extents):
                self.retiring_extents -= extents
            case Map(extents):
                self.usable_extents += extents

    def _call_back(self, extents: int) -> None:
        self.usable_extents += extents
        self.retiring_extents -= extents

    # -- what the way asks --------------------------------------------------------------

    def busy_extents(self) -> int:
        """Return 0: no extent is in use."""
        return 0

    def awaits_requests(self) -> bool:
        """Return False: no request uses an extent."""
        return False

    def at_rest(self) -> bool:
        """Return True: memory that is kept as numbers can be put to sleep at any time."""
        return True

    def may_retire(self) -> bool:
        """Return True: an extent may retire at any time, because no cached block has to be copied
        to a tier before."""
        return True

    def emptied_extents(self) -> int:
        """Return the number of retiring extents: no request uses any."""
        return self.retiring_extents
