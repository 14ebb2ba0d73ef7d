"""Reaper: ends the processes that a killed supervisor left, and removes its files.

Run as a plain script beside the supervisor, in a session of its own. Its arguments are the
supervisor's process id, the path of the ready file (empty if there is none), and lines as of the
pipe. Its standard input is a pipe from the supervisor. The line ``+N`` says that process group N
came, ``-N`` that it went, ``=N NAME INODE`` that it made that semaphore, ``@S`` that groups go on
for S seconds after the supervisor (the lease), and ``/PATH`` that this folder is one of the run.

When the supervisor dies the pipe closes. The reaper then removes the ready file, and waits for the
lease. If another server has taken over by then, and so has the lock of the last folder, the reaper
ends. Else it kills the groups that are left, and removes semaphores and folders. It imports nothing
of the project, so that it starts at once and stays small.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import NamedTuple

PATIENCE_S = 5.0
LOOK_S = 0.5
"""Seconds between two checks during a lease whether the folder and a process group are left."""
LET_GO_S = 2.0
"""Seconds to wait until the kernel releases the lock of a process that has just died."""
STOP_S = 0.2
"""Most seconds to wait until processes have stopped."""
DEAD = "ZX"
"""States of /proc/PID/stat: a zombie, or dying."""
STANDING = f"T{DEAD}"
"""States in which a process makes nothing more: stopped, or dead."""
SHARED = Path("/dev/shm")
SEMAPHORE = re.compile(r"sem\.(mp-.+|[A-Za-z0-9]{6})")
"""Names of multiprocessing's semaphores in /dev/shm. The C library makes a semaphore under a name
of six random characters, which memory maps go on to show, and then gives it its own.
"""


def kill_members(group: int, made: dict[str, int]) -> int:
    """Send SIGKILL to the members of a process group; return how many, without those spared.

    Multiprocessing's resource trackers are spared, and continued if they are stopped: once the
    other members are dead, they remove the semaphores that those left in /dev/shm, and end. A
    tracker hears of a semaphore only after it was made. So the members are stopped first, and once
    they stand the semaphores that they have mapped, or are making, are added to `made`, for
    `remove_semaphores`. Raises `OSError` if this process may open no more files to look for
    members; no process is killed then.
    """
    members = {pid: _is_tracker(pid) for pid in members_of(group)}
    killed = [pid for pid, spared in members.items() if not spared]
    _signal(killed, signal.SIGSTOP)
    with contextlib.suppress(OSError):
        made |= of_stopping(killed)
    _signal(killed, signal.SIGKILL)
    _signal(members.keys() - killed, signal.SIGCONT)
    return len(killed)


def of_stopping(pids: Collection[int], patience_s: float = STOP_S) -> dict[str, int]:
    """Semaphores that processes which got SIGSTOP have mapped, or are making: inodes by their
    names. Once the processes stand, none comes after that; this waits up to `patience_s` seconds
    for it.

    Raises `OSError` if this process may open no more files to look for them.
    """
    _wait_stopped(pids, patience_s)
    return _semaphores(pids)


def is_suspended(pid: int) -> bool:
    """True if the process is stopped, as by SIGSTOP."""
    return _state(pid) == "T"


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _wait_stopped(pids: Iterable[int], patience_s: float) -> None:
    """Wait until these processes have stopped or ended, up to `patience_s` seconds. A process in a
    system call, such as that which makes a semaphore, stops at its end.
    """
    until = time.monotonic() + patience_s
    moving = set(pids)
    while moving := {pid for pid in moving if _state(pid) not in STANDING}:
        if time.monotonic() >= until:
            break
        time.sleep(0.001)


def kill_all(group: int) -> int:
    """Send SIGKILL to a process group, trackers too; return 1, or 0 if the group is gone."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return 0
    return 1


def kill(group: int, made: dict[str, int]) -> int:
    """Send SIGKILL to a process group by `kill_members`, or by `kill_all` if this process may open
    no more files.

    Returns the number of members that this call sent SIGKILL, which may still be alive; 1 for all
    of a group by `kill_all`. 0 means that no member is left, except trackers that were spared.
    """
    try:
        return kill_members(group, made)
    except OSError:
        return kill_all(group)


def members_of(group: int) -> Iterator[int]:
    """Ids of the processes of a group that have not ended. Raises `OSError` if this process may
    open no more files.
    """
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _fields(entry)
            if len(fields) > 2 and fields[0] not in DEAD and int(fields[2]) == group:
                yield int(entry.name)


def _fields(process: Path) -> list[str]:
    """Fields of a process in /proc after its name, which may hold anything: state, parent, process
    group. Empty if it has ended.
    """
    return _read(process / "stat").rpartition(")")[2].split()


def _state(pid: int) -> str:
    """State of a process in one letter; that of a dead one if it has ended."""
    return next(iter(_fields(Path(f"/proc/{pid}"))), DEAD[0])


def _is_tracker(pid: int) -> bool:
    return "multiprocessing.resource_tracker" in _read(Path(f"/proc/{pid}/cmdline"))


def _read(path: Path) -> str:
    """Content of a file, empty if it cannot be read, as when its process has ended.

    Raises `OSError` if this process may open no more files.
    """
    try:
        return path.read_text(errors="replace")
    except OSError as error:
        _check_may_open(error)
        return ""


def _check_may_open(error: OSError) -> None:
    """Raise `error` if it says that this process may open no more files."""
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        raise error


def semaphores_of(group: int) -> dict[str, int]:
    """Semaphores in /dev/shm that a process group has mapped, or is making: their inodes, by their
    names.

    Raises `OSError` if this process may open no more files to look for them.
    """
    return _semaphores(members_of(group))


def remove_semaphores(made: Mapping[str, int]) -> None:
    """Remove the semaphores that dead groups have `made`: inodes by their names.

    One that a process still has mapped stays. Resource trackers remove them too, unless they were
    killed with their group.
    """
    if left := made.items() & _there().items():
        everybody = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
        taken = {inode for pid in everybody for inode in _mapped(pid)}
        for name, inode in left:
            if inode not in taken:
                (SHARED / name).unlink(missing_ok=True)


def _semaphores(pids: Iterable[int]) -> dict[str, int]:
    there = _there()
    if not there:  # what a process has mapped takes long to read
        return {}
    theirs = {inode for pid in pids for inode in chain(_mapped(pid), _opened(pid))}
    return {name: inode for name, inode in there.items() if inode in theirs}


def _there() -> dict[str, int]:
    """All semaphores of multiprocessing: their inodes, by their names."""
    entries = os.scandir(SHARED) if SHARED.exists() else ()
    return {entry.name: entry.inode() for entry in entries if SEMAPHORE.fullmatch(entry.name)}


def _mapped(pid: int) -> Iterator[int]:
    """Inodes of the semaphores that a process has mapped."""
    for line in _read(Path(f"/proc/{pid}/maps")).splitlines():
        if f"{SHARED}/sem." in line:
            yield int(line.split()[4])


def _opened(pid: int) -> Iterator[int]:
    """Inodes of the files of semaphores that a process has open, as while it makes one. No other
    file is touched, because it may lie on a network that hangs.
    """
    try:
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                if str(file.readlink()).startswith(f"{SHARED}/sem."):
                    yield file.stat().st_ino
    except OSError as error:
        _check_may_open(error)


class Watched(NamedTuple):
    """Process groups and folders that a supervisor has left, and its lease in seconds."""

    groups: dict[int, dict[str, int]]
    """Process groups, each with its semaphores: inodes by their names."""
    folders: list[str]
    lease_s: float


def watch(lines: Iterable[str]) -> Watched:
    """Read lines until the pipe closes; return the groups and folders that are left, and the
    lease.
    """
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

    Groups that have ended are removed from `groups`. Then the folder is locked: False if another
    server has the lock. After True this process has it, so that no server can take over, or the
    folder is gone.
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
    """Lock a folder for as long as this process lives; False if the lock cannot be had."""
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
    """Remove the ready file if it names process `pid`; the file of another process stays."""
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
    while sum([kill(group, made) for group in groups]) and time.monotonic() < deadline:
        time.sleep(0.01)
    with contextlib.suppress(OSError):
        remove_semaphores(made)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
