"""Processor time of a process's descendants."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mirage.processes.proc_stat import proc_stat


def cpu_seconds(pid: int) -> float:
    """Return the processor seconds of all descendants of `pid`, and of processes that have ended
    and for which a descendant has waited.

    A child for which `pid` itself has waited is left out from then on, so the sum may fall.
    """
    return sum(map(_seconds, _descendants(pid)))


def _descendants(pid: int) -> Iterator[int]:
    for child in _children(pid):
        yield child
        yield from _descendants(child)


def _children(pid: int) -> Iterator[int]:
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            yield from map(int, (thread / "children").read_text().split())
    except OSError:  # it has ended, or this kernel does not tell
        return


def _seconds(pid: int) -> float:
    stat = proc_stat(pid)
    return 0.0 if stat is None else stat.cpu_s + stat.waited_s
