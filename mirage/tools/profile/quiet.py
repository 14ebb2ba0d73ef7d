"""Count of other processes that want a core during a measurement."""

from __future__ import annotations

import os
import statistics
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

WATCH_HZ = 2


@contextmanager
def others_watched() -> Iterator[list[int]]:
    """Context that appends the number of other processes wanting a core to the yielded list, twice
    a second.
    """
    counts: list[int] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(1 / WATCH_HZ):
            counts.append(_others_running())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield counts
    finally:
        over.set()
        thread.join()


def mean(counts: list[int]) -> float:
    """Mean of the counts; 0 for a measurement that ended before the first one."""
    return statistics.mean(counts) if counts else 0.0


def _others_running() -> int:
    """Number of processes in state R that are neither this process nor its descendants."""
    parents: dict[int, int] = {}
    running = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().rpartition(")")
        except OSError:
            continue  # it has ended
        state, parent = rest.split()[:2]
        pid = int(name.split()[0])
        parents[pid] = int(parent)
        if state == "R":
            running.add(pid)
    return sum(os.getpid() not in _line(pid, parents) for pid in running)


def _line(pid: int, parents: Mapping[int, int]) -> list[int]:
    """A process, its parent, and all further ancestors that are known."""
    line = [pid]
    while line[-1] in parents:
        line.append(parents[line[-1]])
    return line
