"""Ten minutes on a machine that is far too busy: no engine is taken for hung."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.supervised import Served, serving, write_demo

pytestmark = pytest.mark.long

MINUTES = 10
HOGS = 4
NAMES = ("llama", "opt", "qwen3")


@pytest.mark.parametrize("mode", ["spatial", "temporal"])
def test_four_hogs_raise_no_alarm(tmp_path: Path, mode: str) -> None:
    config = write_demo(tmp_path, NAMES, "96MiB", sharing={"mode": mode})
    statuses: list[int] = []
    with serving(config, fake=False, ready_timeout_s=600) as served:
        served.drain()
        hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(HOGS)]
        try:
            until = time.monotonic() + 60 * MINUTES
            clients = [
                threading.Thread(target=_ask, args=(served, name, until, statuses))
                for name in NAMES
                for _ in range(2)
            ]
            for client in clients:
                client.start()
            for client in clients:
                client.join()
        finally:
            for hog in hogs:
                hog.kill()
                hog.wait()
        engines = served.request("GET", "/mirage/state")[1]["engines"]
        assert [engine["restarts"] for engine in engines.values()] == [0, 0, 0]
        assert not [line for line in served.log if "hangs" in line]
    print(f"{mode}: {len(statuses)} requests in {MINUTES} minutes beside {HOGS} hogs")
    assert statuses and set(statuses) == {200}


def _ask(served: Served, model: str, until: float, statuses: list[int]) -> None:
    body: dict[str, Any] = {"model": model, "prompt": "hello", "max_tokens": 200}
    while time.monotonic() < until:
        connection = served.open("POST", "/v1/completions", body)
        connection.sock.settimeout(600)
        answer = connection.getresponse()
        json.loads(answer.read())
        statuses.append(answer.status)
