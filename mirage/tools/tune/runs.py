"""Simulation of many windows, each only once: one process per core, results in the order of the
runs.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from mirage.tools.simulate.processes import JobProcesses, Note
from mirage.tools.tune.goals import WindowResult
from mirage.tools.tune.simulated import Bench, WindowRun, simulate

Ended = Callable[[], None]
Results = list[WindowResult | None]
LEAST_AT_ONCE = 2
"""Fewest runs for which other processes are used."""


class WindowRunner:
    """Simulates windows and remembers their results."""

    def __init__(self, bench: Bench, pool: JobProcesses | None, ended: Ended) -> None:
        self._bench, self._pool, self._ended = bench, pool, ended
        self._known: dict[str, WindowResult | None] = {}

    def __call__(self, runs: Sequence[WindowRun]) -> Results:
        """Result of each run; None for a configuration that does not fit."""
        keys = [_key(run) for run in runs]
        new = {
            k: run for k, run in dict(zip(keys, runs, strict=True)).items() if k not in self._known
        }
        for key, outcome in zip(new, self._fresh(list(new.values())), strict=True):
            self._known[key] = outcome
        return [self._known[key] for key in keys]

    def _fresh(self, runs: Sequence[WindowRun]) -> Iterator[WindowResult | None]:
        results: Iterator[WindowResult | None]
        if self._pool is None or len(runs) < LEAST_AT_ONCE:
            results = (simulate(self._bench, run) for run in runs)
        else:
            results = self._pool.outcomes(_simulate, runs)
        for outcome in results:
            self._ended()
            yield outcome


@contextmanager
def runner(bench: Bench, processes: int | None, ended: Ended) -> Iterator[WindowRunner]:
    """Runner with processes that end with the block; `processes` None is one per core. With one, it
    simulates in this process.
    """
    workers = processes or os.cpu_count() or 1
    if workers == 1:
        yield WindowRunner(bench, None, ended)
        return
    with JobProcesses(workers, _begin, bench.pickled) as pool:
        yield WindowRunner(bench, pool, ended)


def _key(run: WindowRun) -> str:
    return f"{run.window} {run.seed} {run.slower} {run.at_once} {run.config.model_dump_json()}"


# -- inside a process ----------------------------------------------------------------------

_bench: Bench


def _begin(pickled: bytes) -> None:
    global _bench
    _bench = pickle.loads(pickled)


def _simulate(run: WindowRun, note: Note) -> WindowResult | None:
    return simulate(_bench, run)
