"""Durations of the parts of one engine core's start, for the engine's log."""

from __future__ import annotations

import os
import time

from mirage.processes.marks import mark_of

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class StartTimes:
    """Seconds of each part of the start: the time of vLLM's API server before this EngineCore
    process began, then the parts that `lap` ends. All times count from the machine's boot, because
    the kernel tells the starts of processes so.
    """

    def __init__(self) -> None:
        self._parts: dict[str, float] = {}
        self._last = _now()
        if (core := _begin(os.getpid())) is not None:
            self._last = core
            if (server := _begin(os.getppid())) is not None:
                self._parts["server before its core"] = core - server

    def lap(self, part: str) -> None:
        """End `part`, which began when the one before it ended; the times of a part that ends twice
        are added."""
        now = _now()
        self._parts[part] = self._parts.get(part, 0.0) + now - self._last
        self._last = now

    def __str__(self) -> str:
        """Return a line such as ``"start: server before its core 1.0 s, weights 0.8 s"``."""
        return "start: " + ", ".join(f"{part} {s:.1f} s" for part, s in self._parts.items())


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _begin(pid: int) -> float | None:
    """Start of a process, in seconds from the boot; None if it has ended."""
    mark = mark_of(pid)
    return None if mark is None else mark.start / TICKS_PER_S
