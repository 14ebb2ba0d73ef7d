"""Liveness of a connected engine, judged by its messages. Pure: the caller has the clock.

An engine's process sends a `Pulse` every `BEAT_S` seconds. If nothing comes for `hang_s` seconds,
the process counts as frozen. If pulses go on, but the engine's own thread has work and schedules no
step for a time, that thread counts as stuck. A long step is no hang: the time is `hang_s` plus the
longest of these: the longest step so far, up to a bound; before the first step, the time in which
it may compile; `COMPUTING_S`, if the step goes on computing. On a host the processor time of the
engine's process and of its compilers counts as computing, on other devices only that of the
compilers.

Seconds are those of `RunningTime`: silence counts only while the server itself ran.
"""

from __future__ import annotations

from mirage.protocol import Allotment, Pulse, Report, ToEngine, Turn

FIRST_STEP_S = 300.0
"""Extra seconds for a first step, which may compile."""
LONGEST_STEP_S = 120.0
"""Upper limit in seconds of what the longest known step adds to `hang_s`."""
COMPUTING_S = 600.0
"""Extra seconds for a step that computes all the time: a large model on few cores, a compiler."""
COMPUTES = 0.1
"""Least part of one processor's time that counts as computing; other processes may want the
processors too."""
QUIET_S = 3.0
"""Seconds without a pulse after which a gap between two scheduled steps is not taken for a long
step: the process may have been frozen."""


class RunningTime:
    """Seconds during which this process ran, summed over the calls of `tick`.

    A gap between two ticks counts for `most_s` seconds at most. So a pause of the whole machine or
    container hardly counts, for the server as for its engines.
    """

    def __init__(self, most_s: float) -> None:
        self.seconds = 0.0
        self._most_s = most_s
        self._last: float | None = None

    def tick(self, now: float) -> None:
        """Add the seconds since the last call, at most `most_s` of them; `now` is the clock's time
        in seconds."""
        if self._last is not None:
            self.seconds += min(self._most_s, max(0.0, now - self._last))
        self._last = now


class Vitals:
    """Signs of life of one engine, from its hello at `now` on."""

    def __init__(
        self, now: float, hang_s: float, first_step_s: float = 0.0, *, on_host: bool = False
    ) -> None:
        """Initialise; `on_host` is True if steps are computed by the processors and not by a GPU.

        The other arguments are seconds; `first_step_s` is the time in which a first step may
        compile.
        """
        self._hang_s, self._first_step_s, self._on_host = hang_s, first_step_s, on_host
        self._cpu_s = self._cpu_moved_s = 0.0
        """Processor seconds of the process: now, and when it last made progress."""
        self._children_s = 0.0
        """Processor seconds of its descendants since it last made progress."""
        self._children_told_s = 0.0
        self._heard = self._moved = self._had = now
        self._calls = self._requests = self._steps = 0
        self._revision = self._asked = 0
        """Revision of the newest allotment that the engine has seen, and of the newest sent to
        it."""
        self._yields = False
        """True from an order to stop stepping until the engine says that it has stopped."""
        self._quiet = False
        """True if there was a silence since the engine last made progress."""
        self._longest = 0.0

    def pulsed(self, pulse: Pulse, now: float) -> None:
        """Note a pulse: the engine's thread for reports lives, and says how many calls of the
        scheduler its own thread has begun."""
        self._listen(now)
        self._cpu_s = pulse.cpu_s
        # Less than before: some have ended and are not counted any more.
        self._children_s += max(0.0, pulse.children_cpu_s - self._children_told_s)
        self._children_told_s = pulse.children_cpu_s
        if pulse.scheduler_calls != self._calls:
            self._learn(now)
            self._move(now)
        elif not self._is_busy():
            self._move(now)
        self._calls, self._requests = pulse.scheduler_calls, pulse.requests
        self._had = now if pulse.requests else self._had

    def reported(self, report: Report, now: float) -> None:
        """Note a report: a sign of life, which shows that the engine has seen all allotments up to
        `report.revision`.
        """
        self._listen(now)
        was_busy = self._is_busy()
        self._revision = report.revision
        self._yields = self._yields and report.holds_turn
        self._steps = report.steps
        if was_busy and not self._is_busy():
            self._move(now)

    def told(self, message: ToEngine, now: float) -> None:
        """Note that a message was sent to the engine, which may oblige it to answer: it has to
        answer an allotment, and the end of a turn that does not drain.
        """
        if not self._is_busy():
            self._move(now)
        if isinstance(message, Allotment):
            self._asked = message.revision
        elif isinstance(message, Turn):
            self._yields = not message.holds and not message.drain

    def hang(self, now: float) -> str:
        """Return the reason to take the engine for hung; empty while it lives."""
        if (silent := now - self._heard) >= self._hang_s:
            return f"no sign of life for {silent:.0f} s"
        if self._is_busy() and (stuck := now - self._moved) >= self._patience_s(stuck):
            return f"no step for {stuck:.0f} s {self._what_waits()}"
        return ""

    def had_requests(self, now: float) -> float:
        """Return the time in seconds at which the engine last had a request; `now` if the engine
        has been silent for longer than `QUIET_S`."""
        return now if now - self._heard > QUIET_S else self._had

    def is_in_step(self, now: float) -> bool:
        """True if the engine has requests and has made no progress for more than `QUIET_S` seconds,
        as in a long step."""
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
