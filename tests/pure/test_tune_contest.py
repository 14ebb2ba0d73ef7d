"""Contest between the best candidates of a search and fixed settings, and sentences about it."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tune_case import write, write_trace

from mirage.tools.report.slo import Slo
from mirage.tools.tune import answer as answering
from mirage.tools.tune import contest
from mirage.tools.tune.contest import Contest, entrants, winner
from mirage.tools.tune.goals import CompletedRequest, Goal, WindowResult
from mirage.tools.tune.question import TuneOptions, ask
from mirage.tools.tune.search import Searched

pytestmark = pytest.mark.pure

RATE = Goal("requests", Slo())
TTFT = Goal("ttft_p50", Slo())


def result(ttft: float, count: int = 1, duration_s: float = 1.0) -> WindowResult:
    return WindowResult(
        tuple([CompletedRequest(ttft, 0.01, 0.02, ttft + 0.1, 11)] * count), duration_s
    )


def test_the_median_wins_and_not_the_best_repeat() -> None:
    lucky = [result(0.01), result(0.5), result(0.6)]
    steady = [result(0.2), result(0.2), result(0.3)]
    assert winner(TTFT, {"tuned": lucky, "default": steady}) == "default"


def test_the_search_keeps_what_is_as_good() -> None:
    one, other = [result(0.2, 1000, 1.0)], [result(0.2, 1004, 1.0)]
    assert winner(RATE, {"tuned": one, "default": other}) == "tuned"
    assert winner(RATE, {"tuned": one, "default": [result(0.2, 1006, 1.0)]}) == "default"


def test_one_that_completed_nothing_does_not_win() -> None:
    nothing = [WindowResult((), 5.0)]
    assert winner(TTFT, {"tuned": nothing, "default": [result(9.0)]}) == "default"
    assert winner(RATE, {"tuned": [result(9.0)], "default": nothing}) == "tuned"


@pytest.fixture(scope="module")
def question(tmp_path_factory: pytest.TempPathFactory):
    folder: Path = tmp_path_factory.mktemp("contest")
    write(folder)
    return ask(folder / "c.yaml", TuneOptions(str(write_trace(folder)), "h100"))


def answered(question, *choices, best: float = 30.0):
    """Stand-in for a recommendation: the parts that the contest reads. The first of `choices` is
    its answer.
    """
    trials = [Searched(n, c, "complete", 10.0 - n, {}) for n, c in enumerate(choices)]
    pruned = Searched(99, {"tbt_ms": 1.0}, "pruned", None, {})
    percents = {contest.fixed_name(p): float(p == best) for p in contest.FIXED}
    return SimpleNamespace(
        goal=RATE,
        trials=[pruned, *trials],
        config=question.space.apply(choices[0]),
        searched=percents,
    )


def test_who_enters(question) -> None:
    one, two, three = {"serve": "growth"}, {"lend_percent": 0.0}, {"lend_percent": 25.0}
    answer = answered(question, one, one, {}, two, three)
    found = entrants(question, answer, 2)
    assert list(found) == ["tuned", "trial 3", "default", "fixed 30 %"]
    assert found["tuned"].remap.serve == "growth"
    assert found["trial 3"].remap.lend_percent == 0.0
    assert found["default"] == question.config
    assert found["fixed 30 %"].remap.max_percent == 30


def test_a_choice_that_was_tried_twice_has_the_place_of_its_best_trial() -> None:
    one, two, three = {"serve": "growth"}, {}, {"lend_percent": 25.0}
    tried = ((one, 1.0), (two, 1.0), (three, 2.0), (one, 1.0), (two, 3.0))
    trials = [Searched(n, c, "complete", value, {}) for n, (c, value) in enumerate(tried)]
    assert answering._best(RATE, trials[:4]) == [three, one, two]
    assert answering._best(RATE, trials) == [two, three, one]


def test_no_configuration_enters_twice(question) -> None:
    assert list(entrants(question, answered(question, {}), 3)) == ["tuned", "fixed 30 %"]


@pytest.mark.parametrize(
    ("won", "end"),
    [
        ("tuned", "the search was right, and tuned.yaml is its answer."),
        ("default", "the configuration as it is was best, and tuned.yaml is that."),
        ("trial 3", "tuned.yaml is trial 3."),
    ],
)
def test_it_is_said_with_its_spread(question, won: str, end: str) -> None:
    answer = answered(question, {})
    results = {won: [result(1.0, 2), result(1.0, 4), result(1.0, 3)], "other": [result(1.0)] * 3}
    made = Contest({won: question.config, "other": question.config}, results, won, 4)
    assert contest.sentence(answer, made) == (
        "On the real engines, median of 3 runs of 4 unseen requests, requests was: "
        f"{won} 3.000 (2.000 to 4.000), other 1.000 (1.000 to 1.000); {end}"
    )
    single = replace(made, results={won: results[won][:1]})
    assert "one run of 4 unseen" in contest.sentence(answer, single)
    assert "2.000;" in contest.sentence(answer, single)
