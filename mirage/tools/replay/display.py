"""Progress display of a replay under one policy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from mirage.tools.replay.client import Journal
from mirage.tools.report.progress import Progress, progress

STARTING = "starting the server"


class Display:
    """Progress line of a replay: the start, then counts of requests sent, finished and failed."""

    def __init__(self, shown: Progress, total: int) -> None:
        self._shown, self._total = shown, total
        shown.show(STARTING, at_once=True)

    def starting(self, seconds: float) -> None:
        """Show that the server is starting; called while it is not ready."""
        self._shown.show(STARTING)

    def running(self, journal: Journal) -> None:
        """Show the journal's counts of requests; called whenever a request was sent or has
        ended."""
        ended, total = len(journal.outcomes), self._total
        failed = f", {journal.failed} failed" if journal.failed else ""
        counts = f"{journal.sent} sent, {ended} of {total} finished{failed}"
        self._shown.show(counts, ended, total, at_once=ended == total)


@contextmanager
def display(console: Console, policy: str, total: int) -> Iterator[Display]:
    """Display for a run under one policy with `total` requests."""
    with progress(policy, console, stays=True) as shown:
        yield Display(shown, total)
