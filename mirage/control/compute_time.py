"""Seconds that steps compute, learned from what was measured of them. Pure.

T_c is that time by the number of layers (MIRAGE, arXiv 2507.11507, section 5): what streams has to
hide behind it. Steps whose layers the calling thread computes are measured as they are
(`Smoothed`). A device that runs behind the thread that enqueues is measured from its first kernel
to its last, with what lies between (`Undisturbed`): gaps in which the host enqueues copies, more of
them with each streamed layer, and time slices of other processes. Neither hides anything.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque

MOST_PENDING = 64
"""Steps whose times are not known yet; as many as `mirage.engine.stepclock` keeps."""
SMOOTHING = 0.1
RECENT = 16
"""Steps of which the shortest counts, and with which it is known what one more layer adds."""


class ComputeTime(ABC):
    """Seconds of a step's compute, learned from steps in their order."""

    def __init__(self) -> None:
        self.step_s = 0.0
        """0 while unknown."""
        self._begun: deque[int] = deque(maxlen=MOST_PENDING)

    def begin(self, streamed: int) -> None:
        """A step with `streamed` streamed layers begins; `end` follows, or `fail`."""
        self._begun.append(streamed)

    def fail(self) -> None:
        """The step that began last has no time."""
        self._begun.pop()

    def end(self, seconds: float) -> None:
        """The first step of those without a time took so long, stalls left out."""
        if self._begun:
            self._learn(self._begun.popleft(), seconds)

    @abstractmethod
    def _learn(self, streamed: int, seconds: float) -> None:
        """Measurement of one step."""


class Smoothed(ComputeTime):
    """Mean over about ten steps, exponentially smoothed."""

    def _learn(self, streamed: int, seconds: float) -> None:
        self.step_s += (seconds - self.step_s) * (SMOOTHING if self.step_s else 1.0)


class Undisturbed(ComputeTime):
    """The shortest of the last steps, without what each streamed layer adds.

    While nothing streams the device computes without gaps. When more layers stream than since then,
    what steps take longer is the host's; what changes while as many stream is the model's, or the
    batch's. A batch that grows in the very steps in which layers are given away is believed only
    when nothing streams again: too few layers hide by then, not too many.
    """

    def __init__(self) -> None:
        super().__init__()
        self._recent: deque[float] = deque(maxlen=RECENT)
        """Samples of steps with as many streamed layers as now."""
        self._streamed = 0
        self._gap_s = 0.0
        """Seconds of the host for each streamed layer."""
        self._known = 0
        """Most layers that streamed since none did, with which the gap was seen."""

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
