"""Real engines under load whose supervisor is killed: they serve on, and the next adopts them."""

from __future__ import annotations

import http.client
import json
import random
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from supervised import Served, assert_gone, serving, write_demo

from mirage.serve.adoption.counted import device_bytes
from mirage.serve.adoption.record import RunRecord, read_record
from mirage.serve.rundir.folders import RECORD, socket_name
from mirage.tools.demo.models import circuit_of

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NAMES = ("opt", "llama")
LEASE_S = 600.0
ANSWER_S = 300.0


class Load:
    """Clients that send requests to the engines' own sockets, and compare each answer with the
    expected tokens.
    """

    def __init__(self, folder: Path, models: dict[str, str]) -> None:
        self._folder, self._over = folder, threading.Event()
        self._circuits = {name: circuit_of(Path(path)) for name, path in models.items()}
        self.answers = dict.fromkeys(models, 0)
        self.wrong: list[str] = []
        self._threads = [
            threading.Thread(target=self._asks, args=(name, random.Random(f"{name}{number}")))
            for name in models
            for number in range(2)
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(ANSWER_S)
            assert not thread.is_alive(), "a request hangs"

    def more(self, count: int = 2) -> None:
        """Wait until each engine has answered `count` more requests."""
        before, until = dict(self.answers), time.monotonic() + ANSWER_S
        while any(self.answers[name] < before[name] + count for name in before):
            assert time.monotonic() < until and not self.wrong, self.wrong
            time.sleep(0.1)

    def _asks(self, name: str, rng: random.Random) -> None:
        while not self._over.is_set():
            prompt = [rng.randrange(256) for _ in range(rng.randrange(1, 100))]
            length = rng.randrange(1, 60)
            try:
                said = self._ask(name, prompt, length)
            except Exception as error:
                self.wrong.append(f"{name}: {error!r}")
                return
            if said != self._circuits[name].generate(prompt, length):
                self.wrong.append(f"{name} says {said} after {prompt}")
            self.answers[name] += 1

    def _ask(self, name: str, prompt: list[int], length: int) -> Any:
        connection = http.client.HTTPConnection("engine", timeout=ANSWER_S)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(self._folder / socket_name("engine", name)))
        body = {"model": name, "prompt": prompt, "max_tokens": length, "temperature": 0}
        body |= {"ignore_eos": True, "return_token_ids": True}
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        answer = json.loads(connection.getresponse().read())
        connection.close()
        return answer["choices"][0]["token_ids"]


def record(folder: Path) -> RunRecord:
    found = read_record(folder / RECORD)
    assert found is not None
    return found


def booked(served: Served) -> int:
    told = served.request("GET", "/mirage/state")[1]["tenants"]
    return sum(int(one["held_bytes"]) for one in told.values())


@pytest.mark.drawn("mode")
@pytest.mark.parametrize("mode", ["spatial", "temporal"])
def test_engines_under_load_go_on_and_are_adopted(tmp_path: Path, mode: str) -> None:
    config = write_demo(tmp_path, NAMES, "40MiB", sharing={"mode": mode})
    content = yaml.safe_load(config.read_text())
    models = {tenant["name"]: tenant["model"] for tenant in content["tenants"]}
    with serving(config, fake=False, ready_timeout_s=600, lease_s=LEASE_S) as first:
        first.drain()
        folder = first.run_folder()
        assert folder is not None
        load, family = Load(folder, models), first.family()
        load.more()
        before = record(folder)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        load.more()
    with serving(config, fake=False, ready_timeout_s=600, lease_s=LEASE_S) as second:
        second.drain()
        load.more()
        load.end()
        assert load.wrong == []
        after = record(folder)
        assert after.engines == before.engines and after.keeper == before.keeper
        engines = second.request("GET", "/mirage/state")[1]["engines"]
        assert all(one["adopted"] for one in engines.values()), "\n".join(second.log)
        cores = [engine.core.pid for engine in after.engines.values() if engine.core]
        counted, held = sum(map(device_bytes, cores)), booked(second)
        assert 0 < counted <= held <= 40 << 20, "pages that nobody has touched take no block"
        assert second.request("GET", "/mirage/state")[1]["kept_weights"]["masters"] == 2
        for name in NAMES:
            body = {"model": name, "prompt": [5, 6, 7], "max_tokens": 8, "temperature": 0}
            assert second.request("POST", "/v1/completions", body)[0] == 200
        family |= second.family()
        assert second.end(signal.SIGTERM)[0] == 0
    assert_gone({process for process in family if process.is_running()})
    assert not folder.exists()
    assert not psutil.pid_exists(cores[0])
