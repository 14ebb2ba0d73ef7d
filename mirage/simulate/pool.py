"""Many runs at once: one process per core, results in the order of the jobs."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass

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
    """The figures of each job. `done` is called as each ends. Ctrl-C ends the processes."""
    if processes == 1:
        return [_and_then(_run(job), done) for job in jobs]
    context = multiprocessing.get_context("spawn")
    workers = min(processes or os.cpu_count() or 1, len(jobs)) or 1
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_ignore_interrupt)
    try:
        futures = [pool.submit(_run, job) for job in jobs]
        for future in as_completed(futures):
            future.result()
            done()
        return [future.result() for future in futures]
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _run(job: Job) -> Figures:
    return run(job.setup, job.policy, job.seed)


def _and_then(figures: Figures, done: Callable[[], None]) -> Figures:
    done()
    return figures


def _ignore_interrupt() -> None:
    """Ctrl-C is the parent's to handle: it cancels what has not begun."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
