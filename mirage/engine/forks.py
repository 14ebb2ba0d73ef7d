"""Python programs as forks of a process that has imported vLLM, so that engines start warm.

Importing vLLM takes some ten seconds of computing, and an engine is two processes. A fork has the
imports and is otherwise what the program would be: it leads a session of its own, and has the
environment, the folder and the files that it is given, and none of its parent's.
"""

from __future__ import annotations

import os
import runpy
import signal
import stat
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from multiprocessing import resource_tracker
from multiprocessing.context import ForkContext, ForkProcess
from pathlib import Path
from typing import Any

import setproctitle
from vllm.v1.engine import utils

from mirage.processes.exits import end_as_program

ROLE = "program"


class ForkedProgram:
    """State of this process: `here` is True once it has become a program."""

    here = False


class ForkedCore(ForkProcess):
    """EngineCore process of vLLM as a fork of its API server, without the server's open sockets and
    its wakeup descriptor for signals."""

    def start(self) -> None:
        """Start the core, with the API server's resource tracker running, as for a core that vLLM
        spawns.

        A tracker of the core's own would be killed with the core, and its shared memory would stay.
        """
        resource_tracker.ensure_running()
        super().start()

    def run(self) -> None:
        signal.set_wakeup_fd(-1)
        let_go(stat.S_ISSOCK)
        super().run()


class CoresAreForks(ForkContext):
    """Start method by which vLLM forks engine cores."""

    Process = ForkedCore


def fork_of_the_server() -> CoresAreForks:
    """Return the start method for cores that replaces vLLM's, which on a CPU spawns them and
    imports everything again."""
    return CoresAreForks()


def begin_program(question: dict[str, Any]) -> int:
    """Fork a program and return the number of its process. Its output files are opened before the
    fork, so `OSError` is raised here if they cannot be.

    `question` has its `command` line as Python takes it, the `environment`, the `folder` to work
    in, the paths `out` and `err`, and `until`: the time in seconds of the monotonic clock up to
    which it may be started. Raise `TimeoutError` after that time, since the caller no longer waits.
    """
    if time.monotonic() > question["until"]:
        raise TimeoutError(f"too late to start {question['command']}")
    paths = (os.devnull, question["out"], question["err"])
    modes = (os.O_RDONLY, *[os.O_WRONLY | os.O_CREAT | os.O_APPEND] * 2)
    files = [os.open(path, mode, 0o644) for path, mode in zip(paths, modes, strict=True)]
    told = question["command"], question["environment"], question["folder"]
    if not (child := os.fork()):
        end_as_program(lambda: _become(*told, files))
    return child


def _become(command: list[str], environment: dict[str, str], folder: str, files: list[int]) -> None:
    """Do what ``python -m MODULE``, ``python -c CODE`` or ``python FILE``, with arguments, would
    do."""
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
    let_go(lambda mode: True)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    tempfile.tempdir = None
    ForkedProgram.here = True
    setproctitle.setproctitle(" ".join(command))
    utils.get_mp_context = fork_of_the_server
    _run(*command[1:])


def _run(first: str, *words: str) -> None:
    sys.argv = [first, *words]
    if first == "-m":
        sys.argv = list(words)
        warnings.filterwarnings("ignore", ".*found in sys.modules", RuntimeWarning)
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *words[1:]]
        exec(words[0], {"__name__": "__main__"})
    else:
        runpy.run_path(first, run_name="__main__")


def let_go(of: Callable[[int], bool], keep: int = -1) -> None:
    """Close the open files whose modes `of` accepts, except standard input, output and error and
    the descriptor `keep`. Their descriptors then refer to /dev/null, because objects may still
    close them."""
    null = os.open(os.devnull, os.O_RDWR)
    for entry in Path("/proc/self/fd").iterdir():
        number = int(entry.name)
        if number > 2 and number not in (null, keep) and _is(number, of):
            os.dup2(null, number)
    os.close(null)


def _is(number: int, of: Callable[[int], bool]) -> bool:
    try:
        return of(os.fstat(number).st_mode)
    except OSError:  # that of the folder that was listed
        return False
