"""Processes that compute jobs, each at the end of a pipe.

They share nothing but pipes. The queues and locks of the standard library's pools are semaphores
with names in /dev/shm, which stay there if all processes are killed at once.
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
    """A process of runs was killed; one line."""


class JobOutcome(NamedTuple):
    """Result of a job, or the error that it raised."""

    given: Any = None
    error: Exception | None = None


def ignored(number: int = 0) -> None:
    """A listener that does nothing."""


class JobProcesses:
    """Up to `most` processes, started when they are needed; each calls `begin` first.

    A context: they are gone after the block, and killed if it is left by an error.
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
        """Results of `function` for each of `jobs`, in their order; jobs may be endless.

        All of it has to be taken, or the block left.

        `ended` is called when any of them ends, `noted` with what a job gives to its `Note`
        meanwhile. Raises what a job raised, or `RunKilled`. Main thread only.
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
        """The line to a process that has nothing to do."""
        if self._idle:
            return self._idle.pop()
        return self._started() if len(self._processes) < self._most else None

    def _started(self) -> Connection:
        """One more process. A terminal's signals are the parent's, which ends it quietly.

        One that comes meanwhile waits: a process that is left half started writes a traceback.
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
    """End this process with its parent, however the parent ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    Thread(target=watch, daemon=True).start()
