"""Forms in which weights are told of that come into the store of a machine."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class AheadState(StrEnum):
    """State of weights that were asked for."""

    COMING = "coming"
    WHOLE = "whole"
    FAILED = "failed"


class WeightsComing(msgspec.Struct, frozen=True, kw_only=True):
    """A model on its way into the store of a machine."""

    model: str
    """Its name or id in the store."""
    state: AheadState
    here: int = 0
    """Bytes that have come, of those that were missing."""
    missing: int = 0
    """Bytes that were missing; 0 until that is known."""
    why: str = ""
    """Reason of a failure."""
