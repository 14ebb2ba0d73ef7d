"""Runs that killed servers left: found by their records, and taken by locking their folders."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from mirage.processes import reaper
from mirage.processes.marks import MarkedProcess, ProcessMark, boot_id, mark_of
from mirage.serve.adoption.record import EngineRecord, RunRecord, read_record
from mirage.serve.rundir.folders import RECORD
from mirage.serve.rundir.locked_folder import HeldFolder
from mirage.serve.rundir.parent_folders import places

RUNS = "mirage-*"
ATTEMPTS, PAUSE_S = 10, 0.2
"""Attempts to lock a folder and seconds between them; the kernel takes time to release the lock of
a process that has just died.
"""
TRACKER_S = 3.0
"""Seconds for resource trackers to clean up after processes that were killed."""
END_S = 10.0


class LeftRun(NamedTuple):
    """Processes and folders that one killed server left, with the locks of the folders held
    here.
    """

    record: RunRecord
    held: list[HeldFolder]

    @property
    def same_boot(self) -> bool:
        """False if the machine was rebooted since: then no process of the run is left."""
        return self.record.boot == boot_id()

    def let_go(self) -> None:
        """Release the locks, and leave the run as it is."""
        for folder in self.held:
            folder.let_go()

    def end_reaper(self) -> None:
        """Kill the reaper of the run, which would end the engines when the lease is over."""
        if self.same_boot and self.record.reaper is not None:
            _signal(self.record.reaper, signal.SIGKILL)

    def end_router(self) -> None:
        """Kill the router of the run: its streams break off, and its port is free."""
        if self.same_boot and self.record.router is not None:
            process = self.record.router.process
            if mark_of(process.pid) == process:
                _kill_groups([process.pid], {})

    def end(self) -> list[str]:
        """End the run: processes, sockets, folders. Returns the tenants whose engines were killed
        by it.
        """
        self.end_reaper()
        ended = []
        if self.same_boot:
            engines = self.record.engines
            ended = [name for name, engine in engines.items() if has_process(engine)]
            end_engines(engines.values())
            self.end_router()
            if self.record.keeper is not None:
                _signal(self.record.keeper, signal.SIGKILL)
        for folder in self.record.folders:
            shutil.rmtree(folder, ignore_errors=True)
        self.let_go()
        return ended


def left_runs(device: str | None = None) -> list[LeftRun]:
    """Runs of this user whose server has died, newest first, with their folders locked.

    `device` selects those of one device; None is all.
    """
    runs = [run for record in _dead(device) if (run := _taken(record)) is not None]
    return sorted(runs, key=lambda run: run.record.server.start, reverse=True)


def end_left(device: str) -> None:
    """End all runs of a device whose servers have died."""
    for run in left_runs(device):
        run.end()


def left_models(device: str) -> dict[str, Path]:
    """Folders of hub models in the configurations of the device's killed servers, by model name;
    only folders that exist.
    """
    records = sorted(_dead(device), key=lambda record: record.server.start)
    told = {name: Path(folder) for one in records for name, folder in one.config.models.items()}
    return {name: folder for name, folder in told.items() if folder.is_dir()}


def left_tenants(device: str) -> list[str]:
    """Tenants in the configuration of the last killed server of the device whose record has an
    engine; empty if there is none since the machine was booted.
    """
    records = [one for one in _dead(device) if one.boot == boot_id() and one.engines]
    newest = max(records, key=lambda record: record.server.start, default=None)
    return [] if newest is None else [one["name"] for one in newest.config.raw["tenants"]]


def _dead(device: str | None) -> Iterator[RunRecord]:
    boot = boot_id()
    for path in sorted(Path(places().sockets).glob(f"{RUNS}/{RECORD}")):
        with contextlib.suppress(OSError):
            if path.stat().st_uid != os.geteuid():
                continue
            record = read_record(path)
            if record is None or record.folders[-1] != str(path.parent):
                continue
            lives = record.boot == boot and mark_of(record.server.pid) == record.server
            if not lives and device in (None, record.device):
                yield record


def _taken(record: RunRecord) -> LeftRun | None:
    for attempt in range(ATTEMPTS):
        folders = [HeldFolder.taken(Path(folder)) for folder in record.folders]
        held = [folder for folder in folders if folder is not None]
        if len(held) == len(folders):
            return LeftRun(record, held)
        for folder in held:
            folder.let_go()
        if not Path(record.folders[-1]).exists() or attempt == ATTEMPTS - 1:
            break
        time.sleep(PAUSE_S)
    return None


# -- processes --------------------------------------------------------------------------------


def has_process(engine: EngineRecord) -> bool:
    """True if the engine's API server still runs, or its core in the process group of that server.
    A later process with the same number does not count.
    """
    if mark_of(engine.server.pid) == engine.server:
        return True
    if engine.core is None or mark_of(engine.core.pid) != engine.core:
        return False
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(engine.core.pid) == engine.server.pid
    return False


def end_engines(engines: Iterable[EngineRecord]) -> None:
    """Kill engines with all processes of their groups, and wait until these have ended."""
    made: dict[str, int] = {}
    groups = []
    for engine in engines:
        made |= engine.semaphores  # a whole group may have been killed at once, trackers too
        if has_process(engine):
            groups.append(engine.server.pid)
    _kill_groups(groups, made)


def _kill_groups(groups: list[int], made: dict[str, int]) -> None:
    """Kill these process groups, and wait until nothing of them is left.

    After `TRACKER_S` seconds resource trackers are killed too; the wait ends `END_S` seconds after
    that. The semaphores that the groups have `made` are removed.
    """
    until = time.monotonic() + TRACKER_S
    while sum([reaper.kill_members(group, made) for group in groups]) or _any_left(groups):
        if time.monotonic() > until:
            for group in groups:
                reaper.kill_all(group)
        if time.monotonic() > until + END_S:
            break
        time.sleep(0.02)
    reaper.remove_semaphores(made)


def _any_left(groups: list[int]) -> bool:
    return any(True for group in groups for _ in reaper.members_of(group))


def _signal(mark: ProcessMark, number: int) -> None:
    """Send a signal to a process and wait for its end, up to `END_S` seconds; nothing happens if it
    has ended.
    """
    if (process := MarkedProcess.found(mark)) is not None:
        process.send_signal(number)
        with contextlib.suppress(TimeoutError):
            process.wait(END_S)
        process.close()
