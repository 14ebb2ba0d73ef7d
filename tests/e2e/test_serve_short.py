"""A server that may open no more files, or whose logs cannot be written, serves on."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from left_shared import shared_files
from operated import around
from supervised import Served, serving, write_config

pytestmark = pytest.mark.e2e

HANG_S = 5


def pids(served: Served, name: str) -> dict[str, int]:
    status, body = served.request("POST", "/v1/completions", {"model": name, "prompt": "pids"})
    assert status == 200, body
    return dict(body)


@contextlib.contextmanager
def no_more_files(served: Served) -> Iterator[None]:
    """Context in which the server can open no further file."""
    pid = served.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    opened = max(int(file.name) for file in Path(f"/proc/{pid}/fd").iterdir()) + 1
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (opened, before[1]))
    # Numbers below that are free again and again: take those as well.
    taken = []
    with contextlib.suppress(OSError):
        for _ in range(opened):
            there = socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2])), 5)
            taken.append(there)
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        for there in taken:
            there.close()


@pytest.mark.slow
def test_nobody_is_accused_meanwhile(tmp_path: Path) -> None:
    with serving(write_config(tmp_path, "a", "b", hang_s=HANG_S)) as served:
        served.drain()
        before = pids(served, "a"), pids(served, "b")
        with no_more_files(served):
            time.sleep(2 * HANG_S)
        assert (pids(served, "a"), pids(served, "b")) == before
        assert not [line for line in served.log if "its engine" in line]


@pytest.mark.drawn("number")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.slow
def test_an_engine_that_ends_or_hangs_meanwhile_is_ended_and_comes_back(
    tmp_path: Path, number: int
) -> None:
    config = write_config(tmp_path, "a", "b", hang_s=HANG_S)
    # It cannot be started meanwhile either, so it rests before it is tried again.
    with serving(config, environment={"FAKE_REST_S": "1"}) as served:
        served.drain()
        before, other = pids(served, "a"), pids(served, "b")
        shared = shared_files(map(psutil.Process, before.values()))
        with no_more_files(served):
            os.kill(before["core"], number)
            time.sleep(2 * HANG_S)
        served.until("a is back", lambda: served.engine_state("a") == "ready")
        assert pids(served, "a")["core"] != before["core"]
        assert pids(served, "b") == other
        assert shared and not any(path.exists() for path in shared)


def test_one_whose_log_cannot_be_written_fails_alone(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    with serving(write_config(tmp_path, "a", "b"), "--log-dir", str(logs)) as served:
        served.drain()
        core, other = pids(served, "a")["core"], pids(served, "b")
        shutil.rmtree(logs)
        logs.write_text("in the way")
        os.kill(core, signal.SIGKILL)

        def reason() -> Any:
            return served.request("GET", "/health")[1].get("reasons", {}).get("a", "")

        served.until("a tells why", lambda: "it cannot be started" in reason())
        assert pids(served, "b") == other
        logs.unlink()
        served.until("a is back", lambda: served.engine_state("a") == "ready")


def test_one_that_ends_while_another_one_still_starts_is_started_again(
    tmp_path: Path, short: Path
) -> None:
    goes_on = tmp_path / "goes on"
    environment = around(short) | {"FAKE_ENGINE": f"waits:b:{goes_on}"}
    config = write_config(tmp_path, "a", "b")
    with serving(config, environment=environment, ready_timeout_s=None) as served:
        served.drain()
        served.until("it listens", lambda: [x for x in served.log if "a: ready in" in x])
        (admin,) = short.glob("mirage-*/admin-*.sock")
        served.url = f"http://127.0.0.1:{admin.stem.removeprefix('admin-')}"
        before = pids(served, "a")
        body = {"model": "a", "prompt": "kill"}
        status, answer = served.request("POST", "/v1/completions", body)
        assert status == 502 and "was ended from outside (SIGKILL)" in answer["error"]["message"]
        served.until("a is back", lambda: served.engine_state("a") == "ready")
        assert pids(served, "a") != before
        assert served.engine_state("b") == "starting" and not served.ready_file.exists()
        goes_on.touch()
        served.until("both are ready", lambda: served.ready_file.exists())
        assert pids(served, "b")
