"""Section `placement` of a file with several devices: rules by which models move between them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from mirage.config import Count, Strict
from mirage.control.placement.rules import PlacementRules

Seconds = Annotated[float, Field(gt=0, le=1e6)]
Percent = Annotated[float, Field(ge=0, le=100)]


class PlacementSection(Strict):
    """Rules by which models that name no device are placed, and move while they are served."""

    off: bool = False
    """True if nothing moves after the first placement, but for tenants whose devices a changed
    file names."""
    decide_s: Seconds = 60.0
    """Seconds between two decisions."""
    window_s: Seconds = 300.0
    """Seconds of a window, whose load is judged as a whole."""
    windows: Count = 3
    ttft_s: Seconds = 2.0
    """Limit of the time to the first token in seconds, for all models."""
    tpot_s: Seconds = 0.1
    """Limit of the time per output token in seconds, for all models."""
    judge_s: Seconds = 10.0
    """Most seconds of the simulations for one decision. If they do not even suffice to judge the
    present placement, the decision is made by arithmetic.
    """
    gain_percent: Percent = 1.0
    """Least gain of a move: additional requests within the limits, in per cent of all requests."""
    gain_percent_per_gib: Percent = 0.02
    """Additional gain, in per cent of all requests, that is needed for each GiB of parameters to
    load."""
    calm: Annotated[float, Field(ge=0, le=1)] = 0.3
    """Pressure of a model's other devices up to which a replica is closed that is not needed for
    the limits; 0 closes none. Pressure is the KV bytes that requests want, for each byte that is
    free or may be lent.
    """
    rest_s: Annotated[float, Field(ge=0, le=1e6)] = 600.0
    """Seconds for which a model stays after a move."""
    moves_an_hour: Annotated[int, Field(ge=0)] = 12
    away_s: Seconds = 10.0
    """Seconds without an answer of a device's server after which its models go to other devices."""
    start_s: Seconds = 600.0
    """Most seconds for an engine to be ready on the device that it moves to."""
    drain_s: Annotated[float, Field(ge=0, le=1e6)] = 300.0
    """Most seconds for requests to end on the device that their model leaves."""

    @property
    def rules(self) -> PlacementRules:
        """These rules in the form of the deciding code."""
        return PlacementRules(
            gain=self.gain_percent / 100,
            gain_per_gib=self.gain_percent_per_gib / 100,
            rest_s=self.rest_s,
            moves_an_hour=self.moves_an_hour,
            calm=self.calm,
        )
