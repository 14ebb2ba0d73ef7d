"""Log lines about events that clients can cause at will: at most one a second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

EVERY_S = 1.0


class Repeated:
    """Log of an event that repeats: the first one immediately, then one line a second while it goes
    on.

    `say` gets the number of events since the last line, and words about the last one; `later` is
    the event loop's `call_later`.
    """

    def __init__(
        self,
        say: Callable[[int, str], None],
        later: Callable[[float, Callable[[], None]], Any],
    ) -> None:
        self._say, self._later = say, later
        self._count, self._last = 0, ""
        self._rests = False

    def note(self, what: str) -> None:
        """Count an event. `what` must contain nothing that a client sent."""
        self._count += 1
        self._last = what
        if not self._rests:
            self._tell()

    def _tell(self) -> None:
        self._rests = self._count > 0
        if self._rests:
            self._say(self._count, self._last)
            self._count = 0
            self._later(EVERY_S, self._tell)
