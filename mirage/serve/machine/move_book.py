"""Book of moves that were decided, and results of their steps, for `mirage why`."""

from __future__ import annotations

import time
from collections import Counter, deque

import msgspec

from mirage.control.placement.placed import DevicePlacement
from mirage.control.placement.steps import MoveStep
from mirage.serve.admin.forms import MoveStepTold, MoveTold

MOST = 100
"""Number of moves that are kept, the newest."""
DONE, FAILED, UNDER_WAY, LEFT_OUT = "done", "failed", "under way", "left out"


class OneMove:
    """One move of models between devices, while it is carried out."""

    def __init__(
        self, before: DevicePlacement, after: DevicePlacement, steps: tuple[MoveStep, ...], why: str
    ) -> None:
        self._begun: dict[int, float] = {}
        """Monotonic time at which each step began, by its number."""
        self._backs: dict[str, None] = {}
        """Words about what was undone after failed steps, each text once, in order."""
        self.told = MoveTold(
            t=time.time(),
            why=why,
            before=_told(before),
            after=_told(after),
            result=UNDER_WAY,
            steps=[MoveStepTold(str(s.verb), s.model, s.device, s.why) for s in steps],
        )

    def begins(self, number: int) -> None:
        """Note that step `number` begins."""
        self._begun[number] = time.monotonic()
        self._is(number, UNDER_WAY, "")

    def tells(self, number: int, words: str) -> None:
        """Note the progress of step `number`, in words."""
        self._is(number, UNDER_WAY, words)

    def is_done(self, number: int, words: str) -> None:
        """Note that step `number` is done; `words` about its result may be empty."""
        self._is(number, DONE, words)

    def failed(self, number: int, why: str, back: str) -> None:
        """Note that step `number` has failed, and the reason. `back` says what was undone after it,
        or that nothing had to be undone."""
        self._is(number, FAILED, why)
        self._backs[back] = None
        way_back = "; ".join(self._backs)
        self.told = msgspec.structs.replace(self.told, way_back=way_back)

    def leaves_out(self, number: int, why: str) -> None:
        """Note that step `number` is not carried out, and the reason."""
        self._is(number, LEFT_OUT, why)

    def ends(self) -> None:
        """Note that no other step is carried out. A move with steps that have not ended failed."""
        done = all(step.result in (DONE, LEFT_OUT) for step in self.told.steps)
        self.told = msgspec.structs.replace(self.told, result=DONE if done else FAILED)

    def _is(self, number: int, result: str, words: str) -> None:
        seconds = time.monotonic() - self._begun[number] if result in (DONE, FAILED) else 0.0
        step = msgspec.structs.replace(
            self.told.steps[number], result=result, words=words, seconds=seconds
        )
        steps = [*self.told.steps[:number], step, *self.told.steps[number + 1 :]]
        self.told = msgspec.structs.replace(self.told, steps=steps)


class MoveBook:
    """Book of the newest moves of models between devices."""

    def __init__(self) -> None:
        self._moves: deque[OneMove] = deque(maxlen=MOST)
        self.results: Counter[str] = Counter({DONE: 0, FAILED: 0})
        """Number of moves that are over, by result."""
        self.stays = ""
        """Reason of the last decision that moved nothing, or the reason why nothing is decided;
        empty before the first decision."""

    def begins(self, move: OneMove) -> None:
        """Add a move, which is carried out from now on."""
        self._moves.append(move)

    def ends(self, move: OneMove) -> None:
        """Count a move that is over."""
        self.results[move.told.result] += 1

    def told(self, tenant: str | None, since: float) -> list[MoveTold]:
        """Moves since a time in seconds since 1970, of one tenant or of all, the newest last."""
        every = (one.told for one in self._moves if one.told.t >= since)
        return [one for one in every if tenant is None or any(tenant == s.model for s in one.steps)]


def _told(placement: DevicePlacement) -> dict[str, dict[str, str]]:
    return {
        model: {device: str(stand) for device, stand in stands.items()}
        for model, stands in placement.by_model.items()
    }
