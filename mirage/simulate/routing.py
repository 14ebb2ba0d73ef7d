"""Experts that the steps of a simulated mixture route to, as expected numbers. Pure.

The frequency at which one token needs an expert falls with the expert's rank by a Zipf law, in each
layer with an exponent of its own. The ranking differs from layer to layer and changes nothing, so
experts are numbered from the rarest to the most frequent. Nothing is drawn for a step: an expert
counts by the probability that at least one token of the step needs it.
"""

from __future__ import annotations

from functools import lru_cache
from random import Random
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from mirage.config import Strict
from mirage.profiles import Model
from mirage.streaming.routing import OBSERVE_CALLS, WINDOW

SPREAD = 0.25
"""Largest relative deviation of a layer's exponent from the mean."""

Floats = npt.NDArray[np.float64]


class RouterModel(Strict):
    """Preferences of a mixture's routers for some experts."""

    skew: Annotated[float, Field(ge=0, le=20)]
    """Mean exponent of the layers' Zipf laws; 0 makes all experts equally frequent."""


class Routers:
    """Routers of one mixture, one in each layer, which choose experts; `seed` draws how uneven
    the choice of each is."""

    def __init__(self, model: Model, routing: RouterModel, seed: str) -> None:
        rng = Random(seed)
        exponents = [
            routing.skew * rng.uniform(1 - SPREAD, 1 + SPREAD) for _ in range(model.layers)
        ]
        ranks = np.arange(model.experts, 0, -1, dtype=np.float64)
        rows = [_needed(ranks**-exponent, model.active_experts) for exponent in exponents]
        self.needed = np.array(rows)
        """Probability that one token needs an expert, by layer and expert, the rarest expert
        first.
        """
        self.routed = lru_cache(maxsize=4096)(self._routed)

    def _routed(self, tokens: int) -> tuple[float, ...]:
        """At index g: number of the g rarest experts of each layer that a step of `tokens` tokens
        routes to, summed over layers.
        """
        some = 1 - (1 - self.needed) ** tokens
        return (0.0, *map(float, np.cumsum(some.sum(axis=0))))


class Observed:
    """Average of `Routers.routed` over an engine's steps, as
    `mirage.streaming.routing.RoutingCounts` computes it.
    """

    def __init__(self, routers: Routers) -> None:
        self._routers = routers
        self._sums: Floats = np.zeros(routers.needed.shape[1] + 1)
        self._weight = 0.0
        self._steps = self._looked_at = 0
        self._routed: tuple[float, ...] = ()

    def step(self, tokens: int, steps: int) -> None:
        """Add `steps` steps of `tokens` tokens each to the observed use of experts."""
        kept = (1 + 1 / WINDOW) ** -steps
        self._sums = self._sums * kept + np.array(self._routers.routed(tokens)) * (1 - kept)
        self._weight = self._weight * kept + 1 - kept
        self._steps += steps

    def routed(self) -> tuple[float, ...]:
        """At index g the number of each layer's g coldest experts that a step routes to, summed
        over layers; empty in the first steps."""
        if self._steps >= self._looked_at + OBSERVE_CALLS:
            self._routed = tuple(map(float, self._sums / self._weight))
            self._looked_at = self._steps
        return self._routed


def _needed(shares: Floats, count: int) -> Floats:
    """Probability that a token needs each expert, if it needs `count` different ones, in proportion
    to `shares`.

    The sum is `count`, and none is more than 1: the rest of an expert that reaches 1 goes to
    others.
    """
    needed = np.zeros_like(shares)
    free = np.ones(len(shares), dtype=bool)
    while True:
        needed[free] = (count - (~free).sum()) * shares[free] / shares[free].sum()
        beyond = free & (needed > 1)
        if not beyond.any():
            return needed
        needed[beyond] = 1.0
        free &= ~beyond
