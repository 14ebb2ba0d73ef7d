"""Random worlds of more models than fit: drawn alike each time, each way served whole."""

from __future__ import annotations

from itertools import islice

import pytest

from benchmarks import roster, roster_worlds

pytestmark = pytest.mark.lab


def test_a_number_is_always_the_same_world() -> None:
    assert roster_worlds.draw(7, 50) == roster_worlds.draw(7, 50) != roster_worlds.draw(8, 50)


def test_popularity_falls_from_model_to_model() -> None:
    for number in range(20):
        rates = [tenant["rate"] for tenant in roster_worlds.draw(number, 50)["tenants"]]
        assert rates == sorted(rates, reverse=True) and 5 <= len(rates) <= 50


def test_each_way_serves_and_is_summed_up(capsys: pytest.CaptureFixture[str]) -> None:
    (world,) = islice(roster_worlds.drawn(201, 12), 1)
    found = {way: roster_worlds.served(world, way, 0) for way in roster_worlds.WAYS}
    assert all(figures.tokens_s > 0 for figures in found.values())
    assert found["subset"].within <= 1
    told = roster.summary([roster.WorldServed("one", "--first 1", found)] * 2)
    lines = capsys.readouterr().out.splitlines()
    heads = [line for line in lines if line.startswith("roster over")]
    assert [line.split(":")[0].split()[-1] for line in heads] == [*told]
    assert [*told] == ["swap-models", "swap-long", "sleep", "subset"]


def test_an_interval_is_around_its_mean() -> None:
    mean, low, high = roster.bounds([0.0, 1.0, 2.0])
    assert low < mean == 1 < high
    assert roster.bounds([4.0]) == [4.0, 4.0, 4.0]
