"""Carries out what the core decides: holes are punched, blocks moved, the tier below is called."""

from __future__ import annotations

import logging
from functools import partial
from typing import Protocol

from mirage.tiers.below import Above
from mirage.tiers.blocks import Move, Name, Punch, Rise, Sink, Tell
from mirage.tiers.core import Core
from mirage.tiers.holes import Range
from mirage.tiers.mover import Mover
from mirage.tiers.region import Regions

logger = logging.getLogger("mirage.tiers")


class Hears(Above, Protocol):
    """The pool, for whoever copies. Calls may come from any thread, also after its end."""

    def moved(self, name: Name, *, whole: bool) -> None:
        """A copy from a peer to host memory has ended."""


class Acting:
    """`above` hears of copies that have ended, in whatever thread."""

    def __init__(self, core: Core, above: Hears, peer_bytes_per_s: float | None = None) -> None:
        """Makes the regions. Raises `OSError`."""
        self.core = core
        self.regions = Regions.create(core.span, core.peer_span, peer_bytes_per_s)
        self._mover = Mover(partial(above.moved, whole=True), peer_bytes_per_s)
        try:
            self.core.below.begin(above, self.regions.host.memory)
        except OSError:
            self.close()
            raise

    def carry_out(self) -> list[Tell]:
        """All that the core wants done now; what is to be told is returned."""
        told: list[Tell] = []
        while actions := self.core.actions():
            for action in actions:
                match action:
                    case Tell():
                        told.append(action)
                    case Punch(hole):
                        self._punch(hole)
                    case Move(name, source, target):
                        view = self.regions.view
                        self._mover.move(name, view(source), view(target))
                    case Sink(name, place):
                        if not self.core.below.sink(name, place):
                            self.core.sunk(name, whole=False)
                    case Rise(name, place):
                        if not self.core.below.rise(name, place):
                            self.core.risen(name, whole=False)
        return told

    def close(self) -> None:
        """Idempotent."""
        self.core.below.end()
        self._mover.end()
        self.regions.close()

    def _punch(self, hole: Range) -> None:
        try:
            self.regions.punch(hole)
        except OSError as error:  # the memory stays, nothing else is wrong
            logger.warning("%d bytes of the host pool were not given back: %s", hole.nbytes, error)
