"""Recommended `replay.load`, and the reason given if no load shows a gain from lending layers."""

from __future__ import annotations

import pytest

from mirage.tools.tune.recommending import MOST_LOAD, OfferedLoad

pytestmark = pytest.mark.pure


def load(pooled: float, mirage: float) -> OfferedLoad:
    return OfferedLoad(8.0, {"static": pooled / 2, "pooled": pooled, "mirage": mirage})


@pytest.mark.parametrize(
    ("pooled", "mirage", "recommended"),
    [
        (0.25, 1.0, 0.5),
        (0.36, 0.71, 0.51),
        (0.7, 2.0, MOST_LOAD),  # the middle is beyond what compute bears
        (0.79, 0.81, 0.8),
    ],
)
def test_it_is_the_middle_of_what_lending_adds_but_compute_must_not_decide(
    pooled: float, mirage: float, recommended: float
) -> None:
    found = load(pooled, mirage)
    assert found.recommended == recommended
    said = found.said()
    assert said.startswith(
        f"recommended replay.load: {recommended:g}; pooled has too many requests from {pooled:g}"
    )
    assert ("at most 0.8" in said) == (recommended == MOST_LOAD)


@pytest.mark.parametrize("mirage", [0.5, 0.4])
def test_where_lending_bears_no_more_no_load_shows_it(mirage: float) -> None:
    found = load(0.5, mirage)
    assert found.recommended is None
    assert found.said().endswith("mirage bears no more")


@pytest.mark.parametrize("pooled", [0.8, 0.9])
def test_where_compute_decides_first_no_load_shows_it(pooled: float) -> None:
    found = load(pooled, 1.2)
    assert found.recommended is None
    assert f"pooled bears {pooled:g} of what the machine computes" in found.said()


def test_two_that_are_equal_when_rounded_are_no_range() -> None:
    assert load(0.5, 0.5001).recommended is None


def test_the_parts_are_said_by_policy() -> None:
    assert load(0.25, 1.0).parts() == (
        "too many requests: static from 0.12 on, pooled from 0.25 on, mirage from 1 on, as parts "
        "of the 8 requests/s that the machine computes without a limit of KV memory"
    )
