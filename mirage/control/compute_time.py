"""Compute seconds of a step, learned from measurements. Pure.

T_c is the compute time for each layer (MIRAGE, arXiv 2507.11507, section 5): loads of streamed
layers have to hide behind it. Where the calling thread computes the layers, a measured time is
taken as it is (`Smoothed`). A device that runs behind the thread that enqueues is measured from its
first kernel to its last (`Undisturbed`). That includes gaps in which the host enqueues copies, more
of them with each streamed layer, and time slices of other processes. Neither hides a load.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque

MOST_PENDING = 64
"""Largest number of steps whose times are awaited; times of older ones are dropped."""
SMOOTHING = 0.1
RECENT = 16
"""Number of recent steps of which the shortest counts. After so many, the time that each further
streamed layer adds is known."""


class ComputeTime(ABC):
    """Seconds of compute of a step, learned from steps in their order."""

    def __init__(self) -> None:
        self.step_s = 0.0
        """Seconds of compute of a step; 0 while unknown."""
        self._begun: deque[int] = deque(maxlen=MOST_PENDING)

    def begin(self, streamed: int) -> None:
        """Note that a step with `streamed` streamed layers begins; `end` or `fail` follows."""
        self._begun.append(streamed)

    def fail(self) -> None:
        """Forget the step that began last: it has no time."""
        self._begun.pop()

    def end(self, seconds: float) -> None:
        """Learn that the oldest step without a time took `seconds`, which do not include its waits
        for loads; ignored if there is no such step."""
        if self._begun:
            self._learn(self._begun.popleft(), seconds)

    @abstractmethod
    def _learn(self, streamed: int, seconds: float) -> None:
        """Learn from the time of one step with `streamed` streamed layers."""


class Smoothed(ComputeTime):
    """Exponentially smoothed mean over about ten steps."""

    def _learn(self, streamed: int, seconds: float) -> None:
        self.step_s += (seconds - self.step_s) * (SMOOTHING if self.step_s else 1.0)


class Undisturbed(ComputeTime):
    """The shortest of the last steps, less the time that each streamed layer adds on the host.

    While nothing streams, the device computes without gaps. If the number of streamed layers rises
    above the largest since then, the additional time of a step is the host's. A change while the
    number stays the same is the model's or the batch's. A batch that grows in just the steps in
    which layers are given away is noticed only when nothing streams again: until then too few
    layers hide, never too many.
    """

    def __init__(self) -> None:
        super().__init__()
        self._recent: deque[float] = deque(maxlen=RECENT)
        """Seconds of the last steps with the present number of streamed layers."""
        self._streamed = 0
        self._gap_s = 0.0
        """Seconds that the host adds to a step for each streamed layer."""
        self._known = 0
        """Largest number of streamed layers, since none streamed, that `_gap_s` was measured
        with."""

    def _learn(self, streamed: int, seconds: float) -> None:
        if streamed != self._streamed:
            self._changes(streamed)
        self._recent.append(seconds)
        found = min(self._recent) - self._gap_s * streamed
        if len(self._recent) == RECENT and streamed > self._known and self.step_s:
            self._known = streamed
            self._gap_s += max(0.0, found - self.step_s) / streamed
            return
        settled = len(self._recent) == RECENT or not self.step_s
        self.step_s = max(0.0, found if settled else min(found, self.step_s))

    def _changes(self, streamed: int) -> None:
        if not streamed:
            self._known, self._gap_s = 0, 0.0
        self._streamed = streamed
        self._recent.clear()
