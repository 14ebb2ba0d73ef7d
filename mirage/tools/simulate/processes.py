"""Processes that compute jobs, each connected by a pipe.

They share nothing but pipes. The queues and locks of the standard library's pools are named
semaphores in /dev/shm, which remain if all processes are killed at once.
"""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable, Generator, Iterable
from itertools import count
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from threading import Thread
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from mirage.errors import CommandFailed
from mirage.processes.interrupt import interrupts_wait

Asked = TypeVar("Asked")
Given = TypeVar("Given")
Note = Callable[[int], None]


class RunKilled(CommandFailed):
    """The process of a run was killed; the message is one line."""


class JobOutcome(NamedTuple):
    """Result of a job, or the error that it raised."""

    given: Any = None
    error: Exception | None = None


def ignored(number: int = 0) -> None:
    """A callback that does nothing."""


class JobProcesses:
    """Up to `most` processes, started when they are needed; each calls `begin` with `arguments`
    first.

    A context manager: the processes end with the block, and are killed if it is left by an error.
    """

    def __init__(self, most: int, begin: Callable[..., None] = ignored, *arguments: Any) -> None:
        self._most, self._begin = most, (begin, arguments)
        self._processes: dict[Connection, BaseProcess] = {}
        self._idle: list[Connection] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, where: TracebackType | None
    ) -> None:
        for line, process in self._processes.items():
            if kind is not None:
                process.kill()
            line.close()
        for process in self._processes.values():
            process.join()

    def outcomes(
        self,
        function: Callable[[Asked, Note], Given],
        jobs: Iterable[Asked],
        noted: Note = ignored,
        ended: Callable[[], None] = ignored,
    ) -> Generator[Given, None, None]:
        """Results of `function` for each of `jobs`, in order; there may be endless jobs.

        Either exhaust the generator or leave the block. `ended` is called when any job ends,
        `noted` with the number that a running job passes to its `Note`. Raises the error of a job,
        or `RunKilled`. Only for the main thread.
        """
        waiting, busy = enumerate(jobs), dict[Connection, int]()
        done: dict[int, Given] = {}
        following = next(waiting, None)
        for number in count():
            while number not in done:
                while following is not None and (line := self._free()) is not None:
                    busy[line], job = following
                    _said(line.send, (function, job))
                    following = next(waiting, None)
                if not busy:
                    return
                for ready in wait(list(busy)):
                    assert isinstance(ready, Connection)
                    if not isinstance(told := _said(ready.recv), JobOutcome):
                        noted(told)
                        continue
                    if told.error is not None:
                        raise told.error
                    done[busy.pop(ready)] = told.given
                    self._idle.append(ready)
                    ended()
            yield done.pop(number)

    def _free(self) -> Connection | None:
        """Pipe to an idle process, started if none is idle; None if all `most` processes are
        busy.
        """
        if self._idle:
            return self._idle.pop()
        return self._started() if len(self._processes) < self._most else None

    def _started(self) -> Connection:
        """Pipe to a new process. It ignores a terminal's signals; the parent ends it.

        A signal that arrives during the start waits, because a half-started process would print a
        traceback.
        """
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_work, args=(there, *self._begin), daemon=True)
        with interrupts_wait():
            process.start()
            self._processes[here] = process
        there.close()  # so that the pipe ends with the process
        return here


def _said(way: Callable[..., Any], *what: Any) -> Any:
    try:
        return way(*what)
    except (EOFError, ConnectionError):
        raise RunKilled(
            "the process of a run was killed: it may have lacked memory, try --processes 1"
        ) from None


# -- inside a process ------------------------------------------------------------------------


def _work(line: Connection, begin: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    end_with_parent()
    begin(*arguments)
    while True:
        try:
            function, job = line.recv()
        except EOFError:
            return
        line.send(_outcome(function, job, line.send))


def _outcome(function: Callable[[Any, Note], Any], job: Any, note: Note) -> JobOutcome:
    try:
        return JobOutcome(function(job, note))
    except Exception as error:
        error.add_note(traceback.format_exc())
        return JobOutcome(error=error)


def end_with_parent() -> None:
    """End this process when its parent ends, for whatever reason."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    Thread(target=watch, daemon=True).start()
