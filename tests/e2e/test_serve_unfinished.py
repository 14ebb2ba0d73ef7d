"""A real engine ends in the middle of an answer: an unfinished answer is an error, never a text."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from supervised import Served, assert_gone, read_all, serving, write_demo

from mirage.serve.rundir.folders import socket_name

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NAME = "opt"
TOKENS = 400
ANSWER_S = 120.0


def asked(path: Path, *, stream: bool) -> http.client.HTTPResponse:
    """Answer of the engine to a request at its own socket; only its head has been read."""
    connection = http.client.HTTPConnection("engine", timeout=ANSWER_S)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(ANSWER_S)
    connection.sock.connect(str(path))
    body = {"model": NAME, "prompt": [5, 6, 7], "max_tokens": TOKENS, "ignore_eos": True}
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps(body | {"stream": stream}), headers)
    return connection.getresponse()


def whole(path: Path) -> tuple[int, bytes]:
    """Status and body of an answer; 0 and nothing if the connection broke off."""
    try:
        answer = asked(path, stream=False)
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, b""


def check_ended_in_mid_answer(path: Path, end: Callable[[], None]) -> None:
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(whole, path)
        stream = asked(path, stream=True)
        assert stream.readline().startswith(b"data: {"), "it has begun"
        end()
        rest = read_all(stream)
        status, body = other.result()
    assert b'"abort"' not in rest
    assert b'"error"' in rest or b"[DONE]" not in rest, rest[-400:]
    if status == 200:  # it was quicker
        assert json.loads(body)["choices"][0]["finish_reason"] == "length"


def core(served: Served) -> psutil.Process:
    return served.engine_core(NAME)


def api_server(served: Served) -> psutil.Process:
    return psutil.Process(core(served).ppid())


def reaper(served: Served) -> psutil.Process:
    children = psutil.Process(served.process.pid).children()
    (found,) = (one for one in children if any("reaper.py" in word for word in one.cmdline()))
    return found


def test_no_part_of_a_text_looks_complete(tmp_path: Path) -> None:
    config = write_demo(tmp_path, (NAME,), "24MiB", tokens=TOKENS + 16)
    with serving(config, fake=False, ready_timeout_s=600) as served:
        served.drain()
        folder = served.run_folder()
        assert folder is not None
        path = folder / socket_name("engine", NAME)
        for restarts, process in enumerate((core, api_server), 1):
            check_ended_in_mid_answer(path, process(served).terminate)
            served.until("it is back", lambda r=restarts: is_back(served, r))
        family, last = served.family(), reaper(served)

        def kill() -> None:
            last.suspend()  # or it would be quicker than the engine
            served.process.kill()

        try:
            check_ended_in_mid_answer(path, kill)
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                last.resume()
        served.process.wait()
        assert_gone(family)


def is_back(served: Served, restarts: int) -> bool:
    engine = served.request("GET", "/mirage/state")[1]["engines"][NAME]
    return bool(engine["restarts"] == restarts and engine["state"] == "ready")
