"""Commands that start real engines, as forks of a process that has imported vLLM.

python warm.py [NAME=VALUE... --] WORDS...   as the words of `mirage`, under rules as
`benchmarks.ablated` has them; servers that `replay` starts are such, too

To import vLLM takes ten seconds of computing, and each engine is two processes. What a server is
otherwise is unchanged: its engines are its children, lead sessions of their own, and end alike.
"""

from __future__ import annotations

import atexit
import ctypes
import math
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks import ablated, ablations
from mirage import cli
from mirage.processes import asking
from mirage.processes.child import AdoptedChild, Child, NewChild
from mirage.serve import launcher
from mirage.serve.engines.warm import PROGRAM, ROOM
from mirage.serve.means import Means
from mirage.tools.replay import child

FORKS = "mirage.engine.forks"
"""Imported where this process is a fork of one that has imported vLLM; only then it can be here."""
ROOT = Path(__file__).parents[2]
AT_IMPORT = {
    **launcher.OF_A_HOST,
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "PYTHONUNBUFFERED": "1",
}
"""Variables of `launcher.environment` that libraries read when they are imported."""
PR_SET_CHILD_SUBREAPER = 36


class Warm:
    """A process that has imported vLLM, with a socket in a folder. It ends when this one does."""

    def __init__(self, folder: Path) -> None:
        self.address = folder / f"warm-{os.getpid()}"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.address))
            listener.listen()
            forks = FORKS in sys.modules and sys.modules[FORKS].ForkedProgram.here
            self._process = _fork(listener) if forks else _program(listener)
        atexit.register(self._end)

    def start(self, command: list[str], environment: Mapping[str, str], log: Path) -> NewChild:
        """Start a child, as `Means.start` does."""
        return AdoptedChild(self.fork(command, environment, str(log), str(log)))

    def fork(
        self,
        command: list[str],
        environment: Mapping[str, str],
        out: str,
        err: str,
        folder: Path | None = None,
    ) -> int:
        """The process that is what the command would be; no child of this one, unless it adopts."""
        where = str(folder or Path.cwd())
        question = {"command": command, "environment": dict(environment), "folder": where}
        asked = question | {"out": out, "err": err, "until": math.inf}
        pid = asking.ask(self.address, "program", asked, Path(os.devnull))
        assert isinstance(pid, int)
        return pid

    def _end(self) -> None:
        """No more forks; those that there are go on."""
        self._process.send_signal(9)
        self._process.wait()
        self.address.unlink(missing_ok=True)


def _fork(listener: socket.socket) -> Child:
    from tests.e2e import warm_engines

    return AdoptedChild(warm_engines.serve_in_fork(listener))


def _program(listener: socket.socket) -> Child:
    return subprocess.Popen(
        [*PROGRAM, str(os.getpid()), str(listener.fileno())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=AT_IMPORT | ROOM | os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests/e2e'}"},
        process_group=0,
        pass_fds=[listener.fileno()],
    )


@cache
def of_this_session() -> Warm:
    """The one of all tests in this process; it begins to import when it is first asked for."""
    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    warm = Warm(folder)
    atexit.register(shutil.rmtree, folder)  # only now: what is registered, forks do as well
    return warm


class Begun(subprocess.Popen[str]):
    """A program of Python's as `Popen` starts it, but as a fork of the session's process."""

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, *given: Any) -> None:
        """Stand-in for what starts a program in `subprocess`."""
        _, _, folder, environment, _, _, _, *handles = given[:13]
        out, err = (f"/proc/{os.getpid()}/fd/{handles[place]}" for place in (3, 5))
        with adopting():
            self.pid = of_this_session().fork(args, environment or os.environ, out, err, folder)
        self._child_created = True
        self._close_pipe_fds(*handles)  # type: ignore[attr-defined]


def mirage(*words: str, folder: Path, timeout_s: float) -> None:
    """Run a command in a folder; raises if it fails."""
    process = Begun(
        [sys.executable, __file__, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=folder,
    )
    try:
        _, said = process.communicate(timeout=timeout_s)
        assert process.returncode == 0, said
    finally:
        process.kill()


@contextmanager
def adopting() -> Iterator[None]:
    """Context in which orphans of what this process has started become its children."""
    change = ctypes.CDLL(None, use_errno=True).prctl
    change(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        change(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def main(words: list[str], **means: Any) -> None:
    """The `mirage` command with more of its `Means`; a test runs it in a folder of its own."""
    at = words.index("--") if "--" in words else -1
    before, words = words[: at + 1], words[at + 1 :]
    with ablations.ablated(**ablations.parsed(before[:-1])):
        if words[0] == "serve":
            warm = Warm(Path.cwd())
            cli.main(words, Means(start=warm.start, probe=warm.address, **means))
        else:
            program = [__file__, *before]
            child.serve_command = ablated.servers(child.serve_command, program)
            child.subprocess = Forks
            cli.main(words)


class Forks:
    """Part of `subprocess` with which a replay starts its servers."""

    Popen, TimeoutExpired = Begun, subprocess.TimeoutExpired
    DEVNULL, STDOUT = subprocess.DEVNULL, subprocess.STDOUT


if __name__ == "__main__":
    main(sys.argv[1:])
