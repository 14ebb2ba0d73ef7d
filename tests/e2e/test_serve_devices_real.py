"""Two devices with real engines under load: one server is killed, the other freezes."""

from __future__ import annotations

import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from supervised import Served, assert_gone, serving, write_demo
from test_serve_devices import LEFT, RIGHT, Machine

from mirage.tools.demo.models import circuit_of

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PLACES: dict[str, dict[str, Any]] = {
    "opt": {"device": LEFT},
    "llama": {"device": RIGHT},
    "qwen3": {"devices": [LEFT, RIGHT]},
}
ANSWER_S = 300.0


class Clients:
    """Two clients of each model, which compare each answer with the expected tokens."""

    def __init__(self, server: Served, models: dict[str, str]) -> None:
        self._server, self._over = server, threading.Event()
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

    def more(self, count: int = 3) -> None:
        """Wait until each model has answered `count` more requests."""
        before, until = dict(self.answers), time.monotonic() + ANSWER_S
        while any(self.answers[name] < before[name] + count for name in before):
            assert time.monotonic() < until and not self.wrong, self.wrong
            time.sleep(0.1)

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(ANSWER_S)
            assert not thread.is_alive(), "a request hangs"

    def _asks(self, name: str, rng: random.Random) -> None:
        while not self._over.is_set():
            prompt = [rng.randrange(256) for _ in range(rng.randrange(1, 100))]
            length = rng.randrange(1, 60)
            body = {"model": name, "prompt": prompt, "max_tokens": length, "temperature": 0}
            body |= {"ignore_eos": True, "return_token_ids": True}
            status, told = self._server.request("POST", "/v1/completions", body)
            said = told["choices"][0]["token_ids"] if status == 200 else told
            if said != self._circuits[name].generate(prompt, length):
                self.wrong.append(f"{name}: {status} {said}")
                return
            self.answers[name] += 1


def test_texts_are_the_same_whatever_happens_to_device_servers(tmp_path: Path) -> None:
    config = write_demo(tmp_path, list(PLACES), "40MiB", hang_s=8)
    told = yaml.safe_load(config.read_text())
    memory = told.pop("device")["memory"]
    told["devices"] = [{"name": name, "memory": memory} for name in (LEFT, RIGHT)]
    told["tenants"] = [one | {"share": 50} | PLACES[one["name"]] for one in told["tenants"]]
    config.write_text(yaml.safe_dump(told))
    models = {one["name"]: one["model"] for one in told["tenants"]}
    with serving(config, fake=False, ready_timeout_s=600, lease_s=600.0) as server:
        server.drain()
        machine, clients = Machine(server, tmp_path), Clients(server, models)
        try:
            clients.more()
            family = server.family()
            for device, number in ((LEFT, signal.SIGKILL), (RIGHT, signal.SIGSTOP)):
                before = machine.device(device)
                before.send_signal(number)
                server.until(
                    "another one serves",
                    lambda name=device, pid=before.pid: machine.has_another(name, pid),
                )
                clients.more()
        finally:
            clients.end()
        assert clients.wrong == [], "".join(server.log)
        for device in (LEFT, RIGHT):
            state = server.request("GET", f"/mirage/state?device={device}")[1]
            assert all(one["adopted"] for one in state["engines"].values()), state["engines"]
        family |= server.family()
        assert server.end(signal.SIGTERM)[0] == 0
    assert_gone({process for process in family if _runs(process)})


def _runs(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
