"""What a person sees while the tuner works: a live line on a terminal, seldom a plain one else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.status import Status

PLAIN_EVERY_S = 10.0


class Progress:
    """Counts simulated windows, stage by stage."""

    def __init__(self, console: Console, live: Status | None) -> None:
        self._console, self._live = console, live
        self._stage, self._total, self._ended = "", 0, 0
        self._start = self._said_at = monotonic()

    def stage(self, name: str, total: int = 0) -> None:
        """What is done now, in so many windows at most; 0 if nobody knows."""
        self._stage, self._total, self._ended = name, total, 0
        self._show(first=True)

    def ended(self) -> None:
        """One window more."""
        self._ended += 1
        self._show()

    def _show(self, first: bool = False) -> None:
        now = monotonic()
        of = f" of at most {self._total}" if self._total else ""
        text = f"tune: {self._stage}, {self._ended}{of} windows, {now - self._start:.0f} s"
        if self._live is not None:
            self._live.update(text)
        elif first or now - self._said_at >= PLAIN_EVERY_S:
            self._said_at = now
            self._console.out(f"mirage: {text}", highlight=False)


@contextmanager
def shown(console: Console | None = None) -> Iterator[Progress]:
    """On stderr unless told otherwise."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield Progress(console, None)
        return
    with console.status("tune") as live:
        yield Progress(console, live)
