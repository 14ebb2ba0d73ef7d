"""How far a fetch is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from mirage.tools.traces.download import Progress as Told
from mirage.units import size

EVERY_S = 10.0


@contextmanager
def counting(name: str) -> Iterator[Told]:
    """What to tell of the bytes that have come."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(name, console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TransferSpeedColumn(), console=console) as bar:
        task = bar.add_task(name, total=None)
        yield lambda have, total: bar.update(task, completed=have, total=total)


def _lines(name: str, console: Console) -> Told:
    said_at = monotonic()

    def told(have: int, total: int | None) -> None:
        nonlocal said_at
        if monotonic() - said_at < EVERY_S:
            return
        said_at = monotonic()
        of = f" of {size(total)}" if total else ""
        console.out(f"{name}: {size(have)}{of}", highlight=False)

    return told
