"""A process that has imported vLLM, and whose forks become what would else be started as programs.

python -m tests.e2e.warm_engines LISTENER   started by `warm.py`, ends with the process that did

Beside what `mirage.engine.forkserver` answers there is the role `program`: it starts a command line
of Python's, and says the number of the process. That process is an orphan by then, and so a
child of the next process above that adopts orphans: for an engine the supervisor.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import runpy
import signal
import socket
import stat
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing import resource_tracker
from multiprocessing.context import ForkContext, ForkProcess
from pathlib import Path
from typing import Any

import setproctitle
import vllm.entrypoints.openai.api_server
import vllm.v1.engine.async_llm
import vllm.v1.engine.utils

from mirage.engine import executor, forkserver, scheduler  # noqa: F401
from mirage.processes.answering import answer_in_forks

PR_SET_PDEATHSIG = 1
FORK = "MIRAGE_TEST_FORK"
"""The variable that says which process is such a fork; programs that it starts are none."""


class Core(ForkProcess):
    """An engine core, as a fork of its server, whose sockets and signals are not its own."""

    def start(self) -> None:
        """Beside the server's resource tracker, which one that is spawned has as well.

        A tracker of the core's own is killed with the core, and shared memory stays.
        """
        resource_tracker.ensure_running()
        super().start()

    def run(self) -> None:
        signal.set_wakeup_fd(-1)
        _let_go(stat.S_ISSOCK)
        super().run()


class Cores(ForkContext):
    Process = Core


def program(question: dict[str, Any]) -> int:
    """Start one; the number of its process. Its files are open then: the caller may close them."""
    paths = (os.devnull, question["out"], question["err"])
    modes = (os.O_RDONLY, *[os.O_WRONLY | os.O_CREAT | os.O_APPEND] * 2)
    files = [os.open(path, mode, 0o644) for path, mode in zip(paths, modes, strict=True)]
    if child := os.fork():
        return child
    code = 1
    try:
        _become(question["command"], question["environment"], question["folder"], files)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else bool(end.code)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _become(command: list[str], environment: dict[str, str], folder: str, files: list[int]) -> None:
    """What ``python -m MODULE``, ``python -c CODE`` or ``python FILE``, and words, would do."""
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
    _let_go(lambda mode: True)
    os.environ.clear()
    os.environ.update(environment)
    os.environ[FORK] = str(os.getpid())
    os.chdir(folder)
    tempfile.tempdir = None
    setproctitle.setproctitle(" ".join(command))
    # On a CPU vLLM says that cores are spawned, and each would import it again.
    vllm.v1.engine.utils.get_mp_context = Cores
    _run(*command[1:])


def _run(first: str, *words: str) -> None:
    sys.argv = [first, *words]
    if first == "-m":
        sys.argv = list(words)
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *words[1:]]
        exec(words[0], {"__name__": "__main__"})
    else:
        runpy.run_path(first, run_name="__main__")


def _let_go(of: Callable[[int], bool], keep: int = -1) -> None:
    """Give up open files of these modes. Their numbers stay taken: objects may close them yet."""
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


def serve(listener: socket.socket) -> None:
    """Start what is asked for until the parent ends, and with it this process."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    gc.freeze()  # else each fork's first collection would write to, and so copy, all pages
    answer_in_forks(listener, forkserver.ROLES | {"program": program})


def serve_in_fork(listener: socket.socket) -> int:
    """Serve in a fork of this process, itself a fork that has imported vLLM; its number."""
    if child := os.fork():
        return child
    try:
        _let_go(lambda mode: True, keep=listener.fileno())
        for number in range(3):
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
        setproctitle.setproctitle("warm engines")
        serve(listener)
    finally:
        os._exit(1)


def main() -> None:
    setproctitle.getproctitle()  # finds its room in the environment as it was
    serve(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    main()
