"""`mirage serve` whose real engines are forks of one process that has imported vLLM.

python warm.py WORDS...   as the words of `mirage`; servers that `replay` starts are such, too

To import vLLM takes ten seconds of computing, and each engine is two processes. What a server is
otherwise is unchanged: its engines are its children, lead sessions of their own, and end alike.
"""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mirage import cli
from mirage.processes import forking
from mirage.replay import child
from mirage.serve import launcher, relay
from mirage.serve.means import Means
from mirage.serve.starting import Child

MODULE = "tests.e2e.warm_engines"
ROOT = Path(__file__).parents[2]
AT_IMPORT = {
    **launcher.OF_A_HOST,
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "PYTHONUNBUFFERED": "1",
}
"""Of `launcher.environment` what libraries read when they are imported."""
TITLE = {"MIRAGE_TEST_TITLE": "." * 4096}
"""A process has as much room for a title, the command line of an engine, as it began with."""


class Adopted:
    """A `Child` that another process has forked, and that is an orphan of that one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def poll(self) -> int | None:
        return self._collect(os.WNOHANG)

    def wait(self) -> int:
        status = self._collect(0)
        assert status is not None
        return status

    def send_signal(self, sig: int, /) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def _collect(self, flags: int) -> int | None:
        if self._status is None and (found := os.waitpid(self.pid, flags))[0]:
            self._status = os.waitstatus_to_exitcode(found[1])
        return self._status


class Warm:
    """The process that has imported vLLM, with a socket in a folder. It ends when this one does."""

    def __init__(self, folder: Path) -> None:
        self.address = folder / f"warm-{os.getpid()}"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.address))
            listener.listen()
            self._process = subprocess.Popen(
                [sys.executable, "-m", MODULE, str(listener.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=AT_IMPORT | TITLE | os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests/e2e'}"},
                process_group=0,
                pass_fds=[listener.fileno()],
            )

    def start(self, command: list[str], environment: Mapping[str, str], log: Path) -> Child:
        """As `Means.start`."""
        return Adopted(self.fork(command, environment, log))

    def fork(self, command: list[str], environment: Mapping[str, str], log: Path) -> int:
        """The process that is what the command would be; no child of this one, unless it adopts."""
        question = {"command": command, "environment": dict(environment), "log": str(log)}
        pid = forking.ask(self.address, "engine", question, Path(os.devnull))
        assert isinstance(pid, int)
        return pid

    def end(self) -> None:
        """No more forks; those that there are go on."""
        self._process.kill()
        self._process.wait()
        self.address.unlink()


def main(words: list[str]) -> None:
    """The `mirage` command; a test runs it in a folder of its own."""
    if words[0] == "serve":
        warm = Warm(Path.cwd())
        atexit.register(warm.end)
        cli.main(words, Means(start=warm.start, probe=relay.probe(warm.address)))
    else:
        child.serve_command = _serve_command
        cli.main(words)


def _serve_command(*arguments: Any) -> list[str]:
    _, _, _, *words = cold_command(*arguments)
    return [sys.executable, __file__, *words]


cold_command = child.serve_command

if __name__ == "__main__":
    main(sys.argv[1:])
