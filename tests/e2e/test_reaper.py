"""The reaper itself dies: its supervisor notices, logs it, and starts a new one that takes over."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from supervised import DEADLINE_S, assert_gone, serving, write_config

from mirage.processes import reaper, reaper_client
from mirage.processes.marks import MarkedProcess, mark_of
from mirage.processes.reaper_client import ReaperClient
from mirage.processes.stopped import end_adopted_if_stopped, end_if_stopped
from mirage.serve.rundir.locked_folder import HeldFolder

pytestmark = pytest.mark.e2e


def reapers(pid: int) -> list[psutil.Process]:
    return [child for child in psutil.Process(pid).children() if is_reaper(child)]


def is_reaper(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):  # it has ended
        return any(word.endswith("reaper.py") for word in process.cmdline())
    return False


def until(holds: Callable[[], object], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_reaper_that_was_killed_or_stopped_is_replaced_by_one_that_knows_all_engines(
    tmp_path: Path, number: int
) -> None:
    with serving(write_config(tmp_path, "a", "b")) as served:
        served.drain()
        (first,) = reapers(served.process.pid)
        time.sleep(reaper_client.SHORT_S)
        first.send_signal(number)
        # Two engines, the keeper of their weights, and the router.
        known = "a new reaper watches all processes (4)"
        served.until("another knows", lambda: known in "".join(served.log))
        assert set(reapers(served.process.pid)) - {first}
        family, folder = served.family(), served.run_folder()
        assert served.ready_file.exists()
        served.process.kill()  # it reads what it was told, whenever it comes to it
        served.process.wait()
        assert_gone(family, DEADLINE_S)
        assert folder is not None and not folder.exists()
        assert not served.ready_file.exists()


def test_one_that_cannot_be_replaced_is_told_once_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reaper_client, "RETRY_S", 0.05)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    folder = tmp_path / "run"
    folder.mkdir()
    with caplog.at_level(logging.WARNING), ReaperClient(folder) as client:
        client.began(1 << 22)
        client.began(child.pid)
        client.over(1 << 22)
        start, tries = client._start, []

        def fail() -> subprocess.Popen[str]:
            tries.append(1)
            if len(tries) < 4:
                raise OSError("no more processes")
            return start()

        monkeypatch.setattr(client, "_start", fail)
        first = client._process
        os.kill(first.pid, signal.SIGKILL)
        until(lambda: len(caplog.records) == 3)
        assert [record.getMessage().split(",")[0] for record in caplog.records] == [
            "the reaper ended",
            "no other reaper can be started (no more processes)",
            "a new reaper watches all processes (1)",
        ]
        assert client._groups.keys() == {child.pid}
    child.kill()
    child.wait()
    assert not folder.exists()


def test_a_child_is_ended_only_while_it_is_stopped() -> None:
    child = subprocess.Popen(["sleep", "600"])
    watching = threading.Thread(target=end_if_stopped, args=(child.pid, 0.2))
    watching.start()
    for _ in range(3):
        child.send_signal(signal.SIGSTOP)
        child.send_signal(signal.SIGCONT)
    assert child.poll() is None
    child.send_signal(signal.SIGSTOP)
    assert child.wait(60) == -signal.SIGKILL
    watching.join(60)
    assert not watching.is_alive()


def test_a_process_that_is_no_child_is_ended_once_it_stays_stopped() -> None:
    parent = subprocess.Popen(
        ["sh", "-c", "sleep 600 & echo $!; wait"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert parent.stdout is not None
        mark = mark_of(int(parent.stdout.readline()))
        assert mark is not None
        process = MarkedProcess.found(mark)
        assert process is not None
        watching = threading.Thread(target=end_adopted_if_stopped, args=(process, 1.0))
        watching.start()
        for _ in range(3):
            process.send_signal(signal.SIGSTOP)
            process.send_signal(signal.SIGCONT)
        assert process.lives()
        process.send_signal(signal.SIGSTOP)
        process.wait(60)
        watching.join(60)
        assert not watching.is_alive()
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.communicate()


def test_after_a_pause_of_everything_a_child_may_be_continued_a_little_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    child = subprocess.Popen(["sleep", "600"])
    sleeps = []

    def sleep(seconds: float) -> None:
        """Replacement of the reaper's sleep. The first one is a long pause; after the second the
        child is continued.
        """
        sleeps.append(seconds)
        if len(sleeps) == 2:
            child.send_signal(signal.SIGCONT)
            os.waitid(os.P_PID, child.pid, os.WCONTINUED)
            child.kill()

    monkeypatch.setattr("mirage.processes.stopped.time.sleep", sleep)
    child.send_signal(signal.SIGSTOP)
    end_if_stopped(child.pid, 30.0)
    assert len(sleeps) == 2, "it was given time to be continued"
    child.wait()


def test_the_end_of_a_run_is_no_death(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with ReaperClient(tmp_path / "run"):
        pass
    assert not caplog.records


def test_one_that_comes_to_it_late_knows_whose_it_was(tmp_path: Path) -> None:
    """A reaper starts after its supervisor has ended, so its parent is another process. It knows
    the supervisor by the process id in its arguments, and removes its files.
    """
    file, folders = tmp_path / "ready.json", [tmp_path / "a", tmp_path / "b"]
    file.write_text('{"pid": 4194305}')
    for folder in folders:
        (folder / "t").mkdir(parents=True)
    words = ["4194305", str(file), *map(str, folders)]
    subprocess.run(
        [sys.executable, "-I", reaper.__file__, *words], stdin=subprocess.DEVNULL, check=True
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", ['{"pid": 8}', "[]", "{}", "", None])
def test_a_ready_file_that_is_another_ones_stays(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "ready.json"
    if content is not None:
        file.write_text(content)
    reaper.unsay(file, 7)
    assert file.exists() is (content is not None)


def reaping(folder: Path, *lines: str) -> subprocess.Popen[str]:
    """A reaper to which a supervisor, dead by now, has sent these lines."""
    process = subprocess.Popen(
        [sys.executable, "-I", reaper.__file__, "4194305", "", str(folder)],
        stdin=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write("".join(f"{line}\n" for line in lines))
    process.stdin.close()
    return process


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def test_what_is_left_goes_on_for_its_lease(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    (folder := tmp_path / "run").mkdir()
    process = reaping(folder, f"+{child.pid}", "@1.5")
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(1.0)
    assert folder.exists()
    assert child.wait(60) == -signal.SIGKILL
    assert process.wait(60) == 0 and not folder.exists()


def test_what_another_server_has_taken_is_left_to_it(
    tmp_path: Path, child: subprocess.Popen[bytes]
) -> None:
    (folder := tmp_path / "run").mkdir(0o700)
    held = HeldFolder.taken(folder)
    assert held is not None and HeldFolder.taken(folder) is None
    assert reaping(folder, f"+{child.pid}", "@0.5").wait(60) == 0
    assert child.poll() is None and folder.exists()
    held.let_go()
    assert reaping(folder, f"+{child.pid}", "@0.5").wait(60) == 0
    assert child.wait(60) == -signal.SIGKILL and not folder.exists()


def test_without_anything_left_no_lease_is_waited_for(tmp_path: Path) -> None:
    (folder := tmp_path / "run").mkdir()
    gone = subprocess.Popen(["true"], start_new_session=True)
    gone.wait()
    assert reaping(folder, f"+{gone.pid}", "@600").wait(60) == 0
    assert not folder.exists()


def test_a_folder_that_is_its_own_later_goes_as_well(tmp_path: Path) -> None:
    (folder := tmp_path / "run").mkdir()
    (later := tmp_path / "later").mkdir()
    assert reaping(folder, f"/{str(later)[1:]}").wait(60) == 0
    assert not folder.exists() and not later.exists()
