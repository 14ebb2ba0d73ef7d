"""Many runs at once: one process per core, results in the order of the jobs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from typing import Protocol

from mirage.simulate.engine import Engine
from mirage.simulate.experiment import Setup
from mirage.simulate.fleet.run import run_fleet
from mirage.simulate.fleet.setup import FleetSetup
from mirage.simulate.run import Metrics, run
from mirage.tools.simulate.processes import JobProcesses, Note

LOOK_S = 0.5
"""Seconds between two counts of what runs have done."""


class HasEngines(Protocol):
    """A world, or a fleet of them."""

    @property
    def engines(self) -> list[Engine]:
        """All of them, now."""


class PoolJob(Protocol):
    """A `SimulationJob`, or another computation that can be sent to a process."""

    def run(self, begun: Callable[[HasEngines], None] = lambda world: None) -> Metrics:
        """Its figures. `begun` is given the world of engines, where there is one."""


@dataclass(frozen=True)
class SimulationJob:
    """One run: an experiment that was checked, a policy and a seed."""

    setup: Setup | FleetSetup
    policy: str
    seed: int

    def run(self, begun: Callable[[HasEngines], None] = lambda world: None) -> Metrics:
        """Its figures. `begun` is given the world of engines."""
        if isinstance(self.setup, FleetSetup):
            return run_fleet(self.setup, self.policy, self.seed, begun=begun)
        return run(self.setup, self.policy, self.seed, begun=begun)


class Watcher(Protocol):
    """Listener for the progress of runs."""

    def run_ended(self) -> None:
        """One more."""

    def finished(self, requests: int) -> None:
        """So many requests in all runs together, those under way included."""


class Nobody:
    """A `Watcher` that ignores everything."""

    def run_ended(self) -> None: ...

    def finished(self, requests: int) -> None: ...


def run_all(
    jobs: Sequence[PoolJob], processes: int | None = None, watcher: Watcher | None = None
) -> list[Metrics]:
    """The figures of each job. Requests are counted by processes of their own alone.

    Ctrl-C, and whatever a run raises, ends all processes at once. Raises `RunKilled`.
    """
    watcher = watcher or Nobody()
    if processes == 1:
        return [_and_then(job.run(), watcher) for job in jobs]
    requests = 0

    def noted(finished: int) -> None:
        nonlocal requests
        requests += finished
        watcher.finished(requests)

    with JobProcesses(processes or os.cpu_count() or 1) as pool:
        return list(pool.outcomes(_run, jobs, noted, watcher.run_ended))


def _and_then(figures: Metrics, watcher: Watcher) -> Metrics:
    watcher.run_ended()
    return figures


# -- inside a process of runs -----------------------------------------------------------------


def _run(job: PoolJob, note: Note) -> Metrics:
    worlds: list[HasEngines] = []
    with _counted(worlds, note):
        return job.run(begun=worlds.append)


@contextmanager
def _counted(worlds: Sequence[HasEngines], note: Note) -> Iterator[None]:
    """Note what has finished in `worlds`, now and then.

    From a thread that reads along, so that the simulation need not stop to tell.
    """
    over = Event()

    def watch() -> None:
        told, ended = 0, False
        while not ended:
            ended = over.wait(LOOK_S)
            engines = [engine for world in worlds for engine in world.engines]
            seen = sum(engine.tally.counters.completed for engine in engines)
            if seen > told:
                note(seen - told)
            told = seen

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
