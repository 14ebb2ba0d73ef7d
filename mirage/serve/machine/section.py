"""Key `placement` of a file with several devices: when models move between them."""

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
    """True: nothing moves after the first placement."""
    decide_s: Seconds = 60.0
    """Seconds between two decisions."""
    window_s: Seconds = 300.0
    """Seconds of load that are judged as one."""
    windows: Count = 3
    ttft_s: Seconds = 2.0
    """Limit of the time to the first token, of all models."""
    tpot_s: Seconds = 0.1
    """Limit of the time per output token."""
    judge_s: Seconds = 10.0
    """Longest time of the simulations of a decision, which is made by arithmetic if that is not
    enough to judge what is."""
    gain_percent: Percent = 1.0
    """Further requests within limits for which anything moves, of all requests."""
    gain_percent_per_gib: Percent = 0.02
    """Further ones for each GiB of parameters that has to be loaded."""
    calm: Annotated[float, Field(ge=0, le=1)] = 0.3
    """Pressure of its other devices up to which a replica closes that nobody misses."""
    rest_s: Annotated[float, Field(ge=0, le=1e6)] = 600.0
    """Seconds for which a model that moved stays."""
    moves_an_hour: Annotated[int, Field(ge=0)] = 12
    away_s: Seconds = 10.0
    """Seconds without an answer of a device's server after which its models come elsewhere."""
    start_s: Seconds = 600.0
    """Longest time that an engine has to be ready where it moves to."""
    drain_s: Annotated[float, Field(ge=0, le=1e6)] = 300.0
    """Longest time that requests have to end where their model moves away."""

    @property
    def rules(self) -> PlacementRules:
        """Rules of the deciding code."""
        return PlacementRules(
            gain=self.gain_percent / 100,
            gain_per_gib=self.gain_percent_per_gib / 100,
            rest_s=self.rest_s,
            moves_an_hour=self.moves_an_hour,
            calm=self.calm,
        )
