"""Two devices with real engines under load: a model moves, a replica opens, servers are killed."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from supervised import Served, assert_gone, serving, write_demo
from test_serve_devices import LEFT, RIGHT, Machine
from test_serve_devices_real import _runs
from test_serve_moves import OTHER, RULES, devices_of, moves, ready_on

import configs
from mirage.tools.demo.circuit import Circuit
from mirage.tools.demo.models import circuit_of

pytestmark = [pytest.mark.e2e, pytest.mark.rare]

NAMED = {"opt": LEFT, "llama": RIGHT}
LIMIT_S = 400.0


class LoadedModels:
    """Clients that compare each answer with the tokens that the model computes alone."""

    def __init__(self, server: Served, models: Mapping[str, str]) -> None:
        self._server = server
        self._circuits = {name: circuit_of(Path(path)) for name, path in models.items()}
        self.told: Counter[tuple[str, str]] = Counter()
        """Answers by model and outcome: ``right``, ``wrong``, or a status with its code."""

    @contextmanager
    def by(self, clients: Mapping[str, int]) -> Iterator[None]:
        """Context in which this number of clients of each model send requests."""
        over = threading.Event()
        threads = [
            threading.Thread(target=self._asks, args=(name, random.Random(f"{name}{n}"), over))
            for name, count in clients.items()
            for n in range(count)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join(LIMIT_S)
                assert not thread.is_alive(), "a request hangs"

    def more(self, names: tuple[str, ...], count: int = 3) -> None:
        """Wait until each of these models has answered `count` more requests rightly."""
        before, until = Counter(self.told), time.monotonic() + LIMIT_S
        while any(self.told[n, "right"] < before[n, "right"] + count for n in names):
            assert time.monotonic() < until, self.told
            time.sleep(0.1)

    def _asks(self, name: str, rng: random.Random, over: threading.Event) -> None:
        circuit: Circuit = self._circuits[name]
        while not over.is_set():
            prompt = [rng.randrange(256) for _ in range(rng.randrange(1, 100))]
            length = rng.randrange(1, 60)
            body = {"model": name, "prompt": prompt, "max_tokens": length, "temperature": 0}
            body |= {"ignore_eos": True, "return_token_ids": True}
            status, told = self._server.request("POST", "/v1/completions", body)
            if status != 200:
                self.told[name, f"{status} {told['error'].get('code')}"] += 1
                continue
            same = told["choices"][0]["token_ids"] == circuit.generate(prompt, length)
            self.told[name, "right" if same else "wrong"] += 1


def config_of(folder: Path) -> tuple[Path, dict[str, str]]:
    """Configuration in which the server places `qwen3`, and the model folder of each tenant."""
    hardware = yaml.safe_load((configs.HERE / "hardware" / "h100.yaml").read_text())
    hardware["step_overhead_ms"]["value"] = 50.0
    hardware["compute_tflop_s"]["value"] = 0.005
    (folder / "slow.yaml").write_text(yaml.safe_dump(hardware))
    config = write_demo(folder, [*NAMED, "qwen3"], "40MiB", hang_s=8)
    told = yaml.safe_load(config.read_text())
    device = told.pop("device") | {"profile": "slow.yaml"}
    told["devices"] = [device | {"name": name} for name in (LEFT, RIGHT)]
    told["tenants"] = [
        one | {"share": 50} | ({"device": NAMED[one["name"]]} if one["name"] in NAMED else {})
        for one in told["tenants"]
    ]
    told["placement"] = RULES | {"window_s": 10.0, "away_s": 60.0, "start_s": 300.0}
    config.write_text(yaml.safe_dump(told))
    return config, {one["name"]: one["model"] for one in told["tenants"]}


def test_texts_are_the_same_while_models_move_and_servers_go(tmp_path: Path) -> None:
    config, models = config_of(tmp_path)
    with serving(config, fake=False, ready_timeout_s=600, lease_s=600.0) as server:
        server.drain()
        machine, load = Machine(server, tmp_path), LoadedModels(server, models)
        (home,) = devices_of(machine, "qwen3")
        beside = next(name for name, device in NAMED.items() if device == home)
        try:
            with load.by({"qwen3": 2, beside: 2}):
                server.until(
                    "it has moved", lambda: devices_of(machine, "qwen3") == [OTHER[home]], LIMIT_S
                )
                load.more(("qwen3", beside))
            with load.by({"qwen3": 16}):
                server.until(
                    "a replica opens", lambda: ready_on(machine, "qwen3") == {LEFT, RIGHT}, LIMIT_S
                )
                load.more(("qwen3",), 20)
            family = server.family()
            with load.by({"qwen3": 2, "opt": 2, "llama": 2}):
                for device, number in ((LEFT, signal.SIGKILL), (RIGHT, signal.SIGSTOP)):
                    before = machine.device(device)
                    before.send_signal(number)
                    server.until(
                        "another one serves",
                        lambda name=device, pid=before.pid: machine.has_another(name, pid),
                    )
                    load.more(("qwen3", "opt", "llama"))
        except BaseException:
            print("".join(server.log))
            raise
        print("answers:", dict(load.told), "moves:", moves(machine))
        assert {outcome for _, outcome in load.told} == {"right"}, load.told
        assert moves(machine)["done"] >= 2
        family |= server.family()
        assert server.end(signal.SIGTERM)[0] == 0
    assert_gone({process for process in family if _runs(process)})
