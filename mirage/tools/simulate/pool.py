"""Many runs at once: one process per core, results in the order of the jobs."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor
from concurrent.futures import wait as futures_wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import SpawnContext
from multiprocessing.sharedctypes import Synchronized
from threading import Event, Thread
from typing import Any, Protocol, TypeVar

from mirage.errors import CommandFailed
from mirage.processes.interrupt import interrupts_wait
from mirage.simulate.engine import Engine
from mirage.simulate.experiment import Setup
from mirage.simulate.fleet.run import run_fleet
from mirage.simulate.fleet.setup import FleetSetup
from mirage.simulate.run import Metrics, run

LOOK_S = 0.5
"""Seconds between two counts of what runs have done."""
Asked = TypeVar("Asked")
Given = TypeVar("Given")


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


class RunKilled(CommandFailed):
    """A process of runs was killed; one line."""


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
    workers = min(processes or os.cpu_count() or 1, len(jobs)) or 1
    context = spawn_context()
    requests = context.Value("Q", 0)
    with processes_of(workers, context, _begin, requests) as pool:
        futures = submit(pool, _run, jobs)
        left = set(futures)
        while left:
            ended, left = futures_wait(left, timeout=LOOK_S, return_when=FIRST_COMPLETED)
            for future in ended:
                future.result()
                watcher.run_ended()
            watcher.finished(requests.value)
        return [future.result() for future in futures]


def spawn_context() -> SpawnContext:
    """Processes are spawned; what tidies up their semaphores outlives the command's terminal."""
    with interrupts_wait():
        resource_tracker.ensure_running()
    return multiprocessing.get_context("spawn")


@contextmanager
def processes_of(
    workers: int, context: SpawnContext, begin: Callable[..., None], *arguments: Any
) -> Iterator[ProcessPoolExecutor]:
    """Processes that are gone after the block, and killed if the block is left by an error.

    Each calls `begin` with the `arguments` first. Raises `RunKilled`.
    """
    others = multiprocessing.active_children()
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=begin, initargs=arguments)
    try:
        yield pool
    except BaseException as error:
        for process in multiprocessing.active_children():
            if process not in others:
                process.kill()
        if isinstance(error, BrokenProcessPool):
            raise RunKilled(
                "the process of a run was killed: it may have lacked memory, try --processes 1"
            ) from None
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def submit(
    pool: ProcessPoolExecutor, function: Callable[[Asked], Given], jobs: Sequence[Asked]
) -> list[Future[Given]]:
    """Start the processes so that a terminal's signals are the parent's, which ends them quietly.

    One that comes meanwhile waits: a process that is left half started writes a traceback.
    """
    with interrupts_wait():
        return [pool.submit(function, job) for job in jobs]


def _and_then(figures: Metrics, watcher: Watcher) -> Metrics:
    watcher.run_ended()
    return figures


# -- inside a process of runs -----------------------------------------------------------------

_requests: Synchronized[int]
"""Finished in all processes."""


def _begin(requests: Synchronized[int]) -> None:
    global _requests
    _requests = requests
    end_with_parent()


def _run(job: PoolJob) -> Metrics:
    worlds: list[HasEngines] = []
    with _counted(worlds):
        return job.run(begun=worlds.append)


@contextmanager
def _counted(worlds: Sequence[HasEngines]) -> Iterator[None]:
    """Add what finishes in `worlds` to what all processes have finished, now and then.

    From a thread that reads along, so that the simulation need not stop to tell.
    """
    over = Event()

    def watch() -> None:
        told, ended = 0, False
        while not ended:
            ended = over.wait(LOOK_S)
            engines = [engine for world in worlds for engine in world.engines]
            seen = sum(engine.tally.counters.completed for engine in engines)
            with _requests.get_lock():
                _requests.value += max(0, seen - told)
            told = seen

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def end_with_parent() -> None:
    """Whatever becomes of the parent, no process of a run outlives it."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    Thread(target=watch, daemon=True).start()
