"""Stand-ins: replicas that serve for a lost device, until it serves again. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from mirage.control.placement.placed import DevicePlacement
from mirage.control.placement.steps import MoveStep, MoveVerb


class StandIns:
    """Record of the replicas that serve for lost devices: models and devices."""

    def __init__(self) -> None:
        self._places: list[tuple[str, str]] = []
        """Model and device of each stand-in."""

    @property
    def models(self) -> frozenset[str]:
        """Models with a stand-in."""
        return frozenset(model for model, _ in self._places)

    @property
    def places(self) -> frozenset[tuple[str, str]]:
        """Model and device of each stand-in."""
        return frozenset(self._places)

    def named(self, pins: Mapping[str, Collection[str]]) -> None:
        """Forget stand-ins on devices that their models name now: by `pins` they belong there."""
        self._places = [one for one in self._places if one[1] not in pins.get(one[0], ())]

    def begin(self, steps: Iterable[MoveStep], gone: Collection[str]) -> None:
        """Note stand-ins: the models in `gone` that `steps` start on other devices."""
        self._places += [
            (step.model, step.device)
            for step in steps
            if step.verb is MoveVerb.START and step.model in gone
        ]

    def found(self, present: DevicePlacement, pins: Mapping[str, Collection[str]]) -> None:
        """Recognise stand-ins by the placement: models that name devices (`pins`), on others."""
        self._places = [
            (model, device)
            for model, own in pins.items()
            for device in present.of(model)
            if own and device not in own
        ]

    def over(
        self, present: DevicePlacement, serves: Callable[[str, str], bool]
    ) -> list[tuple[str, str]]:
        """Remove and return the stand-ins whose models serve again on other devices; `serves` is
        true for a model and a device where it serves."""
        self._places = [each for each in self._places if each[1] in present.of(each[0])]
        found = [
            (model, device)
            for model, device in self._places
            if any(serves(model, name) for name in present.of(model) if name != device)
        ]
        self._places = [each for each in self._places if each not in found]
        return found
