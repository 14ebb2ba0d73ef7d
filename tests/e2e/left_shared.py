"""Files that a session of tests leaves in /dev/shm, and the tests that ran when they were made."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import psutil
import pytest

FOLDER = Path("/dev/shm")
SESSION = "MIRAGE_TEST_SESSION"
"""The environment variable with the name of a session, which its fake engines give to their
semaphores.
"""
PATIENCE_S = 10.0
"""Seconds that processes have to end, and their resource trackers to tidy up after them."""
TICK_S = 0.02
"""Most seconds by which the time of a file is behind the clock of the tests."""


class LeftShared:
    """Plugin that fails a session which leaves a file in /dev/shm that no process has mapped.

    Files of other sessions do not count: those that a living process has mapped, and those with
    another session's name.
    """

    def __init__(self) -> None:
        os.environ[SESSION] = f"s{os.getpid()}"  # for all that it starts
        self._before = set(FOLDER.iterdir())
        self._ran: dict[str, tuple[float, float]] = {}
        """Begin and end of each test, in seconds since the epoch."""
        self._left: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        begin, _ = self._ran.get(report.nodeid, (report.start, 0.0))
        self._ran[report.nodeid] = begin, report.stop

    @pytest.hookimpl(trylast=True)  # the processes that run the tests have ended
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        left = set(filter(not_of_another, lasting(self._before, PATIENCE_S)))
        self._left = [told for path in sorted(left) if (told := self._said(path))]
        if self._left and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # below all other sections: the end is kept
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
        yield
        if self._left:
            terminalreporter.section("left in /dev/shm", red=True, bold=True)
        for line in self._left:
            terminalreporter.write_line(line)

    def _said(self, path: Path) -> str | None:
        with contextlib.suppress(FileNotFoundError):
            made = path.stat().st_mtime
            spans = self._ran.items()
            ran = [test for test, (begin, end) in spans if begin - TICK_S <= made <= end]
            return f"{path}, made during {' or '.join(ran) or 'no test'}"
        return None


def lasting(before: Collection[Path], patience_s: float) -> set[Path]:
    """Files that are not in `before`, still exist after `patience_s` seconds, and are mapped by no
    process.
    """
    deadline = time.monotonic() + patience_s
    left = unmapped(set(FOLDER.iterdir()).difference(before))
    while left and time.monotonic() < deadline:
        time.sleep(0.2)
        left = unmapped(left & set(FOLDER.iterdir()))
    return left


def not_of_another(path: Path) -> bool:
    """False if the file has the name of another session."""
    named = re.match(r"sem\.mp-(\w+)-", path.name)
    return named is None or named[1] == os.environ[SESSION]


def unmapped(files: set[Path]) -> set[Path]:
    """Files among `files` that no process has mapped."""
    return files - shared_files(psutil.process_iter()) if files else files


def shared_files(family: Iterable[psutil.Process]) -> set[Path]:
    """Files in /dev/shm that these processes have mapped.

    They are compared by inode, because the maker of a semaphore has mapped it under an earlier
    name.
    """
    mapped = set()
    for process in family:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
            mapped |= {int(line.split()[4]) for line in lines if f"{FOLDER}/" in line}
    return {Path(entry) for entry in os.scandir(FOLDER) if entry.inode() in mapped}


def pytest_configure(config: pytest.Config) -> None:
    """Register the check in the process that reports results, not in pytest's worker processes."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(LeftShared(), "left-shared")
