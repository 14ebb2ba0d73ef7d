"""Policy, and section `sharing`: all tenants at once, or one at a time in turns."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from mirage.config.strict import Strict

PATIENCE_S = 1.0


class Policy(StrEnum):
    """Policy: the memory that may be taken from others."""

    STATIC = "static"
    POOLED = "pooled"
    MIRAGE = "mirage"


class SharingSection(Strict):
    """Spatial: all engines step at once. Temporal: one at a time, in turns."""

    mode: Literal["spatial", "temporal"] = "spatial"
    turn_s: float = Field(default=1.0, gt=0, le=1e6)
    drain: bool | Literal["auto"] = "auto"
    """Temporal sharing: True if a turn lasts until its running requests have finished, False if it
    ends after the step in flight. ``auto``: it drains only if the next model would otherwise stream
    more layers than its decode hides, and for `turn_s` seconds more at most.
    """

    @property
    def drains(self) -> bool:
        """True if every turn lasts until the requests that began in it have finished."""
        return self.mode == "temporal" and self.drain is True

    @property
    def patience_s(self) -> float:
        """Longest time in seconds that a running request waits for memory before it is preempted.

        In turns it is a quarter of the turn at most: a turn that passes with waiting alone leaves
        the next no better off.
        """
        return PATIENCE_S if self.mode == "spatial" else min(PATIENCE_S, self.turn_s / 4)
