"""Bounds of one `schedule()` of vLLM's beyond its own: the requests that may be scheduled in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mirage.control.turn_taking import Admits


class StepBounds:
    """Bounds on what a step may take, in force while vLLM schedules it."""

    def __init__(self) -> None:
        self._lift()

    def _lift(self) -> None:
        self.admits = Admits.ALL
        """Requests that the engine's turn allows in the step."""
        self.held = False
        """True if a request is held for memory. Then no other is admitted, since it would take the
        blocks that the held one lacks."""

    @contextmanager
    def of_step(self, admits: Admits) -> Iterator[None]:
        """Context around vLLM's `schedule()`; the bounds end with it, also after an error."""
        self._lift()
        self.admits = admits
        try:
            yield
        finally:
            self._lift()
