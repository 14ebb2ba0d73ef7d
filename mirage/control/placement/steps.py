"""Steps from one placement to another: replicas come before others go, within memory at each
step."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import NamedTuple

from mirage.control.placement.books import fits
from mirage.control.placement.facts import PlacementFacts
from mirage.control.placement.placed import DevicePlacement, ReplicaPlace, Stand


class MoveVerb(StrEnum):
    """Kind of a step, in the order of the steps of a move.

    A replica that sleeps keeps its route: a request that finds no awake replica wakes it.
    """

    BRING = "bring"
    """Bring weights to a machine that lacks them; nothing else changes."""
    START = "start"
    """Start a process: it is awake then, or asleep if it starts hollow."""
    WAKE = "wake"
    ROUTE = "route"
    """Let requests go to the replica."""
    DRAIN = "drain"
    """Send no new request to the replica; let running ones finish."""
    SLEEP = "sleep"
    STOP = "stop"


class MoveStep(NamedTuple):
    """Step of a move: what is done with a model on one device."""

    verb: MoveVerb
    model: str
    device: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class MovePath:
    """Steps from the present placement, and the placement that they reach: the wanted one, or a
    part of it."""

    steps: tuple[MoveStep, ...]
    reached: DevicePlacement
    moved: tuple[str, ...]
    """Names of the moved models; a model is named once for each of its moves."""


def path_towards(
    facts: PlacementFacts,
    present: DevicePlacement,
    wanted: DevicePlacement,
    *,
    resting: Collection[str] = (),
    budget: float = inf,
) -> MovePath:
    """Return the steps towards `wanted`, of models that are not `resting` (moved lately), in at
    most `budget` moves. Moves of a model that has no process yet do not count.

    A replica comes as soon as it fits beside all others, first those of models that are awake
    nowhere, and of these a wake before a start. A replica goes once all wanted replicas of its
    model are there, which makes room for others. A replica that never fits is left out.
    """
    walk = _Walk(facts, present)
    for name in sorted(facts.model, key=lambda name: (-facts.asked(name), name)):
        if name in resting:
            continue
        comes, goes = changes(present, wanted, name)
        moves = max(len(comes), len(goes))
        if moves and (moves <= budget or not present.of(name)):
            budget -= moves if present.of(name) else 0
            walk.comes += comes
            walk.goes[name] = goes
    walk.comes.sort(key=lambda p: (bool(present.awake(p.model)), not present.of(p.model)))
    walk.go()
    return MovePath(tuple(walk.steps), walk.at, tuple(walk.moved(present)))


def changes(
    present: DevicePlacement, wanted: DevicePlacement, model: str
) -> tuple[list[ReplicaPlace], list[ReplicaPlace]]:
    """Return the places of a model that are new, and those that it leaves, the latter as they are
    afterwards.

    A replica that falls asleep on its device counts as leaving. A replica that is removed is listed
    as awake.
    """
    before, after = present.of(model), wanted.of(model)
    comes, goes = [], []
    for device, stand in after.items():
        if device in before and before[device] is not stand and stand is Stand.ASLEEP:
            goes.append(ReplicaPlace(model, device, stand))
        elif before.get(device) is not stand:
            comes.append(ReplicaPlace(model, device, stand))
    goes += [ReplicaPlace(model, device) for device in before if device not in after]
    return comes, goes


class _Walk:
    """Search for a path of steps: the steps found so far, and the placement after them."""

    def __init__(self, facts: PlacementFacts, present: DevicePlacement) -> None:
        self._facts, self.at = facts, present
        self.steps: list[MoveStep] = []
        self.comes: list[ReplicaPlace] = []
        self.goes: dict[str, list[ReplicaPlace]] = {}

    def go(self) -> None:
        """Append the steps of the changes, and make the changes in the placement `at`, until no
        more fit into memory."""
        while True:
            place = next((p for p in self.comes if fits(self._facts, self.at, p)), None)
            if place is not None:
                self.comes.remove(place)
                self._open(place)
            elif (model := self._due()) is not None:
                for place in self.goes.pop(model):
                    self._end(place)
            else:
                return

    def _due(self) -> str | None:
        """Return a model that leaves places and has all its wanted replicas; None if there is
        none."""
        waiting = {place.model for place in self.comes}
        return next((m for m, goes in self.goes.items() if goes and m not in waiting), None)

    def _say(self, verb: MoveVerb, place: ReplicaPlace) -> None:
        self.steps.append(MoveStep(verb, place.model, place.device))

    def _open(self, place: ReplicaPlace) -> None:
        sleeps = place.device in self.at.of(place.model)
        if not sleeps:
            if self._facts.lacks_weights(place.model, place.device):
                self._say(MoveVerb.BRING, place)
            self._say(MoveVerb.START, place)
            sleeps = self._facts.model[place.model].hollow
        if sleeps and place.stand is Stand.AWAKE:
            self._say(MoveVerb.WAKE, place)
        elif not sleeps and place.stand is Stand.ASLEEP:
            self._say(MoveVerb.SLEEP, place)
        self._say(MoveVerb.ROUTE, place)
        self.at = self.at.put(*place)

    def _end(self, place: ReplicaPlace) -> None:
        self._say(MoveVerb.DRAIN, place)
        if place.stand is Stand.ASLEEP:
            self._say(MoveVerb.SLEEP, place)
            self.at = self.at.put(*place)
        else:
            self._say(MoveVerb.STOP, place)
            self.at = self.at.out(place.model, place.device)

    def moved(self, present: DevicePlacement) -> list[str]:
        """Return a model's name for each move that the steps make."""
        names = sorted({step.model for step in self.steps})
        return [
            name for name in names for _ in range(max(map(len, changes(present, self.at, name))))
        ]
