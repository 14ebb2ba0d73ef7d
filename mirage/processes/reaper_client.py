"""The supervisor's end of the pipe to its reaper (see `mirage.processes.reaper`)."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from mirage.processes import reaper
from mirage.processes.stopped import end_if_stopped

logger = logging.getLogger("mirage.processes.reaper")

SHORT_S = 1.0
"""Seconds of life of a reaper below which another one is started only after `RETRY_S`."""
RETRY_S = 10.0


class ReaperClient:
    """Client of the reaper of a run's folders: it starts the reaper, which acts when this process
    dies.

    A thread kills a reaper that a signal has stopped (SIGSTOP), and replaces one that has died.
    """

    def __init__(self, *folders: Path, ready_file: Path | None = None) -> None:
        """`ready_file` is removed by the reaper too. Raises `OSError` if no reaper can be
        started.
        """
        said = "" if ready_file is None else str(ready_file.absolute())
        self._words = [str(os.getpid()), said]
        self._folders = [str(folder.absolute()) for folder in folders]
        self._groups: dict[int, dict[str, int]] = {}
        """Process groups, each with its semaphores: inodes by their names."""
        self._lease_s = 0.0
        self._lock = threading.Lock()
        """Held while the groups change, and while the reaper is told so or replaced."""
        self._closing = threading.Event()
        self._process = self._start()
        threading.Thread(target=self._watch, name="mirage-reaper-watch", daemon=True).start()

    def began(self, group: int) -> None:
        """Tell the reaper of a process group, which the reaper kills after the lease if this
        process dies.
        """
        with self._lock:
            self._groups[group] = {}
            _tell(self._process, f"+{group}")

    def over(self, group: int) -> None:
        """Tell the reaper that nothing is left of a process group."""
        with self._lock:
            self._groups.pop(group, None)
            _tell(self._process, f"-{group}")

    def made(self, group: int, semaphores: Mapping[str, int]) -> None:
        """Tell the reaper of semaphores that a process group has made: inodes by their names.

        If this process dies, the reaper removes them once the group is dead.
        """
        with self._lock:
            if group in self._groups:
                self._groups[group] |= semaphores
                self._tell_made(group, semaphores)

    def owns(self, *folders: Path) -> None:
        """Tell the reaper that folders of another run belong to this one from now on.

        They are removed with this run's own.
        """
        with self._lock:
            for folder in folders:
                self._folders.append(str(folder.absolute()))
                _tell(self._process, str(folder.absolute()))

    def leases(self, seconds: float) -> None:
        """Let groups go on for `seconds` if this process is killed; with 0 they end with it."""
        with self._lock:
            self._lease_s = seconds
            _tell(self._process, f"@{seconds}")

    @property
    def pid(self) -> int:
        """Process id of the present reaper."""
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Set the lease to 0 and close the pipe, so that the reaper immediately kills the process
        groups that are left, and removes the folders. Return once it has ended."""
        with self._lock:
            self._closing.set()
            _tell(self._process, "@0")
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()

    # -- a reaper that dies --------------------------------------------------------------

    def _watch(self) -> None:
        while True:
            since = time.monotonic()
            end_if_stopped(self._process.pid, patience_s=0.0)
            status = self._process.wait()
            if self._closing.is_set():
                return
            logger.warning("the reaper ended, exit status %d: starting another one", status)
            pause_s = RETRY_S if time.monotonic() - since < SHORT_S else 0.0
            if self._closing.wait(pause_s):
                return
            self._replace()

    def _replace(self) -> None:
        """Start another reaper, which knows all present groups; try every `RETRY_S` seconds."""
        said = False
        while not self._replaced(said):
            said = True
            if self._closing.wait(RETRY_S):
                return

    def _replaced(self, said: bool) -> bool:
        with self._lock:
            if self._closing.is_set():
                return True
            try:
                self._process = self._start()
            except OSError as error:
                if not said:
                    logger.error(
                        "no other reaper can be started (%s), tried again every %g s: until then "
                        "end this process with SIGTERM, since SIGKILL would leave its engines",
                        error,
                        RETRY_S,
                    )
                return False
            for group, semaphores in self._groups.items():
                _tell(self._process, f"+{group}")
                self._tell_made(group, semaphores)
            _tell(self._process, f"@{self._lease_s}")
            logger.warning("a new reaper watches all processes (%d)", len(self._groups))
        return True

    def _tell_made(self, group: int, semaphores: Mapping[str, int]) -> None:
        for name, inode in semaphores.items():
            _tell(self._process, f"={group} {name} {inode}")

    def _known(self) -> list[str]:
        """Lines in the arguments of a new reaper, which may have to act before it has read its
        pipe.
        """
        return [*self._folders, f"@{self._lease_s}", *(f"+{group}" for group in self._groups)]

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-I", str(reaper.__file__), *self._words, *self._known()],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )


def _tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it died: the next one hears of all groups
        process.stdin.write(line + "\n")
        process.stdin.flush()
