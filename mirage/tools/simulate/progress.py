"""What a person sees while runs go on: a live line on a terminal, seldom a plain one elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

if TYPE_CHECKING:
    from mirage.tools.simulate.pool import Watcher

PLAIN_EVERY_S = 10.0
REFRESH_PER_S = 2
"""Few: the runs take all processors."""


@contextmanager
def counting(
    total: int, console: Console | None = None, what: str = "simulate"
) -> Iterator[Watcher]:
    """For `total` runs. Shows on stderr unless told otherwise."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield _Plain(console, what, total)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(),
        TextColumn("{task.completed} of {task.total} runs"),
        TextColumn("{task.fields[requests]:,} requests", style="dim"),
        TimeElapsedColumn(),
        TextColumn("left", style="dim"),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns,
        console=console,
        refresh_per_second=REFRESH_PER_S,
        speed_estimate_period=3600,  # runs end seldom
        transient=True,
    ) as bar:
        yield _Bar(bar, bar.add_task(what, total=total, requests=0))


class _Bar:
    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar, self._task = bar, task

    def run_ended(self) -> None:
        self._bar.advance(self._task)

    def finished(self, requests: int) -> None:
        self._bar.update(self._task, requests=requests)


class _Plain:
    """Counts, and says so now and then."""

    def __init__(self, console: Console, what: str, total: int) -> None:
        self._console, self._what, self._total = console, what, total
        self._ended = self._requests = 0
        self._start = self._said_at = monotonic()

    def run_ended(self) -> None:
        self._ended += 1
        self._say()

    def finished(self, requests: int) -> None:
        self._requests = requests
        self._say()

    def _say(self) -> None:
        now = monotonic()
        if now - self._said_at < PLAIN_EVERY_S:
            return
        self._said_at = now
        counts = f"{self._ended} of {self._total} runs, {self._requests:,} requests"
        self._console.out(f"{self._what}: {counts}, {now - self._start:.0f} s", highlight=False)
