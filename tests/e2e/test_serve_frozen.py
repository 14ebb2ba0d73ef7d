"""A process that is stopped or stuck is noticed, ended and started again; other
tenants serve on.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from left_shared import shared_files
from supervised import DEADLINE_S, Served, assert_gone, read_all, serving, write_config

from mirage.serve.engines.standstill import Standstill

pytestmark = pytest.mark.e2e

HANG_S = 5


def post(served: Served, prompt: str, model: str) -> tuple[int, Any]:
    return served.request("POST", "/v1/completions", {"model": model, "prompt": prompt})


def stream(served: Served, model: str) -> Any:
    """Streamed answer of `model` that has begun and does not end."""
    body = {"model": model, "prompt": "hang", "stream": True}
    answer = served.open("POST", "/v1/completions", body).getresponse()
    assert answer.readline() == b"data: {}\n"
    return answer


@pytest.mark.parametrize(
    ("process", "number", "why"),
    [
        ("core", signal.SIGSTOP, "no sign of life for 5 s"),
        ("core", signal.SIGUSR1, "no step for 5 s with 1 requests"),
        ("server", signal.SIGSTOP, "its API server has not answered for 5 s"),
    ],
)
def test_it_is_ended_told_and_started_again(
    tmp_path: Path, process: str, number: int, why: str
) -> None:
    with serving(write_config(tmp_path, "a", "b", hang_s=HANG_S)) as served:
        served.drain()
        before = post(served, "pids", "a")[1]
        answer = stream(served, "a")
        os.kill(before[process], number)

        def told() -> Any:
            assert post(served, "pids", "b")[0] == 200, "the other one serves all the time"
            status, body = served.request("GET", "/health/a")
            return body["reason"] if status == 503 else None

        reason = served.until("it is told", told)
        assert reason.startswith(f"its engine hung ({why[:12]}")
        assert served.request("GET", "/health")[1]["status"] == "degraded"
        assert b"send this request again" in read_all(answer)
        served.until("a is back", lambda: served.request("GET", "/health/a")[0] == 200)
        assert post(served, "pids", "a")[1]["core"] != before["core"]
        assert served.request("GET", "/health")[1]["status"] == "ok"
        hangs = [line for line in served.log if line.startswith("mirage: a: its engine hangs (")]
        assert len(hangs) == 1 and why[:12] in hangs[0]


def test_one_that_is_continued_in_time_goes_on(tmp_path: Path) -> None:
    with serving(write_config(tmp_path, "a", "b", hang_s=20)) as served:
        served.drain()
        before = post(served, "pids", "a")[1]
        for process in ("core", "server"):
            os.kill(before[process], signal.SIGSTOP)
            assert post(served, "pids", "b")[0] == 200
            os.kill(before[process], signal.SIGCONT)
            assert post(served, "pids", "a")[1] == before
        assert not [line for line in served.log if "hangs" in line]


@pytest.mark.slow
def test_after_a_pause_of_everything_nobody_hangs(tmp_path: Path) -> None:
    """All processes pause, as when a container is paused, and the server goes on a second before
    its engines. No engine counts as hung.
    """
    with serving(write_config(tmp_path, "a", "b", hang_s=HANG_S)) as served:
        served.drain()
        before = post(served, "pids", "a")[1]
        family = served.family()
        for process in family:
            process.suspend()
        time.sleep(2 * HANG_S)
        served.process.send_signal(signal.SIGCONT)
        time.sleep(1.0)
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):  # a reaper that was replaced
                process.resume()
        for name in ("a", "b"):
            assert post(served, "pids", name)[0] == 200
        time.sleep(2.0)  # whoever is accused is accused by now
        assert post(served, "pids", "a")[1] == before
        assert not [line for line in served.log if "hangs" in line]


@pytest.mark.slow
def test_after_a_pause_of_everything_no_start_is_too_late(tmp_path: Path) -> None:
    wanted = tmp_path / "go"
    waits = {"FAKE_ENGINE": f"waits:a:{wanted}"}
    config, limit_s = write_config(tmp_path, "a", "b"), 20
    options = ("--startup-timeout", str(limit_s))
    with serving(config, *options, environment=waits, ready_timeout_s=None) as served:
        served.drain()
        served.until("b serves", lambda: any("mirage: b: ready" in line for line in served.log))
        family = served.family()
        for process in family:
            process.suspend()
        time.sleep(limit_s)
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):  # a reaper that was replaced
                process.resume()
        time.sleep(1.0)  # whoever is too late is told so by now
        wanted.touch()
        served.wait_ready(DEADLINE_S)
        assert post(served, "pids", "a")[0] == 200


@pytest.mark.parametrize("ends", ["engine", "server"])
def test_a_process_group_that_is_stopped_leaves_nothing_shared(tmp_path: Path, ends: str) -> None:
    """All processes of an engine are stopped, with the resource tracker that removes its shared
    memory. When the engine or the server is ended, nothing of it is left in /dev/shm.
    """
    with serving(write_config(tmp_path, "a", hang_s=HANG_S)) as served:
        first = post(served, "pids", "a")[1]
        family = served.family()
        shared = shared_files(family)
        os.killpg(first["server"], signal.SIGSTOP)
        if ends == "engine":
            served.until("it is told", lambda: served.engine_state("a") != "ready")
            served.until("a is back", lambda: served.engine_state("a") == "ready")
        else:
            served.process.kill()
            served.process.wait()
            assert_gone(family)
        assert shared and not any(path.exists() for path in shared)


def start_of(served: Served) -> psutil.Process | None:
    """Process of the only tenant's API server; None before it exists."""
    for child in psutil.Process(served.process.pid).children():
        with contextlib.suppress(psutil.ZombieProcess):
            if "--uds" in child.cmdline():
                return child
    return None


def test_a_first_start_that_is_stopped_is_ended_and_begun_again(tmp_path: Path) -> None:
    """An engine is stopped while it starts. It is ended as hung and started again, before the time
    limit of a start would make the tenant failed.
    """
    wanted = tmp_path / "wanted"
    config = write_config(tmp_path, "a", hang_s=HANG_S)
    waits = {"FAKE_ENGINE": f"waits:a:{wanted}"}
    with serving(config, environment=waits, ready_timeout_s=None) as served:
        served.drain()
        found = served.until("it has begun", lambda: start_of(served))
        found.suspend()
        stopped = f"its engine hangs (its API server (process {found.pid}) is stopped)"
        served.until("it is ended", lambda: any(stopped in line for line in served.log))
        wanted.touch()
        served.wait_ready(DEADLINE_S)
        assert post(served, "pids", "a")[1]["server"] != found.pid


def test_one_that_is_stopped_while_it_starts_is_not_said_to_need_more_time(tmp_path: Path) -> None:
    waits = {"FAKE_ENGINE": f"waits:a:{tmp_path / 'never'}"}
    config, options = write_config(tmp_path, "a"), ("--startup-timeout", "8")
    with serving(config, *options, environment=waits, ready_timeout_s=None) as served:
        served.drain()
        found = served.until("it has begun", lambda: start_of(served))
        found.suspend()
        served.until("it is told", lambda: any("tenant 'a': " in x for x in served.log))
    (line,) = [x for x in served.log if "mirage: tenant 'a': " in x]
    stopped = f"its API server (process {found.pid}) is stopped, as by SIGSTOP or a debugger"
    assert f"not ready after 8 s: {stopped}: let it run" in line


GROUP = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
print(child.pid, flush=True)
child.wait()
"""


def test_a_start_that_stands_still_is_told_from_one_that_goes_on() -> None:
    for code, still in (("input()", True), ("while True: pass", False)):
        words = [sys.executable, "-c", GROUP, code]
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        ) as group:
            try:
                assert group.stdout is not None
                core, start, now = (
                    int(group.stdout.readline()),
                    Standstill(group.pid, 1.0, 0.0),
                    0.0,
                )
                until = time.monotonic() + 2.0
                while time.monotonic() < until:
                    time.sleep(0.2)
                    now += 0.2
                    told = start.look(now)
                assert told.startswith("its processes have computed nothing for") == still
                assert bool(told) == still
                os.kill(core, signal.SIGSTOP)
                told = f"its engine core (process {core}) is stopped"
                while not start.look(now).startswith(told):
                    time.sleep(0.05)
            finally:
                os.killpg(group.pid, signal.SIGKILL)


@pytest.mark.parametrize("ends", ["engine", "server"])
def test_a_process_group_that_is_killed_as_a_whole_leaves_nothing_shared(
    tmp_path: Path, ends: str
) -> None:
    """All processes of an engine are killed, with the resource tracker that would remove its shared
    memory. The server, or the reaper if that is killed too, removes it.
    """
    with serving(write_config(tmp_path, "a", "b")) as served:
        served.drain()
        first = post(served, "pids", "a")[1]
        family = served.family()
        of_a = [process for process in family if os.getpgid(process.pid) == first["server"]]
        shared, others = shared_files(of_a), shared_files(set(family) - set(of_a))
        assert shared and others
        for process in (served.process.pid,) if ends == "server" else ():
            os.kill(process, signal.SIGSTOP)  # it cannot tidy up either
        os.killpg(first["server"], signal.SIGKILL)
        if ends == "engine":
            served.until("a is told", lambda: served.engine_state("a") != "ready")
            served.until("a is back", lambda: served.engine_state("a") == "ready")
            assert others == {path for path in others if path.exists()}
        else:
            served.process.kill()
            served.process.wait()
            assert_gone(family)
        assert not any(path.exists() for path in shared)


def test_the_same_request_in_two_hangs_is_refused(tmp_path: Path) -> None:
    with serving(write_config(tmp_path, "a", hang_s=HANG_S)) as served:
        for _ in range(2):
            core = post(served, "pids", "a")[1]["core"]
            answer = stream(served, "a")
            os.kill(core, signal.SIGSTOP)
            read_all(answer)
            served.until("a is back", lambda: served.engine_state("a") == "ready")
        body = {"model": "a", "prompt": "hang", "stream": True}
        assert served.request("POST", "/v1/completions", body)[0] == 422
        assert post(served, "pids", "a")[0] == 200


def lost(served: Served) -> float:
    metrics = served.request("GET", "/metrics")[1].decode()
    (line,) = [
        x for x in metrics.splitlines() if x.startswith('mirage_requests_lost_total{tenant="a"')
    ]
    return float(line.split()[-1])


@pytest.mark.slow
def test_a_request_that_neither_has_is_answered_and_the_second_ends_the_engine(
    tmp_path: Path,
) -> None:
    """The API server waits for an answer, but the core does not have the request. The request is
    answered with 502; at the second one the engine is ended and started again.
    """
    with serving(write_config(tmp_path, "a", "b", hang_s=HANG_S)) as served:
        served.drain()
        before = post(served, "pids", "a")[1]
        status, body = post(served, "silent", "a")
        assert (status, lost(served)) == (502, 1)
        words = "model 'a': its API server and its engine core lost this request: send it again"
        assert body["error"]["message"] == words
        assert post(served, "pids", "a")[1] == before
        assert served.request("GET", "/health")[1]["status"] == "ok"

        assert b"lost this request" in read_all(stream(served, "a"))
        assert lost(served) == 2
        why = "2 requests were lost between its API server and its core"

        def told() -> Any:
            return [
                x for x in served.log if x == f"mirage: a: its engine hangs ({why}): it is ended\n"
            ]

        served.until("it is told", told)
        served.until("a is back", lambda: served.request("GET", "/health/a")[0] == 200)
        assert post(served, "pids", "a")[1]["core"] != before["core"]
        assert post(served, "pids", "b")[0] == 200
