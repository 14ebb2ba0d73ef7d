"""Durations of the parts of one engine core's start, for the engine's log."""

from __future__ import annotations

import time

import psutil


class StartTimes:
    """Seconds of each part from the start of this process on, and of its server before that."""

    def __init__(self) -> None:
        core = psutil.Process()
        self._last = core.create_time()
        self._parts: dict[str, float] = {}
        if (server := core.parent()) is not None:
            self._parts["server before its core"] = self._last - server.create_time()

    def lap(self, part: str) -> None:
        """End a part; the time of a part that ends twice is added."""
        now = time.time()
        self._parts[part] = self._parts.get(part, 0.0) + now - self._last
        self._last = now

    def __str__(self) -> str:
        """Return a line such as ``"start: server before its core 1.0 s, weights 0.8 s"``."""
        return "start: " + ", ".join(f"{part} {s:.1f} s" for part, s in self._parts.items())
