"""Memory of an engine without a control server, moved by a test as that server would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mirage.geometry import footprint
from mirage.protocol import Allotment

ALL_BUT_ONE = -1
ROUNDS = 50


class Memory:
    """Memory of an engine in this process, moved as the control server would move it."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler, self.shape = scheduler, scheduler.shape
        self._revision = 0
        self.base = scheduler.kv.blocks.book.backed_extents()
        self.most_extents = self.base
        self.most_remapped = 0

    def hold(self, remapped: int, extents: int, slots: int = 1) -> None:
        """Send the engine an allotment with `remapped` layers given away and `extents` KV extents.
        `remapped` + `slots` layers then stream through `slots` slots. The engine reaches it in the
        next steps, or in `settle`.
        """
        self._revision += 1
        grant = footprint(self.shape, remapped, extents)
        self.scheduler.mailbox.post(Allotment(self._revision, remapped, slots, extents, grant))
        memory = self.scheduler.worker.memory
        self.most_remapped = max(self.most_remapped, memory.layers_remapped)
        backed = self.scheduler.kv.blocks.book.backed_extents()
        self.most_extents = max(self.most_extents, backed)

    def settle(self) -> None:
        """Let the engine reach its allotment while no request runs. Raises `RuntimeError` if it
        does not.
        """
        reconciler = self.scheduler.kv.reconciler
        for _ in range(ROUNDS):
            if reconciler.reconciled:
                return
            with self.scheduler.mailbox.hold():
                reconciler.reconcile()
        raise RuntimeError(f"memory does not settle: {reconciler.target} is not reached")

    def layers(self, asked: int) -> int:
        """Number of layers to remap: `asked`, or all movable layers but one if that is less. -1 is
        all but one, so that one slot holds each layer in turn.
        """
        most = self.shape.movable_layers - 1
        return most if asked == ALL_BUT_ONE else min(asked, most)


@contextmanager
def in_pieces(memory: Any) -> Iterator[None]:
    """Context in which no CUDA graph of a whole step is replayed, as while layers are away, though
    none is.

    Attention then always runs between graphs, so that all numbers of layers away compute the same
    bits, and the cost of pieces is measured apart from that of streaming. `memory` is a
    `DeviceMemory`.
    """
    own = type(memory)
    memory.__class__ = type(own.__name__, (own,), {"streaming": property(lambda self: True)})
    try:
        yield
    finally:
        memory.__class__ = own
