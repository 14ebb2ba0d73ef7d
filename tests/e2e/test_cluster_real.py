"""Two machines with real engines: one is lost under load, and its model moves to the other."""

from __future__ import annotations

import json
import random
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml
from loopback import HEAD, PORT, SECOND
from supervised import assert_gone, write_demo
from test_cluster_command import OneMachine, last_of, servers_in
from test_cluster_command import pytestmark as pytestmark
from test_cluster_command import root_folder as root_folder
from tethered import log_of, posted, until

from mirage.machines.ray.node import NodeFolder, derived
from mirage.tools.demo.models import circuit_of

PLACES = {"opt": "left", "llama": "right"}
START_S = 300.0


class TokenClient:
    """Client that sends requests for one model one after the other, and compares each answer with
    the expected tokens.
    """

    def __init__(self, url: str, name: str, model: str, key: str) -> None:
        self._url, self._name, self._key = url, name, key
        self._circuit, self._over = circuit_of(Path(model)), threading.Event()
        self.answers: list[float] = []
        """Times at which right answers came."""
        self.away: list[Any] = []
        self.wrong: list[Any] = []
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        rng = random.Random(self._name)
        while not self._over.wait(0.02):
            prompt = [rng.randrange(256) for _ in range(rng.randrange(1, 60))]
            body = {"model": self._name, "prompt": prompt, "max_tokens": 20, "temperature": 0}
            body |= {"ignore_eos": True, "return_token_ids": True}
            try:
                status, told = posted(self._url, body, self._key)
            except OSError as error:
                status, told = 0, str(error)
            if status != 200:
                self.away.append((time.monotonic(), status, told))
            elif told["choices"][0]["token_ids"] == self._circuit.generate(prompt, 20):
                self.answers.append(time.monotonic())
            else:
                self.wrong.append(told)

    def more(self, count: int = 3) -> None:
        """Wait until `count` more answers were right."""
        before = len(self.answers)
        until(lambda: len(self.answers) >= before + count, f"{self._name} answers", START_S)

    def end(self) -> None:
        self._over.set()
        self._thread.join()


def test_a_machine_is_lost_and_each_text_is_right(root: Path, tmp_path: Path) -> None:
    config = write_demo(tmp_path, list(PLACES), "40MiB", hang_s=8)
    told = yaml.safe_load(config.read_text())
    memory = told.pop("device")["memory"]
    told["devices"] = [
        {"name": "left", "machine": "m1", "memory": memory},
        {"name": "right", "machine": "m2", "memory": memory},
    ]
    told["tenants"] = [o | {"share": 45, "device": PLACES[o["name"]]} for o in told["tenants"]]
    config.write_text(yaml.safe_dump(told))
    models = {one["name"]: one["model"] for one in told["tenants"]}
    program = ("-m", "mirage")
    first = OneMachine(root, "m1", HEAD, program)
    second = OneMachine(root, "m2", SECOND, program)
    clients: list[TokenClient] = []
    with ExitStack() as over:
        words = ("node", "start", "--name", "m1", "--host", HEAD, "--port", str(PORT))
        _, lines = over.enter_context(first.runs(*words))
        until(lambda: any("m1: runs" in line for line in lines), "the head runs")
        secret = str(NodeFolder(first.folder).secret_file)
        key = derived(NodeFolder(first.folder).secret(), "devices")
        join = ("node", "join", f"{HEAD}:{PORT}", "--name", "m2", "--host", second.host)
        node, _ = over.enter_context(second.runs(*join, "--secret", secret))
        serve = ("serve", str(config), "--cluster", "--port", "0")
        _, said = over.enter_context(first.runs(*serve))
        begin = "mirage: machine 'm1' serves all models at "
        try:
            url = until(lambda: last_of(said, begin), "the address is known", START_S)
            clients += [TokenClient(url, name, model, key) for name, model in models.items()]
            for client in clients:
                client.more()
            opt, llama = clients
            status = first.mirage("node", "status").stdout
            pid = int(status.split("device right")[1].split("process ")[1].split(",")[0])
            before = len(opt.away)
            second.lost(node, pid)
            lost = time.monotonic()
            opt.more(10)
            until(lambda: llama.away and llama.away[-1][0] > lost, "it is missed")
            llama.more()
            back = min(at for at in llama.answers if at > llama.away[-1][0])
            print(f"machine lost: its model is back after {back - lost:.1f} s, {len(opt.answers)}")
            assert len(opt.away) == before, "the other model was served throughout"
            assert "device 'right' is lost" in "".join(said)
        except BaseException:
            print("".join(said), json.dumps([one.away[-1:] for one in clients]))
            for folder in (first.folder / "left", second.folder / "right"):
                print(log_of(folder))
            raise
        finally:
            for client in clients:
                client.end()
        assert not any(client.wrong for client in clients)
        of_servers = servers_in(root)
        assert first.mirage("node", "leave").returncode == 0
    assert_gone(of_servers)
