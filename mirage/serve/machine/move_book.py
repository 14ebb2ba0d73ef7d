"""Moves that were decided, and how their steps went: what `mirage why` tells of them."""

from __future__ import annotations

import time
from collections import Counter, deque

import msgspec

from mirage.control.placement.placed import DevicePlacement
from mirage.control.placement.steps import MoveStep
from mirage.serve.admin.forms import MoveStepTold, MoveTold

MOST = 100
"""Newest moves that are kept."""
DONE, FAILED, UNDER_WAY, LEFT_OUT = "done", "failed", "under way", "left out"


class OneMove:
    """A decision while it is carried out."""

    def __init__(
        self, before: DevicePlacement, after: DevicePlacement, steps: tuple[MoveStep, ...], why: str
    ) -> None:
        self._begun = time.monotonic()
        self.told = MoveTold(
            t=time.time(),
            why=why,
            before=_told(before),
            after=_told(after),
            result=UNDER_WAY,
            steps=[MoveStepTold(str(s.verb), s.model, s.device, s.why) for s in steps],
        )

    def begins(self, number: int) -> None:
        """A step begins."""
        self._begun = time.monotonic()
        self._is(number, UNDER_WAY, "")

    def tells(self, number: int, words: str) -> None:
        """Words about how far a step is."""
        self._is(number, UNDER_WAY, words)

    def is_done(self, number: int, words: str) -> None:
        """A step has been done; `words` say what remains, if anything does."""
        self._is(number, DONE, words)

    def failed(self, number: int, why: str, back: str) -> None:
        """A step has failed, and the rest is left out."""
        self._is(number, FAILED, why)
        for rest in range(number + 1, len(self.told.steps)):
            self._is(rest, LEFT_OUT, "")
        self.ends(FAILED, back)

    def ends(self, result: str, back: str = "") -> None:
        """Note the result, and the way back if a step failed."""
        self.told = msgspec.structs.replace(self.told, result=result, way_back=back)

    def _is(self, number: int, result: str, words: str) -> None:
        seconds = time.monotonic() - self._begun if result in (DONE, FAILED) else 0.0
        step = msgspec.structs.replace(
            self.told.steps[number], result=result, words=words, seconds=seconds
        )
        steps = [*self.told.steps[:number], step, *self.told.steps[number + 1 :]]
        self.told = msgspec.structs.replace(self.told, steps=steps)


class MoveBook:
    """The newest moves."""

    def __init__(self) -> None:
        self._moves: deque[OneMove] = deque(maxlen=MOST)
        self.results: Counter[str] = Counter({DONE: 0, FAILED: 0})
        """Moves that are over, by their result."""
        self.stays = ""
        """Reason of the last decision that moved nothing; empty before the first."""

    def begins(self, move: OneMove) -> None:
        """A move is carried out from now on."""
        self._moves.append(move)

    def ends(self, move: OneMove) -> None:
        """A move is over."""
        self.results[move.told.result] += 1

    def told(self, tenant: str | None, since: float) -> list[MoveTold]:
        """Moves since a time, of all tenants or of one, the newest last."""
        every = (one.told for one in self._moves if one.told.t >= since)
        return [one for one in every if tenant is None or any(tenant == s.model for s in one.steps)]


def _told(placement: DevicePlacement) -> dict[str, dict[str, str]]:
    return {
        model: {device: str(stand) for device, stand in stands.items()}
        for model, stands in placement.by_model.items()
    }
