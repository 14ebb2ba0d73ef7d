"""Contest on real engines between the search's best, the unchanged file and a fixed percentage:
entrants and winner. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from mirage.config import Config
from mirage.tools.tune.answer import DEFAULT, TUNED, Recommendation, fixed_name
from mirage.tools.tune.choosing import LEAST_GAIN
from mirage.tools.tune.goals import Goal, WindowResult, figures
from mirage.tools.tune.question import Question
from mirage.tools.tune.search import in_order
from mirage.tools.tune.space import FIXED, fixed
from mirage.tools.tune.table import number


@dataclass(frozen=True)
class Contest:
    """Measurements on real engines: entrants by name, with a result for each repeat."""

    configs: Mapping[str, Config]
    results: Mapping[str, Sequence[WindowResult]]
    winner: str
    requests: int
    """Number of requests in each run."""

    @property
    def config(self) -> Config:
        """Configuration of the winner."""
        return self.configs[self.winner]


def entrants(question: Question, answer: Recommendation, count: int) -> dict[str, Config]:
    """The answer and the next best trials, `count` together; the unchanged configuration; and the
    best fixed percentage. No configuration enters twice.
    """
    goal, as_is = answer.goal, question.config
    found = {TUNED: answer.config}
    for trial in in_order(goal, answer.trials):
        if len(found) == count:
            break
        config = question.space.apply(trial.choice)
        if config not in found.values() and trial.choice:
            found[f"trial {trial.number}"] = config
    percent = FIXED[0]
    for each in FIXED:
        one, other = answer.searched[fixed_name(each)], answer.searched[fixed_name(percent)]
        percent = each if goal.better(one, other) else percent
    for name, config in ((DEFAULT, as_is), (fixed_name(percent), fixed(as_is, percent))):
        if config not in found.values():
            found[name] = config
    return found


def values(goal: Goal, results: Sequence[WindowResult]) -> list[float]:
    """Value of each repeat, by the goal."""
    return [goal.value([result]) for result in results]


def winner(goal: Goal, results: Mapping[str, Sequence[WindowResult]]) -> str:
    """Name of the winner by the medians of the repeats. The first entrant, the search's answer,
    is the best to begin with; of the others, in their order, each becomes the best if it is better
    than the best so far by at least `LEAST_GAIN`.
    """
    worth = {name: median(values(goal, each)) for name, each in results.items()}
    best = next(iter(worth))
    for name, value in worth.items():
        if goal.better(value, worth[best]) and goal.gain(value, worth[best]) >= LEAST_GAIN:
            best = name
    return best


def middle(goal: Goal, results: Sequence[WindowResult]) -> dict[str, float]:
    """All objectives, each as the median of the repeats."""
    found = [figures([result], goal.slo) for result in results]
    return {key: median(each[key] for each in found) for key in found[0]}


def sentence(answer: Recommendation, contest: Contest) -> str:
    """Results of the contest in one sentence."""
    goal = answer.goal
    said = []
    for name, results in contest.results.items():
        worth = sorted(values(goal, results))
        spread = f" ({number(worth[0], 3)} to {number(worth[-1], 3)})" if len(worth) > 1 else ""
        said.append(f"{name} {number(median(worth), 3)}{spread}")
    repeats = len(contest.results[contest.winner])
    runs = f"median of {repeats} runs" if repeats > 1 else "one run"
    ends = {
        TUNED: "the search was right, and tuned.yaml is its answer",
        DEFAULT: "the configuration as it is was best, and tuned.yaml is that",
    }
    end = ends.get(contest.winner, f"tuned.yaml is {contest.winner}")
    return (
        f"On the real engines, {runs} of {contest.requests} unseen requests, {goal.objective} was: "
        f"{', '.join(said)}; {end}."
    )
