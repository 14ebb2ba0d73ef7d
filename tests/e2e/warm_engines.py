"""A process that has imported vLLM, and whose forks become the servers of `mirage serve`'s engines.

python -m tests.e2e.warm_engines LISTENER   started by `warm.py`, ends with the process that did

Beside what `mirage.engine.forkserver` answers there is the role `engine`: it starts a command line
of vLLM's server, and says the number of the process. That process is an orphan by then, and so a
child of the next process above that adopts orphans: the supervisor.
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
from multiprocessing.context import ForkContext, ForkProcess
from pathlib import Path
from typing import Any

import setproctitle
import vllm.entrypoints.openai.api_server
import vllm.v1.engine.async_llm
import vllm.v1.engine.utils

from mirage.engine import executor, forkserver, scheduler  # noqa: F401
from mirage.processes import forking

PR_SET_PDEATHSIG = 1


class Core(ForkProcess):
    """An engine core, as a fork of its server, whose sockets and signals are not its own."""

    def run(self) -> None:
        signal.set_wakeup_fd(-1)
        _let_go(stat.S_ISSOCK)
        super().run()


class Cores(ForkContext):
    Process = Core


def engine(question: dict[str, Any]) -> int:
    """Start a server; the number of its process."""
    if child := os.fork():
        return child
    code = 1
    try:
        _become_server(**question)
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


def _become_server(command: list[str], environment: dict[str, str], log: str) -> None:
    """What the command would do as a program: ``python -m MODULE WORDS...``."""
    _, how, module, *words = command
    assert how == "-m", command
    os.setsid()
    _let_go(lambda mode: True)
    for path, number in ((os.devnull, 0), (log, 1), (log, 2)):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    setproctitle.setproctitle(" ".join(command))
    # On a CPU vLLM says that cores are spawned, and each would import it again.
    vllm.v1.engine.utils.get_mp_context = Cores
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__")


def _let_go(of: Callable[[int], bool]) -> None:
    """Give up open files of these modes. Their numbers stay taken: objects may close them yet."""
    null = os.open(os.devnull, os.O_RDWR)
    for entry in Path("/proc/self/fd").iterdir():
        number = int(entry.name)
        if number > 2 and number != null and _is(number, of):
            os.dup2(null, number)
    os.close(null)


def _is(number: int, of: Callable[[int], bool]) -> bool:
    try:
        return of(os.fstat(number).st_mode)
    except OSError:  # that of the folder that was listed
        return False


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    setproctitle.getproctitle()  # finds its room in the environment as it was
    gc.freeze()  # else each fork's first collection would write to, and so copy, all pages
    listener = socket.socket(fileno=int(sys.argv[1]))
    forking.serve(listener, forkserver.ROLES | {"engine": engine})


if __name__ == "__main__":
    main()
