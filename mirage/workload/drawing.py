"""Gaps between arrivals and lengths of requests, drawn one at a time."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from mirage.workload.lengths import Lengths


def poisson_gaps(rng: random.Random) -> Iterator[float]:
    """Endless exponential gaps with mean 1."""
    while True:
        yield rng.expovariate(1)


def gamma_gaps(rng: random.Random, cv: float) -> Iterator[float]:
    """Endless gamma gaps with mean 1 and standard deviation `cv`: above 1 bursty, below 1 even."""
    shape = cv**-2
    while True:
        yield rng.gammavariate(shape, 1 / shape)


def lengths(rng: random.Random, shape: Lengths) -> tuple[int, int]:
    """Prompt and output tokens of one request, each at least 1."""
    prompt = lognormal(rng, shape.prompt_mean, shape.prompt_sigma)
    return prompt, lognormal(rng, shape.output_mean, shape.output_sigma)


def lognormal(rng: random.Random, mean: float, sigma: float) -> int:
    """A whole number of at least 1, lognormal with this mean; `sigma` is that of the logarithm."""
    return max(1, round(rng.lognormvariate(math.log(mean) - sigma**2 / 2, sigma)))
