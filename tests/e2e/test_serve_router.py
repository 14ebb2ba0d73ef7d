"""The router's process is killed, frozen, left without a supervisor, or drained;
engines serve on.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from supervised import Served, assert_gone, read_all, serving, write_config

pytestmark = pytest.mark.e2e

HANG_S = 5
PROGRAM = "mirage.serve.router.process"


def post(served: Served, prompt: str, model: str = "a") -> tuple[int, Any]:
    return served.request("POST", "/v1/completions", {"model": model, "prompt": prompt})


def stream(served: Served) -> Any:
    """Streamed answer of tenant `a` that has begun and does not end."""
    body = {"model": "a", "prompt": "hang", "stream": True}
    answer = served.open("POST", "/v1/completions", body).getresponse()
    assert answer.readline() == b"data: {}\n"
    return answer


def nursery(served: Served) -> psutil.Process:
    """The process that forks the server's routers."""
    children = psutil.Process(served.process.pid).children()
    (found,) = (one for one in children if PROGRAM in one.cmdline())
    return found


def router(served: Served) -> psutil.Process:
    (found,) = nursery(served).children()
    return found


def metric(served: Served, name: str) -> float:
    status, text = served.request("GET", "/metrics")
    assert status == 200
    return next(
        float(line.split()[-1]) for line in text.decode().splitlines() if line.startswith(name)
    )


@pytest.mark.parametrize("which", [router, nursery])
def test_one_that_is_killed_is_back_on_the_same_port(tmp_path: Path, which: Any) -> None:
    with serving(write_config(tmp_path, "a", "b")) as served:
        before, broken = post(served, "pids")[1], stream(served)
        killed = which(served)
        family = {killed, router(served)}
        killed.kill()
        assert read_all(broken) == b"\n", "nothing makes it look complete"
        # A connection that comes meanwhile waits for the next router.
        assert post(served, "pids") == (200, before), "its engine is the same"
        assert_gone(family)
        served.until(
            "it is counted", lambda: metric(served, 'mirage_router_ends_total{cause="died"}') == 1
        )
        assert served.request("GET", "/mirage/state")[1]["engines"]["a"]["restarts"] == 0
        family = served.family()
        assert served.end(signal.SIGTERM)[0] == 0
    assert_gone(family)


def test_one_that_is_frozen_is_replaced(tmp_path: Path) -> None:
    with serving(write_config(tmp_path, "a", hang_s=HANG_S)) as served:
        before = post(served, "pids")[1]
        frozen = router(served)
        frozen.send_signal(signal.SIGSTOP)
        assert post(served, "pids") == (200, before), "it waited for the next one"
        assert_gone({frozen})
        assert metric(served, 'mirage_router_ends_total{cause="hung"}') == 1


def test_a_supervisor_that_is_frozen_stops_no_requests(tmp_path: Path) -> None:
    with serving(write_config(tmp_path, "a")) as served:
        before = post(served, "pids")[1]
        served.process.send_signal(signal.SIGSTOP)
        try:
            assert post(served, "pids") == (200, before)
            assert served.request("GET", "/ready")[0] == 200
            assert metric(served, "mirage_supervisor_up ") == 0
        finally:
            served.process.send_signal(signal.SIGCONT)
        served.until("it is back", lambda: metric(served, "mirage_supervisor_up ") == 1)


def test_a_supervisor_that_is_killed_leaves_no_router(tmp_path: Path) -> None:
    with serving(write_config(tmp_path, "a")) as served:
        family = served.family()
        os.kill(served.process.pid, signal.SIGKILL)
        assert_gone(family)


def test_a_drain_is_seen_before_it_is_felt(tmp_path: Path) -> None:
    """After SIGTERM `/ready` answers 503 while requests are still accepted, so that a load balancer
    stops sending them. Three seconds later new requests are refused, and running ones end with an
    error.
    """
    http = {"drain_delay_s": 3, "drain_s": 1}
    with serving(write_config(tmp_path, "a", http=http)) as served:
        broken = stream(served)
        served.process.send_signal(signal.SIGTERM)
        served.until("it is told", lambda: served.request("GET", "/ready")[0] == 503)
        assert post(served, "pids")[0] == 200, "it is still accepted"
        assert served.request("GET", "/health")[1]["status"] == "stopping"

        def refused() -> Any:
            connection = served.open("POST", "/v1/completions", {"model": "a", "prompt": "pids"})
            answer = connection.getresponse()
            told = json.loads(answer.read())
            return (answer, told) if answer.status == 503 else None

        answer, told = served.until("new ones are refused", refused)
        assert told["error"]["code"] == "draining"
        assert answer.headers["Connection"] == "close" and answer.headers["Retry-After"]
        event = json.loads(read_all(broken).strip().removeprefix(b"data: "))
        assert event["error"]["message"].startswith("the server is stopping")
        assert served.end(signal.SIGTERM)[0] == 0


def test_what_is_known_of_a_request_outlives_its_router(tmp_path: Path) -> None:
    with serving(write_config(tmp_path, "a")) as served:
        assert post(served, "die")[1]["error"]["code"] == "request_ended_engine"
        served.until("it is back", lambda: served.request("GET", "/health/a")[0] == 200)
        old = router(served)
        old.kill()
        assert_gone({old})
        status, told = post(served, "die")
        assert (status, told["error"]["code"]) == (422, "request_ended_engine")
        assert metric(served, 'mirage_router_ends_total{cause="died"}') == 1
