"""Liveness of a connected engine, judged by its signs of life. Pure: the caller has the clock.

An engine's process says `BEAT_S` apart that it lives (`Pulse`). If nothing comes for `hang_s`
seconds, the process is frozen. If the pulse goes on, and the engine's own thread has something to
do and begins no scheduling pass, that thread is stuck. A long step is no hang: the longest one
known is added to `hang_s`, and so is the time that a first step may compile, both bounded. Where
steps are computed on the host, one that goes on computing is waited for longer, and so is one
whose compilers compute, anywhere.

Seconds are those of `RunningTime`: silence counts only while the server itself ran.
"""

from __future__ import annotations

from mirage.protocol import Allotment, Pulse, Report, ToEngine, Turn

FIRST_STEP_S = 300.0
"""Extra seconds for a first step, which may compile."""
LONGEST_STEP_S = 120.0
"""The most that the longest known step adds to `hang_s`."""
COMPUTING_S = 600.0
"""Extra seconds for a step that computes all the time: a large model on few cores, a compiler."""
COMPUTES = 0.1
"""The part of one processor's time that says so; others may want the processors as well."""
QUIET_S = 3.0
"""Seconds without a pulse after which a gap between two passes may be a frozen process, no step."""


class RunningTime:
    """The seconds during which this process ran, by what `tick` is told.

    A gap between two ticks counts for `most_s` at most. So a pause of the whole machine or
    container passes in no time, for the server as for its engines.
    """

    def __init__(self, most_s: float) -> None:
        self.seconds = 0.0
        self._most_s = most_s
        self._last: float | None = None

    def tick(self, now: float) -> None:
        """The clock says `now`, in seconds."""
        if self._last is not None:
            self.seconds += min(self._most_s, max(0.0, now - self._last))
        self._last = now


class Vitals:
    """The signs of life of one engine, from its hello at `now` on."""

    def __init__(
        self, now: float, hang_s: float, first_step_s: float = 0.0, *, on_host: bool = False
    ) -> None:
        """`on_host`: whether steps are computed by the processors, and not by a GPU.

        The other arguments are seconds; `first_step_s` is what a first step may compile.
        """
        self._hang_s, self._first_step_s, self._on_host = hang_s, first_step_s, on_host
        self._cpu_s = self._cpu_moved_s = 0.0
        """Processor seconds of the process: now, and at its last pass."""
        self._children_s = 0.0
        """Processor seconds of its descendants since its last pass."""
        self._children_told_s = 0.0
        self._heard = self._moved = self._had = now
        self._passes = self._requests = self._steps = 0
        self._revision = self._asked = 0
        """The newest allotment that it has seen, and the newest that it was sent."""
        self._yields = False
        """True from an order to stop stepping until the engine says that it did."""
        self._quiet = False
        """True if there was a silence since the last pass."""
        self._longest = 0.0

    def pulsed(self, pulse: Pulse, now: float) -> None:
        """Its thread for reports lives, and says what the engine's own thread has begun."""
        self._listen(now)
        self._cpu_s = pulse.cpu_s
        # Less than before: some have ended and are not counted any more.
        self._children_s += max(0.0, pulse.children_cpu_s - self._children_told_s)
        self._children_told_s = pulse.children_cpu_s
        if pulse.passes != self._passes:
            self._learn(now)
            self._move(now)
        elif not self._is_busy():
            self._move(now)
        self._passes, self._requests = pulse.passes, pulse.requests
        self._had = now if pulse.requests else self._had

    def reported(self, report: Report, now: float) -> None:
        """Note that the engine has seen what it was sent up to `report.revision`."""
        self._listen(now)
        was_busy = self._is_busy()
        self._revision = report.revision
        self._yields = self._yields and report.holds_turn
        self._steps = report.steps
        if was_busy and not self._is_busy():
            self._move(now)

    def told(self, message: ToEngine, now: float) -> None:
        """Note that the engine was sent a message.

        An allotment or the end of a turn has to be answered.
        """
        if not self._is_busy():
            self._move(now)
        if isinstance(message, Allotment):
            self._asked = message.revision
        elif isinstance(message, Turn):
            self._yields = not message.holds and not message.drain

    def hang(self, now: float) -> str:
        """Reason to take the engine for hung; empty while it lives."""
        if (silent := now - self._heard) >= self._hang_s:
            return f"no sign of life for {silent:.0f} s"
        if self._is_busy() and (stuck := now - self._moved) >= self._patience_s(stuck):
            return f"no step for {stuck:.0f} s {self._what_waits()}"
        return ""

    def had_requests(self, now: float) -> float:
        """Second at which it last had a request, or at which nobody knows, for want of pulses."""
        return now if now - self._heard > QUIET_S else self._had

    def is_in_step(self, now: float) -> bool:
        """True if it has requests and its newest pass takes longer than `QUIET_S`."""
        return self._requests > 0 and now - self._moved > QUIET_S

    def _is_busy(self) -> bool:
        return self._requests > 0 or self._revision < self._asked or self._yields

    def _what_waits(self) -> str:
        if self._requests:
            return f"with {self._requests} requests"
        return "after it was told to yield its turn or memory"

    def _patience_s(self, stuck: float) -> float:
        first = 0.0 if self._steps else self._first_step_s
        own = self._cpu_s - self._cpu_moved_s if self._on_host else 0.0
        longer = COMPUTING_S if own + self._children_s >= COMPUTES * stuck else 0.0
        return self._hang_s + max(min(self._longest, LONGEST_STEP_S), first, longer)

    def _listen(self, now: float) -> None:
        self._had = self.had_requests(now)
        self._quiet = self._quiet or now - self._heard > QUIET_S
        self._heard = now

    def _learn(self, now: float) -> None:
        if self._is_busy() and not self._quiet:
            self._longest = max(self._longest, now - self._moved)

    def _move(self, now: float) -> None:
        self._moved, self._cpu_moved_s, self._quiet = now, self._cpu_s, False
        self._children_s = 0.0
