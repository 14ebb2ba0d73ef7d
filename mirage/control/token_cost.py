"""Time that one more computed token adds to a step, learned from steps as they come. Pure."""

from __future__ import annotations

from collections import deque

from mirage.control.compute_time import MOST_PENDING

MEMORY = 0.995
"""Factor by which the weight of a step falls with each further step: some two hundred steps
count."""


class TokenCost:
    """Slope of seconds over tokens, by least squares. Times come in the order of the steps."""

    def __init__(self) -> None:
        self._begun: deque[int] = deque(maxlen=MOST_PENDING)
        self._n = self._x = self._y = self._xx = self._xy = 0.0

    def begin(self, tokens: int) -> None:
        """Note that a step of `tokens` tokens begins; `end` or `fail` follows."""
        self._begun.append(tokens)

    def fail(self) -> None:
        """Forget the step that began last: it has no time."""
        self._begun.pop()

    def end(self, seconds: float) -> None:
        """Enter the time of the oldest step that has none yet; ignored if there is no such step."""
        if not self._begun:
            return
        tokens = self._begun.popleft()
        self._n = self._n * MEMORY + 1
        self._x = self._x * MEMORY + tokens
        self._y = self._y * MEMORY + seconds
        self._xx = self._xx * MEMORY + tokens * tokens
        self._xy = self._xy * MEMORY + tokens * seconds

    @property
    def token_s(self) -> float:
        """Seconds that one more token takes; 0 while steps do not differ in tokens, or if more
        tokens take no more time."""
        spread = self._n * self._xx - self._x * self._x
        if spread <= 1e-9 * self._n * self._xx:
            return 0.0
        return max(0.0, (self._n * self._xy - self._x * self._y) / spread)
