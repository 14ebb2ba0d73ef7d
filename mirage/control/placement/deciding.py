"""One placement decision: the placement, the steps to it, and the reason."""

from __future__ import annotations

from dataclasses import dataclass

from mirage.control.placement.facts import PlacementFacts
from mirage.control.placement.judging import PlacementJudge, Sentence
from mirage.control.placement.placed import DevicePlacement
from mirage.control.placement.reasons import reasoned
from mirage.control.placement.rules import DEFAULTS, PlacementPast, PlacementRules
from mirage.control.placement.searching import PlacementSearch, ReachedPlacement
from mirage.control.placement.steps import MoveStep
from mirage.units import GIB, size


@dataclass(frozen=True, slots=True)
class PlacementDecision:
    """Decided placement, with the steps from the present one."""

    placement: DevicePlacement
    steps: tuple[MoveStep, ...]
    why: str
    """Reason of the whole decision, for an operator."""
    past: PlacementPast
    """State to be passed to the next decision."""
    before: Sentence | None
    """Verdict on the present placement; None if none was judged."""
    after: Sentence | None
    evaluations: int = 0


class Placer:
    """Decides placements by rules. It has no state: the past is an argument and a result."""

    def __init__(self, rules: PlacementRules = DEFAULTS) -> None:
        self.rules = rules

    def decide(
        self,
        facts: PlacementFacts,
        judge: PlacementJudge,
        present: DevicePlacement,
        past: PlacementPast,
        now: float,
    ) -> PlacementDecision:
        """Decide at the time `now` in seconds. The present placement has to fit into memory.

        Moves count from `now` on, whether they are carried out or not. Raise `JudgeOver` if there
        was no time to judge the present placement.
        """
        present = present.within(facts)
        if past.holds(facts, present, self.rules):
            why = f"loads are within {self.rules.band:.0%} of those that it was found best for"
            return PlacementDecision(present, (), why, past, None, None)
        search = PlacementSearch(self.rules, facts, judge, present, past, now)
        best, first = search.best(), search.first
        asked = search.court.asked
        pays = best.worth - first.worth > self.rules.gain or search.urgent(best.path)
        if not best.path.steps or not pays:
            if (spare := search.spare()) is not None:
                return self._closed(facts, present, search, spare, now)
            return PlacementDecision(
                present,
                (),
                _stays(first.sentence, best, self.rules, search.limit),
                search.kept(),
                first.sentence,
                first.sentence,
                asked,
            )
        after = past.after(best.path.moved, now)
        steps = reasoned(facts, best.path, present, first.sentence, best.sentence)
        why = (
            f"{first.sentence.part:.1%} of {first.sentence.asked:,.0f} requests within limits "
            f"before, {best.sentence.part:.1%} after"
        )
        return PlacementDecision(
            best.path.reached, steps, why, after, first.sentence, best.sentence, asked
        )

    def _closed(
        self,
        facts: PlacementFacts,
        present: DevicePlacement,
        search: PlacementSearch,
        spare: ReachedPlacement,
        now: float,
    ) -> PlacementDecision:
        """Return the decision to close a replica."""
        before, path = search.first.sentence, spare.path
        why = (
            f"{spare.sentence.part:.1%} of {before.asked:,.0f} requests are within limits without "
            f"a replica of {path.moved[0]}, as with it"
        )
        steps = reasoned(facts, path, present, before, spare.sentence)
        past, asked = search.past.after(path.moved, now), search.court.asked
        return PlacementDecision(path.reached, steps, why, past, before, spare.sentence, asked)


def _stays(first: Sentence, best: ReachedPlacement, rules: PlacementRules, limit: str) -> str:
    kept = f"{first.part:.1%} of {first.asked:,.0f} requests are within limits as it is"
    gain = best.sentence.part - first.part
    need = rules.gain + rules.gain_per_gib * best.nbytes / GIB
    more = (
        f"the best that was found adds {gain:.2%} for {size(best.nbytes)} that are loaded, and "
        f"{need:.2%} is asked for"
        if gain > 0
        else "nothing that was found is better"
    )
    return f"{kept}: {more}" + (f" ({limit})" if limit else "")
