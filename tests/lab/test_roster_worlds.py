"""Random worlds of more models than fit: each is drawn the same again, and served to its end."""

from __future__ import annotations

from itertools import islice

import optuna
import pytest

from benchmarks import roster, roster_adversary, roster_worlds
from traces import SAMPLE

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


@pytest.mark.parametrize("number", [7, 14])
def test_worlds_in_which_the_roster_was_worse_than_swapping(number: int) -> None:
    """In these worlds the roster once had 0.83 and 0.84 of the tokens per second of swapping whole
    models, because sleeping models kept memory and turns were short. It now has at least
    `roster.LEAST` of them.
    """
    (world,) = islice(roster_worlds.drawn(number, 300), 1)
    ours, other = (roster_worlds.served(world, way, 0) for way in ("roster", "swap-models"))
    assert ours.tokens_s >= roster.LEAST * other.tokens_s


def test_the_adversary_proposes_worlds_that_are_served() -> None:
    trial = optuna.trial.FixedTrial(
        {"models": 5, "zipf": 1.0, "rate": 2.0, "deal": 3, "arrivals": "poisson"}
        | {"lengths": "short", "requests": 100, "hardware": "h200", "link_gb_s": 60.0}
        | {"sleep_s": 0.1, "wake_s": 0.1, "stop_s": 1.0, "start_s": 5.0}
    )
    world = roster_adversary.propose(trial)  # type: ignore[arg-type]
    assert roster_adversary.ratios(world | {"workload": world["workload"] | {"requests": 20}}, 0)


def test_a_report_from_before_a_sleep_is_not_taken_for_one_of_after_the_wake() -> None:
    """World in which a report sent before a sleep arrived after the wake and once ended the
    simulation with a `BadRevisionError`. It is served now.
    """
    trial = optuna.trial.FixedTrial(
        {"models": 32, "zipf": 1.4874654804603082, "rate": 3.3721132980891846, "deal": 5}
        | {"arrivals": "poisson", "lengths": "long", "requests": 400, "hardware": "gh200"}
        | {"link_gb_s": 69.15775921645805, "sleep_s": 0.34583997500838104}
        | {"wake_s": 0.045159185633897765, "stop_s": 0.44439179360719616}
        | {"start_s": 32.68898300399982}
    )
    world = roster_adversary.propose(trial)  # type: ignore[arg-type]
    assert roster_worlds.served(world, roster_worlds.OURS, 0).tokens_s > 0


def test_nothing_over_nothing_is_as_good() -> None:
    assert roster.ratio(0.0, 0.0) == 1.0 and roster.ratio(1.0, 2.0) == 0.5
    assert roster.ratio(1.0, 0.0) == float("inf")


def test_a_trace_brings_arrivals_and_lengths_and_nothing_else_changes() -> None:
    (world,) = islice(roster_worlds.drawn(201, 12, SAMPLE), 1)
    plain = roster_worlds.draw(int(world["title"].split()[-1]), 12)
    assert world["tenants"] == plain["tenants"] and world["hardware"] == plain["hardware"]
    assert roster_worlds.served(world, "roster", 0).tokens_s > 0
