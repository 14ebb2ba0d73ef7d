"""Child process that leads a session of its own, and whose end this process can wait for.

A program that is started waits for `begin`, and ends if this process ends before that. So the
caller can first tell other processes of it, such as the reaper, which later end it or go on with
it. A program unknown to them would run for good if this process were killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol


class Child(Protocol):
    """A child process of this one; `subprocess.Popen` is one."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """Exit status, negative for a signal; None while the process runs."""

    def wait(self) -> int:
        """Wait until the process has ended, and return its exit status."""

    def send_signal(self, sig: int, /) -> None:
        """Send a signal; nothing happens if the process has ended."""


class NewChild(Child, Protocol):
    """Child that has just been started, and waits for `begin`."""

    def begin(self) -> None:
        """Let the program run; nothing happens if it has ended."""


Start = Callable[[list[str], Mapping[str, str], Path], NewChild]
"""Function that starts a command line in an environment; output is appended to the log file."""

GATE = """
import os, sys
if os.read(0, 1):
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.execv(sys.argv[1], sys.argv[1:])
"""
"""Program that becomes the command in its arguments once a byte comes on its standard input, and
ends if the input is closed without one.
"""
PR_SET_CHILD_SUBREAPER = 36


class HeldProgram(subprocess.Popen[bytes]):
    """A command line that waits for `begin`. Raises `OSError` if it cannot be started."""

    def __init__(self, command: list[str], environment: Mapping[str, str], log: Path) -> None:
        with log.open("ab") as output:
            super().__init__(
                [sys.executable, "-I", "-S", "-c", GATE, *command],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def begin(self) -> None:
        """Let the program run, by a byte on its standard input; nothing happens if it has ended."""
        assert self.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.stdin.write(b"\n")
            self.stdin.close()


def start_program(command: list[str], environment: Mapping[str, str], log: Path) -> NewChild:
    """A process that waits for `begin` to run `command`. Raises `OSError` if it cannot start."""
    return HeldProgram(command, environment, log)


def adopt_orphans() -> None:
    """Make this process the parent of orphaned grandchildren, so that it can see them end."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class AdoptedChild:
    """A `Child` that another process forked, and that is an orphan now.

    This process has to call `adopt_orphans` before the child becomes an orphan.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def begin(self) -> None:
        """Do nothing: the process already runs."""

    def poll(self) -> int | None:
        """Exit status, negative for a signal; None while the process runs."""
        return self._collect(os.WNOHANG)

    def wait(self) -> int:
        """Wait until the process has ended, and return its exit status."""
        status = self._collect(0)
        assert status is not None
        return status

    def send_signal(self, sig: int, /) -> None:
        """Send a signal; nothing happens if the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def _collect(self, flags: int) -> int | None:
        if self._status is None and (found := os.waitpid(self.pid, flags))[0]:
            self._status = os.waitstatus_to_exitcode(found[1])
        return self._status
