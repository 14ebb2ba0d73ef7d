"""Durations of the parts of one engine core's start, for the engine's log."""

from __future__ import annotations

import time

import psutil


class StartTimes:
    """Seconds of each part of the start: the time of vLLM's API server before this EngineCore
    process began, then the parts that `lap` ends."""

    def __init__(self) -> None:
        core = psutil.Process()
        self._last = core.create_time()
        self._parts: dict[str, float] = {}
        if (server := core.parent()) is not None:
            self._parts["server before its core"] = self._last - server.create_time()

    def lap(self, part: str) -> None:
        """End `part`, which began when the one before it ended; the times of a part that ends twice
        are added."""
        now = time.time()
        self._parts[part] = self._parts.get(part, 0.0) + now - self._last
        self._last = now

    def __str__(self) -> str:
        """Return a line such as ``"start: server before its core 1.0 s, weights 0.8 s"``."""
        return "start: " + ", ".join(f"{part} {s:.1f} s" for part, s in self._parts.items())
