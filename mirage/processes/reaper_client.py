"""The supervisor's end of the pipe to its guard (see `mirage.processes.reaper`)."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from mirage.processes import reaper


class ReaperClient:
    """Holds the guard of one run folder; when this process dies, the guard acts."""

    def __init__(self, rundir: Path) -> None:
        self._guard = subprocess.Popen(
            [sys.executable, "-I", str(reaper.__file__), str(rundir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )

    def began(self, group: int) -> None:
        """A process group that must not outlive this process."""
        self._tell(f"+{group}")

    def over(self, group: int) -> None:
        """A process group of which nothing is left."""
        self._tell(f"-{group}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let the guard end, and wait for it."""
        self._guard.communicate()

    def _tell(self, line: str) -> None:
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it was killed: we end our engines ourselves
            self._guard.stdin.write(line + "\n")
            self._guard.stdin.flush()
