"""Each process of a server with real engines is stopped and killed; other tenants are answered.

The engine core and the API server alone are in `test_serve_frozen_real.py`, the holder of a peer's
memory in `test_serve_gpu_peers.py`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest
from left_shared import shared_files
from supervised import Served, serving, write_demo
from test_serve_frozen_real import HANG_S, PROBE, START_S, TOKENS, Stream, ask

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

OTHER = PROBE | {"model": "llama"}


def named(served: Served, words: str) -> list[psutil.Process]:
    """Living processes of the server whose command line has `words`."""
    found = []
    for process in served.family():
        try:
            dead = process.status() == psutil.STATUS_ZOMBIE
            if not dead and words in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def group(served: Served) -> list[psutil.Process]:
    """All processes of `llama`'s engine, its resource tracker among them."""
    core = served.engine_core("llama")
    return [p for p in served.family() if os.getpgid(p.pid) == os.getpgid(core.pid)]


def harm(processes: Sequence[psutil.Process], number: int) -> None:
    for process in processes:
        os.kill(process.pid, number)


def asks_until(served: Served, done: Callable[[], bool], text: str) -> float:
    """Send requests to the other engine until `done()`; each must be answered with `text`. Return
    the seconds of the longest one.
    """
    since, longest = time.monotonic(), 0.0
    while True:
        begin = time.monotonic()
        status, answer = ask(served, PROBE)
        longest = max(longest, time.monotonic() - begin)
        assert status == 200 and answer["choices"][0]["text"] == text
        if done():
            return longest
        assert time.monotonic() - since < START_S


def restarts(served: Served) -> list[int]:
    engines = served.request("GET", "/mirage/state")[1]["engines"]
    return [engine["restarts"] for engine in engines.values()]


HELPERS = {
    "keeper": ("mirage.keeper.process", "another keeper of weights is up"),
    "reaper": ("reaper.py", "a new reaper watches all processes"),
}


def harms_helper(served: Served, what: str, number: int, text: str) -> None:
    """Kill or stop a helper process (signal `number`). No request fails, and the server starts
    another helper soon.
    """
    words, told = HELPERS[what]
    (helper,) = named(served, words)

    def count() -> int:
        return len([line for line in served.log if told in line])

    before = count()
    harm([helper], number)
    longest = asks_until(served, lambda: count() > before, text)
    print(f"{what}, {number}: longest answer {longest:.1f} s")
    assert ask(served, OTHER)[0] == 200
    served.until("it is gone", lambda: helper not in named(served, words))


def harms_trackers(served: Served, number: int, text: str) -> None:
    """Kill or stop the resource trackers. All engines answer without them."""
    harm(named(served, "multiprocessing.resource_tracker"), number)
    assert ask(served, PROBE)[1]["choices"][0]["text"] == text
    assert ask(served, OTHER)[0] == 200


def harms_engine(served: Served, number: int, text: str) -> None:
    """Kill or stop all processes of an engine at once. The other engine answers meanwhile, this one
    comes back, and nothing of it is left in /dev/shm.
    """
    shared, stream, seen = shared_files(group(served)), Stream(served), list[int]()
    harm(group(served), number)

    def told_and_back() -> bool:
        seen.append(served.request("GET", "/health/llama")[0])
        return 503 in seen and seen[-1] == 200

    longest = asks_until(served, told_and_back, text)
    print(f"whole engine, {number}: longest answer {longest:.1f} s")
    assert b'"error"' in stream.end(), "it looks complete"
    assert ask(served, OTHER)[0] == 200
    assert not [path for path in shared if path.exists()]


@pytest.mark.drawn("mode")
@pytest.mark.parametrize("mode", ["spatial", "temporal"])
def test_the_others_are_answered(tmp_path: Path, mode: str) -> None:
    changes = {"sharing": {"mode": mode}, "hang_s": HANG_S}
    config = write_demo(tmp_path, ["llama", "opt"], "64MiB", TOKENS + 100, **changes)
    with serving(config, fake=False, ready_timeout_s=START_S) as served:
        served.drain()
        text = ask(served, PROBE)[1]["choices"][0]["text"]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for what in HELPERS:
                harms_helper(served, what, number, text)
            harms_trackers(served, number, text)
        assert restarts(served) == [0, 0]
        assert served.request("GET", "/health")[1]["status"] == "ok"
        for number in (signal.SIGSTOP, signal.SIGKILL):
            harms_engine(served, number, text)
        assert restarts(served) == [2, 0]
