"""The last one to leave: ends what a killed supervisor could not end itself.

Run as a plain script beside the supervisor, in a session of its own. Its arguments are the
supervisor's id, the ready file, empty if there is none, and lines that count as said. Its standard
input is a pipe from the supervisor: ``+N`` and ``-N`` lines say that process group N came or went,
``=N NAME INODE`` that it made that semaphore, ``@S`` that what is left goes on for S seconds, and
``/PATH`` that this folder is the run's too. However the supervisor dies, the pipe closes; then its
ready file is removed, and after that lease the groups that are left are killed, and the folders and
semaphores are removed. Unless another server has taken them by then: it has the lock of the last
folder. Imports nothing of the project, so that it starts at once and stays small.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import NamedTuple

PATIENCE_S = 5.0
LOOK_S = 0.5
"""Seconds between two looks during a lease whether anything is left."""
LET_GO_S = 2.0
"""Seconds in which the kernel lets go of the lock of a process that has just died."""
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
    """Processes of a group that have not ended. Raises `OSError` as `kill_members` does."""
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


class Watched(NamedTuple):
    """Processes and folders that a supervisor has left, and the seconds that they have."""

    groups: dict[int, dict[str, int]]
    """Process groups, each with its semaphores."""
    folders: list[str]
    lease_s: float


def watch(lines: Iterable[str]) -> Watched:
    """Read until the pipe closes; what is left."""
    groups: dict[int, dict[str, int]] = {}
    folders: list[str] = []
    lease_s = 0.0
    for line in lines:
        if line[0] == "@":
            lease_s = float(line[1:])
        elif line[0] == "/":
            folders.append(line.rstrip("\n"))
        else:
            _count(groups, line)
    return Watched(groups, folders, lease_s)


def _count(groups: dict[int, dict[str, int]], line: str) -> None:
    number, *semaphore = line[1:].split()
    if line[0] == "-":
        groups.pop(int(number), None)
        return
    made = groups.setdefault(int(number), {})
    if semaphore:
        made[semaphore[0]] = int(semaphore[1])


def wait_for_successor(groups: set[int], folder: Path, lease_s: float) -> bool:
    """Wait until the lease is over, all process groups have ended, or the folder is gone.

    False if the lock cannot be had, as another server has it. After True the lock is ours, so that
    no server can take over, unless the folder is gone.
    """
    end = time.monotonic() + lease_s
    while time.monotonic() < end and folder.exists() and groups:
        time.sleep(LOOK_S)
        groups -= {group for group in groups if not _lives(group)}  # others may have such a number
    end = time.monotonic() + LET_GO_S
    while folder.exists() and not _lock(folder):
        if time.monotonic() >= end:
            return False
        time.sleep(0.1)
    return True


def _lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _lock(folder: Path) -> bool:
    """Lock a folder for as long as this process lives; False if that cannot be."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return False
    return True


def unsay(ready_file: Path, pid: int) -> None:
    """Remove the file that calls process `pid` ready; another one's stays."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        if json.loads(ready_file.read_text())["pid"] == pid:
            ready_file.unlink()


def main() -> None:
    supervisor, ready_file, *known = sys.argv[1:]
    left, folders, lease_s = watch(chain(known, sys.stdin))
    made = {name: semaphores[name] for semaphores in left.values() for name in semaphores}
    groups = set(left)
    if ready_file:
        unsay(Path(ready_file), int(supervisor))
    if lease_s and folders and not wait_for_successor(groups, Path(folders[-1]), lease_s):
        return
    deadline = time.monotonic() + PATIENCE_S
    while sum([_kill(group) for group in groups]) and time.monotonic() < deadline:
        time.sleep(0.01)
    with contextlib.suppress(OSError):
        remove_semaphores(made)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
