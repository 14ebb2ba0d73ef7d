"""Many runs at once: one process per core, results in the order of the jobs."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from threading import Thread

from mirage.simulate.experiment import Setup
from mirage.simulate.run import Figures, run


@dataclass(frozen=True)
class Job:
    """One run: an experiment that was checked, a policy and a seed."""

    setup: Setup
    policy: str
    seed: int


def run_all(
    jobs: Sequence[Job], processes: int | None = None, done: Callable[[], None] = lambda: None
) -> list[Figures]:
    """The figures of each job. `done` is called as each ends.

    Ctrl-C, and whatever a run raises, ends all processes at once. Raises `BrokenProcessPool` if
    one of them was killed.
    """
    if processes == 1:
        return [_and_then(_run(job), done) for job in jobs]
    workers = min(processes or os.cpu_count() or 1, len(jobs)) or 1
    with _pool(workers) as pool:
        futures = _submit(pool, jobs)
        for future in as_completed(futures):
            future.result()
            done()
        return [future.result() for future in futures]


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that are gone after the block, and killed if the block is left by an error."""
    others = multiprocessing.active_children()
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_end_with_parent)
    try:
        yield pool
    except BaseException:
        for process in multiprocessing.active_children():
            if process not in others:
                process.kill()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _submit(pool: ProcessPoolExecutor, jobs: Sequence[Job]) -> list[Future[Figures]]:
    """Start the processes with SIGINT blocked, which they inherit: Ctrl-C is the parent's.

    It ends them, and none of them writes a traceback. A signal that comes meanwhile waits.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return [pool.submit(_run, job) for job in jobs]
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run(job: Job) -> Figures:
    return run(job.setup, job.policy, job.seed)


def _and_then(figures: Figures, done: Callable[[], None]) -> Figures:
    done()
    return figures


def _end_with_parent() -> None:
    """Whatever becomes of the parent, no process of a run outlives it."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    Thread(target=watch, daemon=True).start()
