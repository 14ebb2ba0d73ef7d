"""Search for the best placement that can be reached: proposals, single changes, a judge."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import NamedTuple

from mirage.control.placement.books import device_bytes, opened_bytes
from mirage.control.placement.facts import PlacementFacts
from mirage.control.placement.judging import PlacementCourt, PlacementJudge, Sentence
from mirage.control.placement.neighbours import neighbours
from mirage.control.placement.placed import DevicePlacement
from mirage.control.placement.pressure import Pressures
from mirage.control.placement.proposing import aligned, proposals
from mirage.control.placement.rules import MISSED, PlacementPast, PlacementRules
from mirage.control.placement.steps import MovePath, path_towards
from mirage.units import GIB

PROPOSED = 0.5
"""Part of all evaluations that whole proposals may take; the rest is for the local search."""


class ReachedPlacement(NamedTuple):
    """Placement that can be reached, with its verdict and its worth."""

    path: MovePath
    sentence: Sentence
    nbytes: int
    """Bytes that have to be loaded for it."""
    worth: float
    """Part of requests within limits, less the price of the loaded bytes."""


class PlacementSearch:
    """Search for the best placement that can be reached from the present one."""

    def __init__(
        self,
        rules: PlacementRules,
        facts: PlacementFacts,
        judge: PlacementJudge,
        present: DevicePlacement,
        past: PlacementPast,
        now: float,
    ) -> None:
        self._rules, self._facts, self._present, self.past = rules, facts, present, past
        self._absent = {m.name for m in facts.models if not present.of(m.name)}
        self._resting = past.resting(rules, now) - self._absent
        self._left = past.left(rules, now) if present.places else inf
        self.pressures = Pressures(facts)
        self.court = PlacementCourt(facts, judge, rules.evaluations)
        sentence = self.court.sentence(present)
        assert sentence is not None
        self.first = ReachedPlacement(MovePath((), present, ()), sentence, 0, sentence.part)

    @property
    def limit(self) -> str:
        """Limits that restrict moves now, in words; empty if there are none."""
        said = []
        if self._resting:
            said.append(
                f"{', '.join(sorted(self._resting))} moved less than {self._rules.rest_s:g} s ago"
            )
        if self._left < self._rules.moves_an_hour:
            said.append(f"{self._left} of {self._rules.moves_an_hour} moves an hour are left")
        if self.court.is_over:
            said.append(f"time was over after {self.court.asked} evaluations")
        return "; ".join(said)

    def urgent(self, found: MovePath) -> bool:
        """True if a model with requests and without a process gets one."""
        return any(self._facts.asked(name) > 0 and found.reached.of(name) for name in self._absent)

    def kept(self) -> PlacementPast:
        """Return the past after a decision to stay with the present placement. That placement
        counts as the best for these facts, unless a limit (`limit`) may have kept a better one from
        being reached or judged."""
        if self.limit:
            return replace(self.past, settled=None, placement=None)
        return replace(self.past, settled=self._facts, placement=self._present)

    def spare(self) -> ReachedPlacement | None:
        """Return the present placement without one replica that can be spared: the first that loses
        next to no requests, where those that leave least pressure are tried first.

        None if there is no such replica: see `PlacementRules.calm`.
        """
        least = self.first.sentence.part - MISSED
        found = []
        for model in self._facts.models:
            several = len(self._present.awake(model.name)) > 1 and not model.pins
            if not self._rules.calm or not several or model.name in self._resting:
                continue
            for device in self._present.awake(model.name):
                without = self._present.out(model.name, device)
                pressure = max(self.pressures.of(without, d) for d in without.awake(model.name))
                if pressure <= self._rules.calm:
                    found.append((pressure, model.name, device, without))
        for _, _, _, without in sorted(found, key=lambda each: each[:3]):
            sentence = self.court.sentence(without)
            if sentence is not None and sentence.part >= least:
                path = path_towards(self._facts, self._present, without, budget=self._left)
                if path.steps:
                    return ReachedPlacement(path, sentence, 0, sentence.part)
        return None

    @property
    def hopeless(self) -> bool:
        """True if even a placement that serves all requests within limits would not be chosen."""
        wanted = any(self._facts.asked(name) > 0 for name in self._absent)
        return not wanted and 1 - self.first.worth <= self._rules.gain

    def best(self) -> ReachedPlacement:
        """Return the best of whole proposals, improved by single changes, without changes that
        bring nothing; the present placement if nothing is better, or nothing could be chosen
        (`hopeless`)."""
        found = self.first
        if self.hopeless:
            return found
        most = self._rules.evaluations * PROPOSED
        for proposed in proposals(self.pressures):
            if self.court.asked >= most:
                break
            found = self._better(found, aligned(self._facts, self._present, proposed))
        return self._pruned(self._improved(found))

    def _improved(self, found: ReachedPlacement) -> ReachedPlacement:
        """Return the result of a local search, which goes on from the first change that is
        better."""
        improved = True
        while improved and self.court.is_open:
            improved = False
            for wanted in neighbours(self.pressures, found.path.reached, found.sentence):
                better = self._better(found, wanted)
                if better is not found:
                    found, improved = better, True
                    break
                if not self.court.is_open:
                    break
        return found

    def _pruned(self, found: ReachedPlacement) -> ReachedPlacement:
        """Return `found` without the moves of models that gain nothing by them."""
        for name in sorted(set(found.path.moved)):
            without = found.path.reached.instead(name, self._present.of(name))
            found = self._better(found, without)
        return found

    def _better(self, found: ReachedPlacement, wanted: DevicePlacement) -> ReachedPlacement:
        """Return the placement that is reached towards `wanted`, if it is better; else `found`."""
        for model in self._facts.models:
            if model.pins:
                wanted = wanted.instead(model.name, self._present.of(model.name))
        way = path_towards(
            self._facts, self._present, wanted, resting=self._resting, budget=self._left
        )
        if not way.steps and found is self.first:
            return found
        if (sentence := self.court.sentence(way.reached)) is None:
            return found
        nbytes = opened_bytes(self._facts, self._present, way.reached)
        worth = sentence.part - self._rules.gain_per_gib * nbytes / GIB
        other = ReachedPlacement(way, sentence, nbytes, worth)
        return other if self._rank(other) > self._rank(found) else found

    def _rank(self, found: ReachedPlacement) -> tuple[float, ...]:
        """Return the rank: worth first, then the number of requested models that are awake, then of
        models with a process.

        Then come fewest moves, fewest bytes, and least pressure.
        """
        facts, reached = self._facts, found.path.reached
        awake = sum(1 for m in facts.models if reached.awake(m.name) and facts.asked(m.name) > 0)
        nbytes = sum(device_bytes(facts, reached, d.name) for d in facts.devices)
        return (
            round(found.worth, 6),
            awake,
            len(reached.by_model),
            -len(found.path.moved),
            -nbytes,
            -self.pressures.worst(reached),
        )
