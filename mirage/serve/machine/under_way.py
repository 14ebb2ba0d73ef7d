"""Moves of models that are under way: each step runs as soon as the steps that it needs are over.

So an engine that starts slowly holds up no step of another model, and no other move.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from mirage.control.placement.placed import DevicePlacement, ReplicaPlace
from mirage.control.placement.rules import PlacementPast
from mirage.control.placement.steps import MoveStep
from mirage.control.placement.undone import hindrance, needed
from mirage.control.placement.words import step_lines
from mirage.machines.seam import StaleEpoch
from mirage.serve.machine.carrying import GaveWay, StepCarrier, StepFailed
from mirage.serve.machine.move_book import MoveBook, OneMove
from mirage.serve.tasks import together

log = logging.getLogger(__name__)


@dataclass
class CarriedMove:
    """Move of models as it was decided, and what became of it."""

    before: DevicePlacement
    after: DevicePlacement
    steps: tuple[MoveStep, ...]
    why: str
    machines: Mapping[str, str]
    """Machine of each device."""
    pasts: tuple[PlacementPast, PlacementPast] | None = None
    """Record of earlier moves before and after the decision for this move; None for a move that
    was made without a decision."""
    failed: dict[str, str] = field(default_factory=dict)
    """Device of each model's last failed step; models without a failed step are not here."""
    gave_way: str = ""
    """Reason for which steps gave way to an operator; empty if none did."""


class MovesUnderWay:
    """Tasks that carry moves out."""

    def __init__(self, carrier: StepCarrier, book: MoveBook, say: Callable[[str], None]) -> None:
        self._carrier, self._book, self._say = carrier, book, say
        self._moves: dict[asyncio.Task[None], CarriedMove] = {}

    def __bool__(self) -> bool:
        """True if a move is under way."""
        return bool(self._moves)

    @property
    def models(self) -> frozenset[str]:
        """Models of all moves that are under way."""
        return frozenset(step.model for move in self._moves.values() for step in move.steps)

    @property
    def places(self) -> frozenset[ReplicaPlace]:
        """Replicas of all models that move now, as they will be when the moves are over."""
        return frozenset(
            place
            for move in self._moves.values()
            for place in move.after.places
            if any(step.model == place.model for step in move.steps)
        )

    def begin(self, move: CarriedMove) -> None:
        """Begin to carry out a move."""
        task = asyncio.create_task(self._carry(move))
        self._moves[task] = move

    def ended(self) -> list[CarriedMove]:
        """Remove and return the moves that are over. Raises `StaleEpoch` if a move ended
        by it; other errors of moves are logged.
        """
        moves: list[CarriedMove] = []
        for task in [one for one in self._moves if one.done()]:
            move = self._moves.pop(task)
            error = task.exception()
            if isinstance(error, StaleEpoch):
                raise error
            if error is not None:
                log.error("a move was given up", exc_info=error)
            moves.append(move)
        return moves

    async def over(self) -> None:
        """Wait until all moves that are under way now are over."""
        if self._moves:
            await asyncio.wait(self._moves)

    async def stop(self) -> None:
        """Give all moves up."""
        for task in self._moves:
            task.cancel()
        await asyncio.gather(*self._moves, return_exceptions=True)

    async def _carry(self, move: CarriedMove) -> None:
        """Carry out and log the steps of a move.

        After a failure, only steps that depend on the failed one are left out; see `hindrance`.
        """
        told = OneMove(move.before, move.after, move.steps, move.why)
        self._book.begins(told)
        names = ", ".join(dict.fromkeys(step.model for step in move.steps))
        for line in [f"placement of {names}: {move.why}", *step_lines(move.steps)]:
            self._say(line)
        ends, undone = [asyncio.Event() for _ in move.steps], set[int]()
        try:
            await together(self._step(move, told, n, ends, undone) for n in range(len(move.steps)))
        finally:
            told.ends()
            self._book.ends(told)
        log.info("move of %s: %s", names, told.told.result)

    async def _step(
        self,
        move: CarriedMove,
        told: OneMove,
        number: int,
        ends: list[asyncio.Event],
        undone: set[int],
    ) -> None:
        """Carry out one step once the steps that it needs are over."""
        for earlier in needed(move.steps, number, move.machines):
            await ends[earlier].wait()
        step = move.steps[number]
        if hinders := move.gave_way or hindrance(move.steps, number, undone, move.machines):
            undone.add(number)
            told.leaves_out(number, hinders)
        else:
            told.begins(number)
            try:
                tell = partial(told.tells, number)
                words = await self._carrier.carry(move.steps, number, move.after, tell)
            except StepFailed as error:
                if isinstance(error, GaveWay):
                    move.gave_way = str(error)
                else:
                    move.failed[step.model] = step.device
                back = await self._carrier.back(move.steps, number)
                undone.add(number)
                told.failed(number, str(error), back)
                self._say(f"{step.verb} {step.model} on {step.device} failed: {error}; {back}")
            else:
                told.is_done(number, words)
                more = f": {words}" if words else ""
                self._say(f"{step.verb} {step.model} on {step.device}: done{more}")
        ends[number].set()
