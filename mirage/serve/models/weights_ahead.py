"""Weights brought before their model is served: each model by one task, with its progress."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial

import msgspec

from mirage.config import WeightsSection
from mirage.errors import CommandFailed, InputRefused
from mirage.hub.fetched import Say
from mirage.serve.models.stored import bring_model, is_here
from mirage.serve.models.weights_progress import AheadState, WeightsComing


class WeightsAhead:
    """Models that are being brought into this machine's store, and those whose result `bring` has
    yet to return.
    """

    def __init__(self, section: Callable[[], WeightsSection], say: Say) -> None:
        """`section` returns the section `weights` of the present configuration; `say` prints a line
        of progress."""
        self._section, self._say = section, say
        self._told: dict[str, WeightsComing] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.results: Counter[str] = Counter({AheadState.WHOLE: 0, AheadState.FAILED: 0})
        """Number of models that were brought (`WHOLE`) or could not be (`FAILED`)."""
        self.bytes = 0
        """Bytes that were brought so far."""

    @property
    def coming(self) -> list[WeightsComing]:
        """Progress of all models that are being brought."""
        return [self._told[model] for model in self._tasks]

    def knows(self, model: str) -> bool:
        """True for a model that is being brought, or whose result `bring` has yet to return."""
        return model in self._told

    def bring(self, model: str) -> WeightsComing:
        """Begin to bring a model unless the store has it; return the progress. Call it inside a
        running event loop.

        The first call after the end returns the result; a later one begins again if the store
        still lacks the model.
        """
        if model not in self._told:
            if is_here(self._section(), model):
                return WeightsComing(model=model, state=AheadState.WHOLE)
            self._told[model] = WeightsComing(model=model, state=AheadState.COMING)
            self._tasks[model] = asyncio.create_task(self._bring(model))
            return self._told[model]
        return self._told[model] if model in self._tasks else self._told.pop(model)

    async def stop(self) -> None:
        """Stop bringing; bytes that have come stay. Idempotent."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _bring(self, model: str) -> None:
        state, why = AheadState.FAILED, ""
        try:
            await bring_model(self._section(), model, self._say, partial(self._shows, model))
            state = AheadState.WHOLE
        except (InputRefused, CommandFailed) as error:
            why = str(error)
        finally:
            self._change(model, state=state, why=why)
            self.results[state] += 1
            del self._tasks[model]

    def _shows(self, model: str, here: int, missing: int) -> None:
        self.bytes += here - self._told[model].here
        self._change(model, here=here, missing=missing)

    def _change(self, model: str, **changes: object) -> None:
        self._told[model] = msgspec.structs.replace(self._told[model], **changes)
