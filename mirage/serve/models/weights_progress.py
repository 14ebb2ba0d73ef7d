"""Forms for the progress of weights that are brought into a machine's store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol

import msgspec


class AheadState(StrEnum):
    """State of weights that the store was told to get."""

    COMING = "coming"
    WHOLE = "whole"
    FAILED = "failed"


class WeightsComing(msgspec.Struct, frozen=True, kw_only=True):
    """Model whose weights are brought into a machine's store."""

    model: str
    """Name or id of the model in the store."""
    state: AheadState
    here: int = 0
    """Bytes that have come, of those that were missing at the beginning."""
    missing: int = 0
    """Bytes that were missing at the beginning; 0 until that is known."""
    why: str = ""
    """Reason of a failure; else empty."""


class BroughtWeights(Protocol):
    """Weights that are being brought, and those that were."""

    bytes: int

    @property
    def coming(self) -> Sequence[WeightsComing]:
        """Progress of all models that are being brought."""

    @property
    def results(self) -> Mapping[str, int]:
        """Number of models that were brought or could not be, by result (`AheadState`)."""
