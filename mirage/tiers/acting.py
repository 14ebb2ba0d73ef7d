"""Carries out what the core decides: holes are punched, the tier below is called."""

from __future__ import annotations

import logging

from mirage.tiers.below import Above
from mirage.tiers.blocks import Punch, Rise, Sink, Tell
from mirage.tiers.core import Core
from mirage.tiers.holes import Range
from mirage.tiers.region import Region

logger = logging.getLogger("mirage.tiers")


class Acting:
    """`above` is what the tier below reports to, in whatever thread."""

    def __init__(self, core: Core, above: Above) -> None:
        """Makes the region. Raises `OSError`."""
        self.core = core
        self.region = Region.create(core.span)
        try:
            self.core.below.begin(above, self.region.memory)
        except OSError:
            self.region.close()
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
        self.region.close()

    def _punch(self, hole: Range) -> None:
        try:
            self.region.punch(hole)
        except OSError as error:  # the memory stays, nothing else is wrong
            logger.warning("%d bytes of the host pool were not given back: %s", hole.nbytes, error)
