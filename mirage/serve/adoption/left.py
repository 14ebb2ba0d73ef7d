"""Runs that killed servers have left: found by their records, taken by their folders' locks."""

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
from mirage.serve.held import HeldFolder
from mirage.serve.places import places
from mirage.serve.rundir import RECORD

RUNS = "mirage-*"
ATTEMPTS, PAUSE_S = 10, 0.2
"""Attempts to lock a folder: the kernel lets go of that of a process that has just died."""
TRACKER_S = 3.0
"""Seconds for resource trackers to tidy up after what was killed."""
END_S = 10.0


class LeftRun(NamedTuple):
    """Processes and folders that one server has left, held by this process alone."""

    record: RunRecord
    held: list[HeldFolder]

    @property
    def same_boot(self) -> bool:
        """False if the machine has been started anew since: then no process of it is left."""
        return self.record.boot == boot_id()

    def let_go(self) -> None:
        """Leave it as it is."""
        for folder in self.held:
            folder.let_go()

    def end_reaper(self) -> None:
        """Kill the reaper of this run, which would end its engines when the lease is over."""
        if self.same_boot and self.record.reaper is not None:
            _signal(self.record.reaper, signal.SIGKILL)

    def end_router(self) -> None:
        """End its router: streams break off, and its port is free then."""
        if self.same_boot and self.record.router is not None:
            process = self.record.router.process
            if mark_of(process.pid) == process:
                _kill_groups([process.pid])

    def end(self) -> list[str]:
        """End all of it: processes, sockets, folders. Tenants whose engines have ended by that."""
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
    """Runs of this user whose server has died: of one device or all, newest first.

    The locks of their folders are taken.
    """
    runs = [run for record in _dead(device) if (run := _taken(record)) is not None]
    return sorted(runs, key=lambda run: run.record.server.start, reverse=True)


def end_left(device: str) -> None:
    """End all runs of a device that were left."""
    for run in left_runs(device):
        run.end()


def left_models(device: str) -> dict[str, Path]:
    """Folders of models at a hub that engines of killed servers have loaded, by their names."""
    records = sorted(_dead(device), key=lambda record: record.server.start)
    told = {name: Path(folder) for one in records for name, folder in one.config.models.items()}
    return {name: folder for name, folder in told.items() if folder.is_dir()}


def left_tenants(device: str) -> list[str]:
    """Tenants that a killed server of a device served last, if its engines may go on."""
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
    """True if the group of an engine has a process that is surely its own."""
    if mark_of(engine.server.pid) == engine.server:
        return True
    if engine.core is None or mark_of(engine.core.pid) != engine.core:
        return False
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(engine.core.pid) == engine.server.pid
    return False


def end_engines(engines: Iterable[EngineRecord]) -> None:
    """Kill them with all that they have started, and wait until nothing is left."""
    groups = [engine.server.pid for engine in engines if has_process(engine)]
    made = {name: inode for group in groups for name, inode in reaper.semaphores_of(group).items()}
    _kill_groups(groups)
    reaper.remove_semaphores(made)  # of trackers that were killed too


def _kill_groups(groups: list[int]) -> None:
    """Returns once nothing of these process groups is left, or after `END_S` more seconds."""
    until = time.monotonic() + TRACKER_S
    while sum([reaper.kill_members(group) for group in groups]) or _any_left(groups):
        if time.monotonic() > until:
            for group in groups:
                reaper.kill_all(group)
        if time.monotonic() > until + END_S:
            break
        time.sleep(0.02)


def _any_left(groups: list[int]) -> bool:
    return any(True for group in groups for _ in reaper.members_of(group))


def _signal(mark: ProcessMark, number: int) -> None:
    """Send a signal and wait for the end; nothing happens if that process has ended."""
    if (process := MarkedProcess.found(mark)) is not None:
        process.send_signal(number)
        with contextlib.suppress(TimeoutError):
            process.wait(END_S)
        process.close()
