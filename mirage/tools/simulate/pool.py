"""Many simulation runs in parallel: one process for each core, results in the order of the jobs."""

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
"""Seconds between two counts of finished requests."""


class HasEngines(Protocol):
    """A simulated device (`World`), or several with a router (`Fleet`): both have engines."""

    @property
    def engines(self) -> list[Engine]:
        """All engines at this moment."""


class PoolJob(Protocol):
    """A `SimulationJob`, or another computation that can be sent to a process."""

    def run(self, begun: Callable[[HasEngines], None] = lambda world: None) -> Metrics:
        """Run the job and return its metrics. If it simulates, `begun` is called with its world or
        fleet.
        """


@dataclass(frozen=True)
class SimulationJob:
    """One run: a checked experiment, a policy and a seed."""

    setup: Setup | FleetSetup
    policy: str
    seed: int

    def run(self, begun: Callable[[HasEngines], None] = lambda world: None) -> Metrics:
        """Run the simulation and return its metrics. `begun` is called with the world or fleet."""
        if isinstance(self.setup, FleetSetup):
            return run_fleet(self.setup, self.policy, self.seed, begun=begun)
        return run(self.setup, self.policy, self.seed, begun=begun)


class Watcher(Protocol):
    """Receiver of the progress of runs."""

    def run_ended(self) -> None:
        """Note that one more run has ended."""

    def finished(self, requests: int) -> None:
        """Note the number of finished requests, over all runs so far, ended or under way."""


class Nobody:
    """A `Watcher` that ignores everything."""

    def run_ended(self) -> None: ...

    def finished(self, requests: int) -> None: ...


def run_all(
    jobs: Sequence[PoolJob], processes: int | None = None, watcher: Watcher | None = None
) -> list[Metrics]:
    """Run all jobs; return their metrics in order. `processes` None is one for each core; with 1
    they run in this process, where requests are not counted. `watcher` is told of finished requests
    and runs.

    Ctrl-C, and any error of a run, ends all processes immediately. Raises the error of a run, and
    `RunKilled` if the process of a run was killed.
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
    """Context that counts, every `LOOK_S` seconds and at its end, the requests that `worlds`
    finished since the last count, and calls `note` with their number unless it is 0.

    A thread reads the counters, so that the simulation need not stop for it.
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
