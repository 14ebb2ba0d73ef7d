"""The start of one engine core by its parts, for the engine's log."""

from __future__ import annotations

import time

import psutil


class StartTimes:
    """Seconds of each part, from the begin of this process on."""

    def __init__(self) -> None:
        self._parts: dict[str, float] = {}
        self._last = psutil.Process().create_time()

    def lap(self, part: str) -> None:
        """A part is over; one that comes twice is added to."""
        now = time.time()
        self._parts[part] = self._parts.get(part, 0.0) + now - self._last
        self._last = now

    def __str__(self) -> str:
        """``"start: imports and configuration 5.2 s, weights 0.8 s"``."""
        return "start: " + ", ".join(f"{part} {s:.1f} s" for part, s in self._parts.items())
