"""Protocol of a judge of placements, and a court that limits how often it is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from mirage.control.placement.facts import PlacementFacts
from mirage.control.placement.placed import DevicePlacement


class ModelVerdict(NamedTuple):
    """Verdict on one model in one window: its requests, and those within its limits."""

    within: float
    """Number of requests that are served within the model's limits."""
    asked: float


WindowVerdict = Mapping[str, ModelVerdict]
"""Verdict of each model that has requests in the window."""


class JudgeOver(Exception):
    """Error: the judge's time is over, and it judges nothing more."""


class PlacementJudge(Protocol):
    """Judge that predicts a window under a placement. Equal arguments give equal results.

    A judge whose time is limited raises `JudgeOver` for everything that is asked later.
    """

    def __call__(self, placement: DevicePlacement, window: int) -> WindowVerdict: ...


class Sentence(NamedTuple):
    """Verdict on a placement over all windows."""

    models: WindowVerdict

    @property
    def within(self) -> float:
        return sum(each.within for each in self.models.values())

    @property
    def asked(self) -> float:
        return sum(each.asked for each in self.models.values())

    @property
    def part(self) -> float:
        """Part of all requests that are within their limits; 1 if there is none."""
        return self.within / self.asked if self.asked else 1.0

    def part_of(self, model: str) -> float:
        """Return the part of a model's requests that are within their limits; 1 if there is
        none."""
        within, asked = self.models.get(model, ModelVerdict(0.0, 0.0))
        return within / asked if asked else 1.0


class PlacementCourt:
    """Caller of a judge for all windows of a placement, up to a number of evaluations. Answers are
    kept."""

    def __init__(self, facts: PlacementFacts, judge: PlacementJudge, evaluations: int) -> None:
        """Make a court. `evaluations` counts windows of placements; the first placement is judged
        in any case."""
        self._windows, self._judge, self._most = range(len(facts.windows)), judge, evaluations
        self._known: dict[DevicePlacement, Sentence] = {}
        self.asked = 0
        """Number of evaluations so far."""
        self.is_over = False
        """True once the judge has raised `JudgeOver`."""

    @property
    def is_open(self) -> bool:
        """True if the budget allows one more placement to be judged."""
        if self.is_over:
            return False
        return not self._known or self.asked + len(self._windows) <= self._most

    def sentence(self, placement: DevicePlacement) -> Sentence | None:
        """Return the verdict on a placement over all windows; None if the budget or the judge's
        time is used up.

        Raise `JudgeOver` if there was no time even for the first placement.
        """
        if placement not in self._known:
            if not self.is_open:
                return None
            try:
                verdicts = [self._judge(placement, w) for w in self._windows]
            except JudgeOver:
                if not self._known:
                    raise
                self.is_over = True
                return None
            self.asked += len(self._windows)
            self._known[placement] = _summed(verdicts)
        return self._known[placement]


def _summed(verdicts: list[WindowVerdict]) -> Sentence:
    models: dict[str, ModelVerdict] = {}
    for verdict in verdicts:
        for name, (within, asked) in verdict.items():
            before = models.get(name, ModelVerdict(0.0, 0.0))
            models[name] = ModelVerdict(before.within + within, before.asked + asked)
    return Sentence(models)
