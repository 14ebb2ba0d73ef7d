"""Progress display of ``mirage tune``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from mirage.tools.report import progress


class WindowProgress:
    """Counts and shows simulated windows, stage by stage."""

    def __init__(self, shown: progress.Progress) -> None:
        self._shown, self._stage, self._total, self._ended = shown, "", 0, 0

    def stage(self, name: str, total: int = 0) -> None:
        """Begin a stage of at most `total` windows; 0 if the number is unknown."""
        self._stage, self._total, self._ended = name, total, 0
        self._show(at_once=True)

    def ended(self) -> None:
        """Count one more window."""
        self._ended += 1
        self._show()

    def _show(self, at_once: bool = False) -> None:
        of = f" of at most {self._total}" if self._total else ""
        note = f"{self._stage}, {self._ended}{of} windows"
        self._shown.show(note, self._ended, self._total or None, at_once=at_once)


@contextmanager
def shown(console: Console | None = None) -> Iterator[WindowProgress]:
    """Display on stderr, or on `console`."""
    with progress.progress("mirage: tune", console) as found:
        yield WindowProgress(found)
