"""Reasons of steps in words, with numbers and units."""

from __future__ import annotations

from mirage.control.placement.books import device_bytes, held
from mirage.control.placement.facts import PlacementFacts
from mirage.control.placement.judging import Sentence
from mirage.control.placement.placed import DevicePlacement, Stand
from mirage.control.placement.pressure import Pressures
from mirage.control.placement.steps import MovePath, MoveStep, MoveVerb
from mirage.units import size


def reasoned(
    facts: PlacementFacts,
    way: MovePath,
    present: DevicePlacement,
    before: Sentence,
    after: Sentence,
) -> tuple[MoveStep, ...]:
    """Return the steps of the path `way`, each with its reason.

    `before` is the verdict on the placement `present`, `after` that on the one that is reached.
    """
    reasons = _Reasons(facts, way, present, before, after)
    return tuple(step._replace(why=reasons.why(step)) for step in way.steps)


class _Reasons:
    """Numbers before and after a path, for the reasons of its steps."""

    def __init__(
        self,
        facts: PlacementFacts,
        way: MovePath,
        present: DevicePlacement,
        before: Sentence,
        after: Sentence,
    ) -> None:
        self._facts, self._present, self._reached = facts, present, way.reached
        self._before, self._after, self._pressures = before, after, Pressures(facts)

    def why(self, step: MoveStep) -> str:
        match step.verb:
            case MoveVerb.BRING:
                nbytes = self._facts.model[step.model].parameters
                return f"{size(nbytes)} that {self._facts.device[step.device].machine} lacks"
            case MoveVerb.START | MoveVerb.WAKE:
                return f"{self._takes(step)}; {self._within(step.model)}"
            case MoveVerb.ROUTE:
                devices = ", ".join(self._reached.devices[step.model])
                return f"{step.model} is served by {devices}"
            case MoveVerb.DRAIN:
                return f"{self._elsewhere(step)}; {self._pressure(step.device)}"
            case MoveVerb.SLEEP:
                return f"it keeps {size(self._facts.model[step.model].asleep)} of {step.device}"
            case MoveVerb.STOP:
                return self._freed(step)

    def _takes(self, step: MoveStep) -> str:
        model, device = self._facts.model[step.model], self._facts.device[step.device]
        awake = self._reached.of(step.model).get(step.device) is Stand.AWAKE
        least = model.least if awake else model.asleep
        if step.verb is MoveVerb.WAKE:
            seconds = self._facts.wake_s(step.model, step.device)
            how = f"{size(model.parameters)} over the link in {seconds:.2g} s"
        else:
            seconds = self._facts.start_s(step.model, step.device)
            how = f"{size(model.parameters)} from disk in {seconds:.2g} s"
        return f"{size(least)} of {size(device.nbytes)}, {how}"

    def _within(self, model: str) -> str:
        asked = self._after.models.get(model)
        if asked is None:
            return "nobody asks for it in these windows"
        before, after = self._before.part_of(model), self._after.part_of(model)
        requests = f"{before:.1%} of its {asked.asked:,.0f} requests within limits before"
        return f"{requests}, {after:.1%} after"

    def _elsewhere(self, step: MoveStep) -> str:
        others = [name for name in self._reached.awake(step.model) if name != step.device]
        return f"it has {', '.join(others)}" if others else "it is not worth its memory awake"

    def _pressure(self, device: str) -> str:
        before = self._pressures.of(self._present, device)
        after = self._pressures.of(self._reached, device)
        return f"pressure of {device} goes from {before:.2f} to {after:.2f}"

    def _freed(self, step: MoveStep) -> str:
        stand = self._present.of(step.model).get(step.device, Stand.AWAKE)
        free = self._facts.device[step.device].nbytes - device_bytes(
            self._facts, self._reached, step.device
        )
        nbytes = held(self._facts.model[step.model], stand)
        return f"frees {size(nbytes)}: {size(free)} of {step.device} are beyond least grants then"
