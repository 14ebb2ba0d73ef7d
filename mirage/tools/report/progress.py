"""Progress of a command: a live line on a terminal, few plain ones elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from rich import progress as bars
from rich.console import Console

EVERY_S = 10.0
"""Seconds between plain lines."""
REFRESH_PER_S = 2
"""Few: a command may measure what it shares its processors with, or take all of them."""
SPEED_OVER_S = 3600.0
"""Runs of a simulation end seldom."""


class Progress:
    """Work under one name: how far it is, and for how long it has gone on."""

    def __init__(self, name: str, console: Console, live: bars.Progress | None = None) -> None:
        self._name, self._console, self._live = name, console, live
        self._task = bars.TaskID(0)
        if live is not None:
            self._task = live.add_task(name, total=None, note="")
        self._start = self._said_at = monotonic()

    def show(
        self, note: str, done: float = 0, total: float | None = None, *, at_once: bool = False
    ) -> None:
        """Tell a `note`, and what is done of `total`, None if nobody knows it.

        Plain lines come every `EVERY_S`, but for what is worth one `at_once`.
        """
        now = monotonic()
        if self._live is not None:
            self._live.update(self._task, completed=done, total=total, note=note)
        elif at_once or now - self._said_at >= EVERY_S:
            self._said_at = now
            seconds = f"{now - self._start:.0f} s"
            self._console.out(f"{self._name}: {note}, {seconds}", highlight=False)


@contextmanager
def progress(
    name: str,
    console: Console | None = None,
    *more: bars.ProgressColumn,
    stays: bool = False,
) -> Iterator[Progress]:
    """Display on stderr unless told otherwise; a live line has `more` columns, and may stay."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield Progress(name, console)
        return
    columns = (
        bars.SpinnerColumn(),
        bars.TextColumn("{task.description}", style="bold", markup=False),
        bars.BarColumn(),
        bars.TextColumn("{task.fields[note]}", markup=False),
        bars.TimeElapsedColumn(),
    )
    with bars.Progress(
        *columns,
        *more,
        console=console,
        refresh_per_second=REFRESH_PER_S,
        speed_estimate_period=SPEED_OVER_S,
        transient=not stays,
    ) as live:
        yield Progress(name, console, live)
