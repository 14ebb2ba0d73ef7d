"""Start of an engine's server as a child process: here as a program of its own.

Another way is a fork of a process that has imported vLLM (`mirage.serve.warm`). Whatever the way,
the child leads a session of its own and its end can be waited for by this process.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol


class Child(Protocol):
    """A child process of this one; `subprocess.Popen` is one."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """The exit status; negative is a signal, None if it still runs."""

    def wait(self) -> int:
        """Wait for its end; the exit status."""

    def send_signal(self, sig: int, /) -> None:
        """Nothing happens if it has ended."""


Start = Callable[[list[str], Mapping[str, str], Path], Child]
"""Starts a command line in an environment. What it prints is added to the log."""


def start_program(command: list[str], environment: Mapping[str, str], log: Path) -> Child:
    """Raises `OSError` if it cannot be started."""
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


class AdoptedChild:
    """A `Child` that another process has forked, and that is an orphan of that one.

    This process has to adopt orphans.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def poll(self) -> int | None:
        """See `Child`."""
        return self._collect(os.WNOHANG)

    def wait(self) -> int:
        """See `Child`."""
        status = self._collect(0)
        assert status is not None
        return status

    def send_signal(self, sig: int, /) -> None:
        """See `Child`."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def _collect(self, flags: int) -> int | None:
        if self._status is None and (found := os.waitpid(self.pid, flags))[0]:
            self._status = os.waitstatus_to_exitcode(found[1])
        return self._status
