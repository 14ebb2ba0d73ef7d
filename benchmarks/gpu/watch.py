"""Watchdog of the process that runs rows: it ends the process when that hangs.

A driver call that does not return cannot be ended from inside its process. So rows run in a child
(`stepping`), one after the other, and come back as lines of JSON. If a row is late the child is
killed, and another child continues with the next row.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from select import select
from typing import Any

from benchmarks.gpu.plan import COMMAND_S, Step
from benchmarks.gpu.rows import Row, skipped
from benchmarks.gpu.tied import tied

ROOT = Path(__file__).parents[2]
START_S = 60.0
DYING_S = 10.0
"""Seconds for which a killed process is waited for: inside of the kernel it may take longer."""


class Late(Exception):
    """The child did not answer in time."""


class Gone(Exception):
    """The child ended by itself; the message says how."""


class NoDevice(Exception):
    """The machine has no device to measure; the message says why."""


class Child:
    """One process that runs rows. `about` are the facts of its device. Raises `NoDevice` if the
    machine has none, `Late` if the process does not start in time, `Gone` if it ends.
    """

    def __init__(self, *, dry: bool, start_s: float = START_S) -> None:
        here, there = os.pipe()
        words = [sys.executable, "-m", "benchmarks.gpu.stepping", str(there)]
        self._process = subprocess.Popen(
            tied([*words, *(["--dry"] if dry else [])]),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            text=True,
            pass_fds=(there,),
        )
        os.close(there)
        self._read, self._seen = here, b""
        try:
            said = self._line(time.monotonic() + start_s)
        except (Late, Gone):
            self.kill()
            raise
        if "none" in said:
            self.kill()
            raise NoDevice(said["none"])
        self.about: dict[str, Any] = said["about"]

    def rows(self, step: Step, limit_s: float) -> Iterator[Row]:
        """Rows of a step as they come. Raises `Late` after `limit_s` seconds, and `Gone` if the
        child ends.
        """
        end = time.monotonic() + limit_s
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # then it is gone, and reading tells how
            self._process.stdin.write(json.dumps([step.place, limit_s]) + "\n")
            self._process.stdin.flush()
        while "row" in (said := self._line(end)):
            yield Row(**said["row"])

    def kill(self) -> None:
        """Kill the child, wait for its end, and close its pipes. Programs that it started with
        `tied` die with it.
        """
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(DYING_S)
        with suppress(BrokenPipeError):
            self._process.stdin.close()  # type: ignore[union-attr]
        os.close(self._read)

    def _line(self, end: float) -> dict[str, Any]:
        while b"\n" not in self._seen:
            left = end - time.monotonic()
            if left <= 0 or not select([self._read], [], [], left)[0]:
                raise Late
            if not (more := os.read(self._read, 1 << 16)):
                raise Gone(f"its process ended, exit code {self._process.wait(DYING_S)}")
            self._seen += more
        line, _, self._seen = self._seen.partition(b"\n")
        return dict(json.loads(line))


def watched(
    steps: Iterable[Step], child: Child, start: Callable[[], Child], seconds: float = COMMAND_S
) -> Iterator[Row]:
    """All rows, within `seconds`. Each step has its own limit, or the time that is left if that is
    less. `start` starts another child after one was lost. At the end no child is left.
    """
    end = time.monotonic() + seconds
    living: Child | None = child
    try:
        for step in steps:
            left = end - time.monotonic()
            if left < step.least_s:
                yield skipped(step.name, f"not begun: {left:.0f} s are left, of {step.limit_s:g}")
                continue
            limit_s = min(step.limit_s, left)
            try:
                living = living or start()
                yield from living.rows(step, limit_s)
            except (Late, Gone, NoDevice) as error:
                yield Row(step.name, "", _lost(error, limit_s), holds=False)
                if living is not None:
                    living.kill()
                living = None
    finally:
        if living is not None:
            living.kill()


def _lost(error: Exception, limit_s: float) -> str:
    return f"ended: not done after {limit_s:.0f} s" if isinstance(error, Late) else f"{error}"
