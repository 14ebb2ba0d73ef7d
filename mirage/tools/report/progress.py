"""Progress of a command: a live line on a terminal, occasional plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from rich import progress as bars
from rich.console import Console

EVERY_S = 10.0
"""Least seconds between two plain lines."""
REFRESH_PER_S = 2
"""Updates of the live line per second. They are few, since a command may measure a server on the
same processors.
"""
SPEED_OVER_S = 3600.0
"""Seconds over which the speed is estimated: long, since runs of a simulation end rarely."""


class Progress:
    """Progress of one piece of work: its name, how much is done, and the time since its start."""

    def __init__(self, name: str, console: Console, live: bars.Progress | None = None) -> None:
        self._name, self._console, self._live = name, console, live
        self._task = bars.TaskID(0)
        if live is not None:
            self._task = live.add_task(name, total=None, note="")
        self._start = self._said_at = monotonic()

    def show(
        self, note: str, done: float = 0, total: float | None = None, *, at_once: bool = False
    ) -> None:
        """Show the present state of the work.

        On a terminal the live line shows `note`, and a bar of the amount `done` of `total` in any
        unit (`total` is None if unknown). Elsewhere a plain line shows `note` and the seconds since
        the start: only if the last line, or without one the start, was at least `EVERY_S` seconds
        ago, or with `at_once`.
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
    """Display of progress on stderr, or `console`; a live line has `more` columns, and remains at
    the end if it `stays`.
    """
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
