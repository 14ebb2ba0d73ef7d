"""What a person sees while a profile is measured: a live line on a terminal, lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape

EVERY_S = 10.0
"""Seconds between lines where there is no terminal."""

Seen = Callable[[float], None]


@contextmanager
def measuring(console: Console, number: int, of: int, name: str) -> Iterator[Seen]:
    """Around one part; the function that is given hears how many seconds it has taken."""
    begin = f"[{number}/{of}] {name}"
    if console.is_terminal:
        with console.status(escape(f"{begin} ...")) as status:
            yield lambda seconds: status.update(escape(f"{begin}, {seconds:.0f} s"))
        return
    console.out(f"{begin} ...", highlight=False)
    said = 0.0

    def seldom(seconds: float) -> None:
        nonlocal said
        if seconds - said >= EVERY_S:
            said = seconds
            console.out(f"{begin}, {seconds:.0f} s", highlight=False)

    yield seldom


def ended(console: Console, number: int, of: int, name: str, seconds: float, kept: bool) -> None:
    """A part is there."""
    how = "measured before, not again" if kept else f"{seconds:.0f} s"
    console.out(f"[{number}/{of}] {name}: {how}", highlight=False)
