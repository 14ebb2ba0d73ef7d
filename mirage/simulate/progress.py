"""What a person sees while runs go on: a live line on a terminal, seldom a plain one elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

PLAIN_EVERY_S = 10.0
REFRESH_PER_S = 2
"""Few: the runs take all processors."""


@contextmanager
def counting(
    total: int, console: Console | None = None, what: str = "simulate"
) -> Iterator[Callable[[], None]]:
    """A function to call after each of `total` runs. Shows on stderr unless told otherwise."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield _Plain(console, what, total)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(),
        TextColumn("{task.completed} of {task.total} runs"),
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
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


class _Plain:
    """Counts, and says so now and then."""

    def __init__(self, console: Console, what: str, total: int) -> None:
        self._console, self._what, self._total = console, what, total
        self._done = 0
        self._start = self._said_at = monotonic()

    def __call__(self) -> None:
        self._done += 1
        now = monotonic()
        if now - self._said_at < PLAIN_EVERY_S:
            return
        self._said_at = now
        counts = f"{self._done} of {self._total} runs"
        self._console.out(f"{self._what}: {counts}, {now - self._start:.0f} s", highlight=False)
