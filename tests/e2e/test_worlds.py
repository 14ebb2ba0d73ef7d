"""Worlds in which moving layers once did harm do none any more, on several seeds."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import yaml

from benchmarks.worlds import Ratios, draw, harmed, ratios

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

WORLDS = sorted((Path(__file__).parents[2] / "configs/experiments/worlds").glob("*.yaml"))


@cache
def simulated(file: Path, seed: int) -> Ratios:
    return ratios(yaml.safe_load(file.read_text()), seed)


@pytest.mark.parametrize("seed", [7, pytest.param(8, marks=pytest.mark.rare)])
@pytest.mark.parametrize("file", WORLDS, ids=lambda file: file.stem)
def test_nobody_is_worse_off_than_with_pooling(file: Path, seed: int) -> None:
    found = simulated(file, seed)
    assert not harmed(found), found


def test_some_gain_much() -> None:
    """Or memory does not move at all, which harms nobody either."""
    gains = [simulated(file, 7)["tokens/s"] for file in WORLDS]
    assert max(gains) > 1.2


@pytest.mark.drawn("number")
@pytest.mark.parametrize("number", [31, 282])
def test_uncapped_they_are_harmed(number: int) -> None:
    """What was seen before there was a bound, or these worlds would prove nothing.

    In the second, requests are held again and again while their model waits for its turn.
    """
    sharing = draw(number)["sharing"] | {"drain": False}
    world = draw(number) | {"ablations": {"decode_cap": False}, "sharing": sharing}
    assert harmed(ratios(world, 7))


def test_a_drawn_world_is_the_same_each_time() -> None:
    assert draw(5) == draw(5) != draw(6)
