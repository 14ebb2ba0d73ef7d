"""The steps that are in flight: memory that they may touch is not given."""

from __future__ import annotations


class Fence:
    """Fence: the scheduled steps that have been processed.

    With asynchronous scheduling two steps are in flight. A block that became free belongs to
    no request, yet a step scheduled before may still touch it.
    """

    def __init__(self) -> None:
        self.scheduled = 0
        self.processed = 0

    @property
    def idle(self) -> bool:
        """True if no step is in flight."""
        return self.processed == self.scheduled

    def passed(self, mark: int) -> bool:
        """True if every step scheduled up to `mark` has been processed."""
        return self.processed >= mark
