"""The last one to leave: ends what a killed supervisor could not end itself.

Run as a plain script beside the supervisor, in a session of its own. Its arguments are the
supervisor's id, the ready file, empty if there is none, and the run's folders. Its standard input
is a pipe from the supervisor: ``+N`` and ``-N`` lines say that process group N began and ended, and
``=N NAME INODE`` that it made that semaphore. However the supervisor dies, the pipe closes; then
its ready file is removed, the groups that are left are killed, and the folders and semaphores are
removed. Imports nothing of the project, so that it starts at once and stays small.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

PATIENCE_S = 5.0
DEAD = "ZX"
"""States of /proc/PID/stat: a zombie, or dying."""
SHARED = Path("/dev/shm")
SEMAPHORE = "sem."
NAMED = "sem.mp-"
"""Semaphores of multiprocessing; they are mapped under a name that they had before."""


def kill_members(group: int) -> int:
    """SIGKILL for the members of a process group; how many there were.

    Multiprocessing's resource trackers are spared, and continued if they are stopped: when the
    others are dead they remove the semaphores that those left in /dev/shm, and end by themselves.
    Raises `OSError` where this process may open no file to look for them; nobody is killed then.
    """
    members = {pid: _is_tracker(pid) for pid in members_of(group)}
    for pid, spared in members.items():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT if spared else signal.SIGKILL)
    return len(members) - sum(members.values())


def kill_all(group: int) -> int:
    """SIGKILL for a process group, trackers too; 0 if it is gone."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return 0
    return 1


def _kill(group: int) -> int:
    try:
        return kill_members(group)
    except OSError:
        return kill_all(group)


def members_of(group: int) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            # After the name, which may hold anything: state, parent, process group.
            fields = _read(entry / "stat").rpartition(")")[2].split()
            if len(fields) > 2 and fields[0] not in DEAD and int(fields[2]) == group:
                yield int(entry.name)


def _is_tracker(pid: int) -> bool:
    return "multiprocessing.resource_tracker" in _read(Path(f"/proc/{pid}/cmdline"))


def _read(path: Path) -> str:
    """Content of a file, empty if the process is gone. Raises `OSError` if none can be opened."""
    try:
        return path.read_text(errors="replace")
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise
        return ""


def semaphores_of(group: int) -> dict[str, int]:
    """Semaphores in /dev/shm that a process group has mapped: their inodes, by their names.

    Raises `OSError` where this process may open no file to look.
    """
    return _named(_mapped(members_of(group)))


def remove_semaphores(made: Mapping[str, int]) -> None:
    """Remove what groups have `made` that are dead, if it is still there and nobody has it mapped.

    Their resource trackers do so, unless they were killed with them.
    """
    if left := made.items() & _named(set(made.values())).items():
        everybody = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
        taken = _mapped(everybody)
        for name, inode in left:
            if inode not in taken:
                (SHARED / name).unlink(missing_ok=True)


def _mapped(pids: Iterable[int]) -> set[int]:
    """Inodes of semaphores in these processes' memory."""
    lines = (line for pid in pids for line in _read(Path(f"/proc/{pid}/maps")).splitlines())
    return {int(line.split()[4]) for line in lines if f"{SHARED}/{SEMAPHORE}" in line}


def _named(inodes: set[int]) -> dict[str, int]:
    if not inodes:
        return {}
    entries = [entry for entry in os.scandir(SHARED) if entry.name.startswith(NAMED)]
    return {entry.name: entry.inode() for entry in entries if entry.inode() in inodes}


def watch(lines: Iterable[str]) -> dict[int, dict[str, int]]:
    """Read until the pipe closes; the process groups that are left, each with its semaphores."""
    groups: dict[int, dict[str, int]] = {}
    for line in lines:
        number, *semaphore = line[1:].split()
        if line[0] == "-":
            groups.pop(int(number), None)
        else:
            made = groups.setdefault(int(number), {})
            if semaphore:
                made[semaphore[0]] = int(semaphore[1])
    return groups


def unsay(ready_file: Path, pid: int) -> None:
    """Remove the file that calls process `pid` ready; another one's stays."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        if json.loads(ready_file.read_text())["pid"] == pid:
            ready_file.unlink()


def main() -> None:
    supervisor, ready_file, *folders = sys.argv[1:]
    groups = watch(sys.stdin)
    if ready_file:
        unsay(Path(ready_file), int(supervisor))
    deadline = time.monotonic() + PATIENCE_S
    while sum([_kill(group) for group in groups]) and time.monotonic() < deadline:
        time.sleep(0.01)
    with contextlib.suppress(OSError):
        remove_semaphores({name: made[name] for made in groups.values() for name in made})
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
