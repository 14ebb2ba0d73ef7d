"""Worlds in which moving layers once did harm: it does none now, on several seeds."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import yaml

from benchmarks import ablations
from benchmarks.fixed import endless
from benchmarks.worlds import LEAST_TOKENS, MOST_E2E, Ratios, harmed, ratios
from mirage.simulate.run import run

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

WORLDS = sorted((Path(__file__).parents[2] / "benchmarks/experiments/worlds").glob("*.yaml"))


@cache
def simulated(file: Path, seed: int) -> Ratios:
    return ratios(yaml.safe_load(file.read_text()), seed)


@pytest.mark.parametrize("seed", [7, pytest.param(8, marks=pytest.mark.rare)])
@pytest.mark.parametrize("file", WORLDS, ids=lambda file: file.stem)
def test_nobody_is_worse_off_than_with_pooling(file: Path, seed: int) -> None:
    """In each kept world `mirage` is no worse than `pooled` beyond the bounds. Longer tails are
    accepted if endless memory has them too.
    """
    found = simulated(file, seed)
    if harmed(found):
        assert found["tokens/s"] >= LEAST_TOKENS, found
        world = yaml.safe_load(file.read_text())
        free = endless(world, {seed: run(ablations.setup(world), "pooled", seed)})
        for name in ("E2E mean", "E2E P99"):
            assert found[name] <= max(MOST_E2E, free[name]), (found, free)


def test_some_gain_much() -> None:
    """In the best of these worlds tokens per second rise by more than 20 %. Otherwise a rule that
    moves nothing would pass too.
    """
    gains = [simulated(file, 7)["tokens/s"] for file in WORLDS]
    assert max(gains) > 1.2
