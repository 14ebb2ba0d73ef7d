"""Commands that start real engines, as forks of a process that has imported vLLM.

python warm.py [NAME=VALUE... --] WORDS... as the words of `mirage`, under rules as
`benchmarks.ablated` has them; servers that `replay` starts run in this way, too

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
from mirage.serve.engines.warm import PROGRAM, ROOM
from mirage.serve.launch import launcher
from mirage.serve.launch.programs import Means
from mirage.tools.replay import child

FORKS = "mirage.engine.forks"
"""Module that is loaded only in a fork of a process that has imported vLLM."""
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
    """A process that has imported vLLM and makes forks, asked over a socket in a folder. It ends
    when this process does.
    """

    def __init__(self, folder: Path) -> None:
        self.address = folder / f"warm-{os.getpid()}"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.address))
            listener.listen()
            forks = FORKS in sys.modules and sys.modules[FORKS].ForkedProgram.here
            self._process = _fork(listener) if forks else _program(listener)
        atexit.register(self._end)

    def start(self, command: list[str], environment: Mapping[str, str], log: Path) -> NewChild:
        """Start a program as a fork, in the way that `Means.start` does."""
        return AdoptedChild(self.fork(command, environment, str(log), str(log)))

    def fork(
        self,
        command: list[str],
        environment: Mapping[str, str],
        out: str,
        err: str,
        folder: Path | None = None,
    ) -> int:
        """Make a fork that does what `command` would, and return its process id. It is a child of
        this process only if that adopts orphans.
        """
        where = str(folder or Path.cwd())
        question = {"command": command, "environment": dict(environment), "folder": where}
        asked = question | {"out": out, "err": err, "until": math.inf}
        pid = asking.ask(self.address, "program", asked, Path(os.devnull))
        assert isinstance(pid, int)
        return pid

    def _end(self) -> None:
        """Kill the forking process. Its forks go on."""
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
    """The only `Warm` of all tests in this process; it imports vLLM when it is first used."""
    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    warm = Warm(folder)
    atexit.register(shutil.rmtree, folder)  # only now: what is registered, forks do as well
    return warm


class Begun(subprocess.Popen[str]):
    """`subprocess.Popen` of a Python program that runs as a fork of the session's
    `Warm` instead.
    """

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, *given: Any) -> None:
        """Replacement of the method with which `Popen` starts a program."""
        _, _, folder, environment, _, _, _, *handles = given[:13]
        out, err = (f"/proc/{os.getpid()}/fd/{handles[place]}" for place in (3, 5))
        with adopting():
            self.pid = of_this_session().fork(args, environment or os.environ, out, err, folder)
        self._child_created = True
        self._close_pipe_fds(*handles)  # type: ignore[attr-defined]


def mirage(*words: str, folder: Path, timeout_s: float) -> None:
    """Run a `mirage` command in a folder, and wait for its end. Raises if it fails."""
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
    """Context in which orphaned grandchildren become children of this process."""
    change = ctypes.CDLL(None, use_errno=True).prctl
    change(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        change(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def main(words: list[str], **means: Any) -> None:
    """Run the `mirage` command with forks in place of started programs, and with these `Means`."""
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
    """Replacement of the module `subprocess` for a replay, which starts its servers as forks."""

    Popen, TimeoutExpired = Begun, subprocess.TimeoutExpired
    DEVNULL, STDOUT = subprocess.DEVNULL, subprocess.STDOUT


if __name__ == "__main__":
    main(sys.argv[1:])
