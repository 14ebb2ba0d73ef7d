"""What a person sees while a replay runs: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from mirage.tools.replay.client import Journal

PLAIN_EVERY_S = 10.0
REFRESH_PER_S = 2
"""Few: the replay shares its processors with what it measures."""


class Display:
    """Progress of one policy: starting, then requests sent, finished, failed."""

    def starting(self, seconds: float) -> None:
        raise NotImplementedError

    def running(self, journal: Journal) -> None:
        raise NotImplementedError


@contextmanager
def display(console: Console, policy: str, total: int) -> Iterator[Display]:
    """The display for one policy of `total` requests."""
    if not console.is_terminal:
        yield _Plain(console, policy, total)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, refresh_per_second=REFRESH_PER_S) as bar:
        yield _Live(bar, policy, total)


class _Live(Display):
    def __init__(self, bar: Progress, policy: str, total: int) -> None:
        self._bar = bar
        self._task = bar.add_task(policy, total=None, note="starting the server")
        self._total = total

    def starting(self, seconds: float) -> None:
        self._bar.update(self._task, note="starting the server")

    def running(self, journal: Journal) -> None:
        ended = len(journal.outcomes)
        self._bar.update(
            self._task, total=self._total, completed=ended, note=_counts(journal, self._total)
        )


class _Plain(Display):
    def __init__(self, console: Console, policy: str, total: int) -> None:
        self._console = console
        self._policy = policy
        self._total = total
        self._start = self._said_at = monotonic()
        self._say("starting the server")

    def starting(self, seconds: float) -> None:
        self._seldom("starting the server")

    def running(self, journal: Journal) -> None:
        counts = _counts(journal, self._total)
        if len(journal.outcomes) == self._total:
            self._say(counts)
        else:
            self._seldom(counts)

    def _seldom(self, text: str) -> None:
        if monotonic() - self._said_at >= PLAIN_EVERY_S:
            self._say(text)

    def _say(self, text: str) -> None:
        self._said_at = monotonic()
        seconds = self._said_at - self._start
        self._console.out(f"{self._policy}: {text}, {seconds:.0f} s", highlight=False)


def _counts(journal: Journal, total: int) -> str:
    failed = f", {journal.failed} failed" if journal.failed else ""
    return f"{journal.sent} sent, {len(journal.outcomes)} of {total} finished{failed}"
