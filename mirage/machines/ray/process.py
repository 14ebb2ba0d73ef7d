"""Ray's processes on this machine: one command, started again when it ends by itself.

Ray ends a node that it took for lost once the node's network returns: a new node has to join. A
node whose head has moved is ended here, because Ray never looks for a head at another address.
"""

from __future__ import annotations

import ctypes
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event
from types import FrameType

from mirage.errors import CommandFailed

PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
"""Seconds before another start, doubled with each start that fails."""
LOOK_S = 0.2
STARTED = b"Ray runtime started"
"""Text that Ray prints when its processes run."""
REFUSED = b"InvalidAuthToken"
"""Text that Ray prints, again and again, if the head does not take this machine's token."""
PR_SET_PDEATHSIG = 1


class NodeProcess:
    """Ray's command of a node. Call `run` in the main thread."""

    def __init__(
        self,
        words: Callable[[], Sequence[str]],
        stays: Callable[[], bool],
        environment: Mapping[str, str],
        log: Path,
        say: Callable[[str], None],
    ) -> None:
        """`words` returns the words of Ray's command for the next start, or raises `CommandFailed`.

        `stays` is asked at each look: once it returns False, Ray is ended and started again. `log`
        gets all output of Ray; `run` empties it first. Raises `CommandFailed` if Ray's command is
        missing.
        """
        command = Path(sys.executable).with_name("ray")
        program = str(command) if command.exists() else shutil.which("ray")
        if program is None:
            raise CommandFailed("Ray has no command here: pip install '.[cluster]'")
        self._program, self._words, self._stays = program, words, stays
        self._environment = environment
        self._log, self._say, self._over = log, say, Event()
        self._child: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """Run Ray until a signal. Raises `CommandFailed` if the first start fails."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)
        self._log.write_bytes(b"")
        pause_s, joined = PAUSE_S, False
        while not self._over.is_set():
            begin, started = self._log.stat().st_size, False
            try:
                child = self._start()
                started = self._starts(child, begin)
                if started:
                    self._say("runs" if not joined else "runs again")
                    pause_s, joined = PAUSE_S, True
                why = self._ended(child)
                if not (joined or self._over.is_set()):
                    line = self._last_line(begin)
                    raise CommandFailed(f"Ray does not start ({line}): {self._log}")
            except CommandFailed as error:
                if not joined:
                    raise
                why = str(error)
            if not self._over.is_set():
                self._say(f"{why}: it is started again in {pause_s:g} s")
                self._over.wait(pause_s)
            pause_s = PAUSE_S if started else min(2 * pause_s, LONGEST_PAUSE_S)

    def _start(self) -> subprocess.Popen[bytes]:
        """Start Ray's command; its output is appended to the log. Raises `CommandFailed` if `words`
        of the constructor does.
        """
        command = [self._program, *self._words()]
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(
                command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_ends_with_this,
            )
        return self._child

    def _starts(self, child: subprocess.Popen[bytes], begin: int) -> bool:
        """Wait until Ray has started, has ended or has to end; return True if Ray has started.
        Raises `CommandFailed` if the head refuses this machine.
        """
        while self._goes_on(child):
            told = self._log.read_bytes()[begin:]
            if STARTED in told:
                return True
            if REFUSED in told:
                child.terminate()
                child.wait()
                raise CommandFailed(
                    "the head has another secret: copy its secret again, and join with --secret"
                )
            self._over.wait(LOOK_S)
        return False

    def _ended(self, child: subprocess.Popen[bytes]) -> str:
        """Wait until `child` has ended by itself or has to end; end it if it runs still. Return the
        reason as text.
        """
        while self._goes_on(child):
            self._over.wait(LOOK_S)
        if child.poll() is None:
            child.terminate()
            child.wait()
            return "the head is elsewhere, so Ray has ended"
        return f"Ray has ended with exit code {child.returncode}"

    def _goes_on(self, child: subprocess.Popen[bytes]) -> bool:
        return child.poll() is None and not self._over.is_set() and self._stays()

    def _last_line(self, begin: int) -> str:
        lines = self._log.read_bytes()[begin:].decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it says nothing")

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._over.set()
        if self._child is not None:
            self._child.terminate()


def _ends_with_this() -> None:
    """Have the command end with this process; otherwise no process would know of it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
