"""Drawn worlds: the same each time, and harmed if the rule has no bound."""

from __future__ import annotations

import pytest

from benchmarks.worlds import draw, harmed, ratios

pytestmark = pytest.mark.lab


@pytest.mark.rare
@pytest.mark.parametrize("number", [31, 282])
def test_uncapped_they_are_harmed(number: int) -> None:
    """Control: without the bound on decode steps these worlds are harmed. Otherwise the kept worlds
    would prove nothing.

    In the second one, requests are held again and again while their model waits for its turn.
    """
    sharing = draw(number)["sharing"] | {"drain": False}
    world = draw(number) | {"ablations": {"decode_cap": False}, "sharing": sharing}
    assert harmed(ratios(world, 7))


def test_a_drawn_world_is_the_same_each_time() -> None:
    assert draw(5) == draw(5) != draw(6)
