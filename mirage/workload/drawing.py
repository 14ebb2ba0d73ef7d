"""Gaps between arrivals and lengths of requests, drawn one at a time, without end."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from mirage.workload.lengths import Lengths


def poisson_gaps(rng: random.Random) -> Iterator[float]:
    """Gaps of mean 1 whose standard deviation is their mean."""
    while True:
        yield rng.expovariate(1)


def gamma_gaps(rng: random.Random, cv: float) -> Iterator[float]:
    """Gaps of mean 1 whose standard deviation is `cv`: above 1 they are bursty, below even."""
    shape = cv**-2
    while True:
        yield rng.gammavariate(shape, 1 / shape)


def lengths(rng: random.Random, shape: Lengths) -> tuple[int, int]:
    """Prompt and output tokens of one request, at least one each."""
    prompt = lognormal(rng, shape.prompt_mean, shape.prompt_sigma)
    return prompt, lognormal(rng, shape.output_mean, shape.output_sigma)


def lognormal(rng: random.Random, mean: float, sigma: float) -> int:
    """Whole number from 1, lognormal with the given mean."""
    return max(1, round(rng.lognormvariate(math.log(mean) - sigma**2 / 2, sigma)))
