"""Carries out the core's orders: it punches holes, copies blocks, and calls the tier below."""

from __future__ import annotations

import logging
from functools import partial
from typing import Protocol

from mirage.tiers.below import Above
from mirage.tiers.blocks import (
    LendOrder,
    Name,
    PeerCopy,
    Punch,
    ReturnOrder,
    Rise,
    Sink,
    Tell,
    Unlock,
)
from mirage.tiers.core import Core
from mirage.tiers.holes import ByteRange
from mirage.tiers.lending.lenders import HolderRefused, Lenders, Owner
from mirage.tiers.lockers import Lockers
from mirage.tiers.mover import Mover
from mirage.tiers.region import Region, Regions

logger = logging.getLogger("mirage.tiers")


class Hears(Above, Owner, Protocol):
    """Pool, which is told of the ends of copies and of holders' answers. Calls come from any
    thread, also after the pool's end."""


class Acting:
    """Executor of the pool's orders. `above` is told of the ends of copies, in any thread. With
    `lenders`, holders have the memory of peers."""

    def __init__(
        self,
        core: Core,
        above: Hears,
        peer_bytes_per_s: float | None = None,
        lenders: Lenders | None = None,
    ) -> None:
        """Make the memory of the pool and of peers, and begin the tier below. Raise `OSError`, or
        `HolderRefused` for a GPU that cannot lend; nothing is left then."""
        self.core, self._lenders, self.lockers = core, lenders, Lockers(core)
        if lenders is None:
            self.regions = Regions.create(core.span, core.peer_span, peer_bytes_per_s)
        else:
            self.regions = _lent(core, above, lenders)
        self._mover = Mover(partial(above.moved, whole=True), peer_bytes_per_s)
        try:
            self.core.below.begin(above, self.regions.host.memory)
        except OSError:
            self.close()
            raise

    def carry_out(self) -> list[Tell]:
        """Carry out all orders that the core has now; return the messages for engines."""
        told: list[Tell] = []
        while actions := self.core.actions():
            for action in actions:
                match action:
                    case Tell():
                        told.append(action)
                    case Punch(hole):
                        self._punch(hole)
                    case Unlock(start):
                        self.lockers.unlock(start)
                    case PeerCopy(name, source, target):
                        self._move(name, source, target)
                    case LendOrder(device, memory):
                        if self._lenders and not self._lenders.lend(device, memory):
                            self.core.lent_in_vain(memory.offset)
                    case ReturnOrder(device, memory):
                        if self._lenders and not self._lenders.take_back(device, memory):
                            self.core.returned(memory.offset)
                    case Sink(name, place, tenant):
                        if not self.core.below.sink(name, place, tenant):
                            self.core.sunk(name, whole=False)
                    case Rise(name, place):
                        if not self.core.below.rise(name, place):
                            self.core.risen(name, whole=False)
        return told

    def close(self) -> None:
        """Stop all copies and release the memory. A second call does nothing."""
        self.core.below.end()
        self._mover.end()
        if self._lenders is not None:
            self._lenders.end()
        self.lockers.close()
        self.regions.close()

    def _move(self, name: Name, source: ByteRange, target: ByteRange) -> None:
        if self._lenders is None:
            self._mover.move(name, self.regions.view(source), self.regions.view(target))
        elif not self._lenders.move(self.core.peer_of(source.offset), name, source, target.offset):
            self.core.moved(name, whole=False)

    def _punch(self, hole: ByteRange) -> None:
        try:
            self.regions.punch(hole)
        except OSError as error:  # the memory stays, nothing else is wrong
            logger.warning("%d bytes of the host pool were not given back: %s", hole.nbytes, error)


def _lent(core: Core, above: Hears, lenders: Lenders) -> Regions:
    """Return the regions with host memory in this process and peers' memory with holders."""
    host = Region.create(core.span)
    try:
        lent = lenders.start(above, host.fd, core.peer_starts, core.peer_sizes)
    except HolderRefused:
        host.close()
        raise
    return Regions(host, lenders=lent)
