"""Steps that are in flight. Memory that they may touch must not be given away."""

from __future__ import annotations


class Fence:
    """Counts of scheduled and of processed steps.

    With asynchronous scheduling two steps are in flight. A block that became free belongs to no
    request, yet a step scheduled before may still touch it.
    """

    def __init__(self) -> None:
        self.scheduled = 0
        self.processed = 0

    @property
    def idle(self) -> bool:
        """True if no step is in flight."""
        return self.processed == self.scheduled

    def passed(self, mark: int) -> bool:
        """True if the first `mark` scheduled steps have been processed."""
        return self.processed >= mark
