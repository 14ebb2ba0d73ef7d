"""No semaphore is left in /dev/shm, whether engines, trackers or a whole server are killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from left_shared import FOLDER, shared_files
from operated import around, mirage
from supervised import assert_gone, serving, write_config

from mirage.processes import reaper
from mirage.processes.marks import mark_of
from mirage.serve.adoption import left
from mirage.serve.adoption.record import EngineRecord
from mirage.serve.engines.process import EngineProcess

pytestmark = pytest.mark.e2e

LIMIT_S = 60
MAKES_ONE = """
import multiprocessing, sys, time
from multiprocessing import resource_tracker

def untold(name, kind):
    print("made", name.strip("/"), flush=True)
    time.sleep(600)

resource_tracker.ensure_running()
resource_tracker.register = untold
multiprocessing.get_context("spawn").Semaphore()
"""


MAKES_MANY = """
import _multiprocessing, itertools, os
print("begins", flush=True)
for number in itertools.count():
    name = f"/mp-many{os.getpid()}-{number}"
    made = _multiprocessing.SemLock(1, 1, 1, name, False)
    _multiprocessing.sem_unlink(name)
"""


CATCHES = """
import signal
signal.signal(signal.SIGTERM, lambda *_: print("ends", flush=True) or exit())
print("begins", flush=True)
while True:
    signal.pause()
"""


def untold(log: Path) -> Path:
    """Path of a semaphore that a program has made before any resource tracker heard of it."""
    until = time.monotonic() + LIMIT_S
    while not (log.exists() and log.read_text().endswith("\n")):
        assert time.monotonic() < until
        time.sleep(0.02)
    path = FOLDER / f"sem.{log.read_text().split()[-1]}"
    assert path.exists()
    return path


def by_the_reaper(process: subprocess.Popen[bytes], folder: Path) -> None:
    words = [sys.executable, "-I", reaper.__file__, "4194305", "", str(folder)]
    subprocess.run(words, input=f"+{process.pid}\n", text=True, check=True, timeout=LIMIT_S)


def by_the_next_server(process: subprocess.Popen[bytes], folder: Path) -> None:
    mark = mark_of(process.pid)
    assert mark is not None
    left.end_engines([EngineRecord(server=mark, order="", log="")])


@pytest.mark.parametrize("end", [by_the_reaper, by_the_next_server])
def test_it_goes_with_a_group_that_is_ended(
    tmp_path: Path, end: Callable[[subprocess.Popen[bytes], Path], None]
) -> None:
    with (log := tmp_path / "log").open("w") as out:
        words = [sys.executable, "-c", MAKES_ONE]
        process = subprocess.Popen(words, stdout=out, start_new_session=True)
    path = untold(log)
    end(process, tmp_path / "run")
    process.wait(LIMIT_S)
    assert not path.exists()


@pytest.mark.parametrize("killed", [True, False])
def test_it_goes_with_an_engine_that_is_stopped(tmp_path: Path, killed: bool) -> None:
    """An engine that starts does not catch SIGTERM yet, and so ends by it at once."""
    log = tmp_path / "log"

    async def stopped() -> Path:
        engine = EngineProcess(tmp_path / "socket", log)
        await engine.start([sys.executable, "-u", "-c", MAKES_ONE], {}, lambda group: None)
        path = await asyncio.to_thread(untold, log)
        if killed:
            engine.kill()
        await engine.stop(0.0 if killed else LIMIT_S)
        return path

    assert not asyncio.run(stopped()).exists()


def test_nor_is_one_of_an_engine_that_is_stopped_while_it_makes_it(tmp_path: Path) -> None:
    """An engine is stopped at any moment while it makes semaphores."""

    async def stopped(number: int) -> None:
        log = tmp_path / f"log{number}"
        engine = EngineProcess(tmp_path / "socket", log)
        await engine.start([sys.executable, "-u", "-c", MAKES_MANY], {}, lambda group: None)
        while not (log.exists() and log.read_text() == "begins\n"):
            await asyncio.sleep(0.001)
        await engine.stop(LIMIT_S)

    before = set(FOLDER.iterdir())
    for number in range(20):
        asyncio.run(stopped(number))
    new = {path for pattern in ("sem.??????", "sem.mp-many*") for path in FOLDER.glob(pattern)}
    time.sleep(1.0)  # others make theirs
    assert not [path for path in new - before if path.exists()]


@pytest.mark.parametrize("suspended", [True, False])
def test_an_engine_is_asked_to_end_once_and_runs_on_if_it_ran(
    tmp_path: Path, suspended: bool
) -> None:
    """An engine that catches SIGTERM ends in its own way, but one that somebody has suspended is
    not continued for that.
    """
    log = tmp_path / "log"
    words = [sys.executable, "-u", "-c", CATCHES]

    async def stopped() -> str:
        engine = EngineProcess(tmp_path / "socket", log)
        await engine.start(words, {}, lambda group: None)
        while not (log.exists() and log.read_text() == "begins\n"):
            await asyncio.sleep(0.01)
        if suspended:
            os.kill(engine.pid, signal.SIGSTOP)
            while not reaper.is_suspended(engine.pid):
                await asyncio.sleep(0.001)
        await engine.stop(0.5 if suspended else LIMIT_S)
        return log.read_text()

    assert asyncio.run(stopped()) == "begins\n" + ("" if suspended else "ends\n")


def test_nor_is_one_that_the_c_library_was_making() -> None:
    """A process is killed while it makes a semaphore, which has another name at first."""
    before = set(FOLDER.iterdir())
    for _ in range(20):
        words = [sys.executable, "-c", MAKES_MANY]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True)
        assert process.stdout is not None and process.stdout.readline() == b"begins\n"
        made: dict[str, int] = {}
        while reaper.kill_members(process.pid, made):
            time.sleep(0.001)
        process.wait(LIMIT_S)
        process.stdout.close()
        reaper.remove_semaphores(made)
    new = set(FOLDER.glob("sem.??????")) - before
    time.sleep(1.0)  # others make theirs
    assert not [path for path in new if path.exists()]


def test_an_engine_whose_stop_is_cancelled_is_not_left_suspended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, words = tmp_path / "log", [sys.executable, "-u", "-c", CATCHES]
    looks, may_go_on = threading.Event(), threading.Event()

    def slowly(pids: Collection[int], patience_s: float) -> dict[str, int]:
        looks.set()
        assert may_go_on.wait(LIMIT_S)
        return {}

    monkeypatch.setattr(reaper, "of_stopping", slowly)

    async def stopped() -> None:
        engine = EngineProcess(tmp_path / "socket", log)
        await engine.start(words, {}, lambda group: None)
        while not (log.exists() and log.read_text() == "begins\n"):
            await asyncio.sleep(0.01)
        stop = asyncio.create_task(engine.stop(LIMIT_S))
        await asyncio.to_thread(looks.wait)
        stop.cancel()
        with suppress(asyncio.CancelledError):
            await stop
        may_go_on.set()
        assert await asyncio.wait_for(engine.ended(), LIMIT_S) == 0
        await engine.stop(0.0)

    asyncio.run(stopped())
    assert log.read_text() == "begins\nends\n"


def test_the_next_server_removes_those_of_one_that_was_killed_with_all_its_processes(
    tmp_path: Path, short: Path
) -> None:
    """A server with its reaper and all resource trackers is killed, as a container is. Semaphores
    are left; `mirage stop` of the same user removes them.
    """
    config = write_config(tmp_path, "a", "b")
    with serving(config, environment=around(short), lease_s=300) as served:
        family = served.family()
        shared = shared_files(family)
        server = psutil.Process(served.process.pid)  # it replaces a reaper that is stopped
        for number in (signal.SIGSTOP, signal.SIGKILL):  # nobody tidies up meanwhile
            for process in (server, *family - {server}):
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
        served.process.wait()
        assert_gone(family)
    assert len([path for path in shared if path.exists()]) == 2
    assert mirage(short, "stop").returncode == 0
    assert not any(path.exists() for path in shared)
    assert not list(short.iterdir())
