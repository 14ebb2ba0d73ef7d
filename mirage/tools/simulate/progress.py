"""Progress display for many runs of the simulator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import TextColumn, TimeRemainingColumn

from mirage.tools.report.progress import Progress, progress


class RunProgress:
    """A `Watcher` that shows the progress of `total` runs."""

    def __init__(self, shown: Progress, total: int) -> None:
        self._shown, self._total = shown, total
        self._ended = self._requests = 0

    def run_ended(self) -> None:
        """Note that one more run has ended."""
        self._ended += 1
        self._show()

    def finished(self, requests: int) -> None:
        """Show the number of requests finished in all runs together."""
        self._requests = requests
        self._show()

    def _show(self) -> None:
        counts = f"{self._ended} of {self._total} runs, {self._requests:,} requests"
        self._shown.show(counts, self._ended, self._total)


@contextmanager
def counting(
    total: int, console: Console | None = None, what: str = "simulate"
) -> Iterator[RunProgress]:
    """Display for `total` runs of the command `what`, on stderr or `console`."""
    with progress(what, console, TextColumn("left", style="dim"), TimeRemainingColumn()) as shown:
        yield RunProgress(shown, total)
