"""Processes of real engines are stopped and killed; the other tenants are served on."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from supervised import Served, serving, write_demo

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

HANG_S = 10
START_S = 300
ANSWER_S = 120.0
"""Seconds after which a request without an answer counts as hung; the seconds that each took are
printed.
"""
TOKENS = 1900
"""Tokens of an answer that is under way when its engine freezes, on a fast processor too."""
PROBE = {"model": "opt", "prompt": "hello", "max_tokens": 8, "temperature": 0}


@pytest.fixture(params=["spatial", "temporal"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    changes = {"sharing": {"mode": request.param}, "hang_s": HANG_S}
    config = write_demo(tmp_path, ["llama", "opt"], "64MiB", TOKENS + 100, **changes)
    with serving(config, fake=False, ready_timeout_s=START_S) as served:
        served.drain()
        yield served


class Stream:
    """A long streamed answer of `llama`, which a thread reads to its end."""

    def __init__(self, served: Served) -> None:
        body = {"model": "llama", "prompt": "hi", "max_tokens": TOKENS, "stream": True}
        body |= {"ignore_eos": True, "temperature": 0}
        self.answer = served.open("POST", "/v1/completions", body).getresponse()
        assert self.answer.status == 200
        self.first = self.answer.readline()
        self.rest = b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while chunk := self.answer.read1():
                self.rest += chunk
        except Exception as error:  # cut off in the middle, as it must be
            assert isinstance(error, OSError) or type(error).__name__ == "IncompleteRead"

    def end(self) -> bytes:
        self._thread.join(ANSWER_S)
        assert not self._thread.is_alive(), "a request hangs"
        return self.rest


def ask(served: Served, body: dict[str, Any]) -> tuple[int, Any]:
    connection = served.open("POST", "/v1/completions", body)
    connection.sock.settimeout(ANSWER_S)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


@pytest.mark.drawn("number")
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_the_others_are_answered_and_it_comes_back(served: Served, number: int) -> None:
    text = ask(served, PROBE)[1]["choices"][0]["text"]
    for what in ("core", "API server"):
        core = served.engine_core("llama")
        parent = core.parent()
        assert parent is not None
        victim = core if what == "core" else parent
        stream = Stream(served)
        os.kill(victim.pid, number)
        since, longest = time.monotonic(), 0.0
        told = False
        while served.engine_state("llama") != "ready" or not told:
            begin = time.monotonic()
            status, answer = ask(served, PROBE)
            longest = max(longest, time.monotonic() - begin)
            assert status == 200 and answer["choices"][0]["text"] == text
            told = told or served.request("GET", "/health/llama")[0] == 503
            assert time.monotonic() - since < START_S
        print(f"{what}, {number}: the others' longest answer {longest:.1f} s")
        assert b'"error"' in stream.end(), "it looks complete"
        assert not victim.is_running() or victim.status() == psutil.STATUS_ZOMBIE
        assert ask(served, PROBE | {"model": "llama"})[0] == 200
    hangs = [line for line in served.log if "engine hangs (" in line]
    assert len(hangs) == (2 if number == signal.SIGSTOP else 0)
