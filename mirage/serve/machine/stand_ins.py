"""Replicas that stand in for a device that is lost, until it serves again. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from mirage.control.placement.placed import DevicePlacement
from mirage.control.placement.steps import MoveStep, MoveVerb


class StandIns:
    """Places of models whose own device was lost."""

    def __init__(self) -> None:
        self._places: list[tuple[str, str]] = []
        """Model and device of each."""

    @property
    def models(self) -> frozenset[str]:
        """Models with a stand-in: they go back before they move again."""
        return frozenset(model for model, _ in self._places)

    def begin(self, steps: Iterable[MoveStep], gone: Collection[str]) -> None:
        """Steps are carried out: a model that is `gone` and starts elsewhere stands in there."""
        self._places += [
            (step.model, step.device)
            for step in steps
            if step.verb is MoveVerb.START and step.model in gone
        ]

    def found(self, present: DevicePlacement, pins: Mapping[str, Collection[str]]) -> None:
        """Another controller moved these: beside the devices that it names a model stands in."""
        self._places = [
            (model, device)
            for model, own in pins.items()
            for device in present.of(model)
            if own and device not in own
        ]

    def over(
        self, present: DevicePlacement, serves: Callable[[str, str], bool]
    ) -> list[tuple[str, str]]:
        """Places whose model another device serves again; they are forgotten."""
        self._places = [each for each in self._places if each[1] in present.of(each[0])]
        found = [
            (model, device)
            for model, device in self._places
            if any(serves(model, name) for name in present.of(model) if name != device)
        ]
        self._places = [each for each in self._places if each not in found]
        return found
