"""Clusters of three or four machines with networks of their own, and requests to all of them."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import yaml
from net_house import NetHouse, NetMachine, RunningThere, net_house
from operated import ROSTER
from supervised import write_config
from tethered import until

from mirage.machines.ray.node import NodeFolder, derived

PORT = 8000
ANSWER_S = 3.0
"""Longest time that a request may take: longer ones count as not answered."""
LONG_S = 240.0


def written(folder: Path, machines: int, **changes: Any) -> Path:
    """Configuration file with one device and one model for each machine: model1 is on d1 of m1, and
    so on.
    """
    config = write_config(folder, "a")
    numbers = range(1, machines + 1)
    own = {"model": "model", "max_model_len": 128, "share": 40}
    told = {
        "devices": [{"name": f"d{n}", "machine": f"m{n}", "memory": "4MiB"} for n in numbers],
        "dtype": "float32",
        "tenants": [{"name": f"model{n}", "device": f"d{n}", **own} for n in numbers],
        "roster": ROSTER,
        "hang_s": 10,
    }
    config.write_text(yaml.safe_dump(told | changes))
    return config


class Answer(NamedTuple):
    """Answer to one request: the time, the status (0 without an answer), and the text."""

    at: float
    """Time of its arrival in seconds, by `time.monotonic`."""
    status: int
    """0 if none came in time."""
    told: str
    """Answer of the model: the processes that have answered."""


class Asking:
    """Threads that send requests from one machine, for each model one after the
    other, until `end`.
    """

    def __init__(self, machine: NetMachine, url: str, models: Sequence[str], key: str) -> None:
        self._machine, self._url, self._key = machine, url, key
        self.answers: dict[str, list[Answer]] = {model: [] for model in models}
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(model,)) for model in models]
        for one in self._threads:
            one.start()

    def _work(self, model: str) -> None:
        self._machine.enter()
        while not self._over.wait(0.2):
            self.answers[model].append(asked(self._url, model, self._key))

    def end(self) -> None:
        """End the threads, and wait for them. Idempotent."""
        self._over.set()
        for one in self._threads:
            one.join()

    def since(self, model: str, begin: float) -> list[Answer]:
        return [one for one in list(self.answers[model]) if one.at >= begin]


def asked(url: str, model: str, key: str, timeout_s: float = ANSWER_S, **words: Any) -> Answer:
    """Send one request from the network of the calling thread; `words` are fields of its body."""
    parts, status, told = urlsplit(url), 0, ""
    body = json.dumps({"model": model, "prompt": "pids", **words})
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    there = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=timeout_s)
    with suppress(OSError, http.client.HTTPException), closing(there):
        there.request("POST", "/v1/completions", body, headers)
        answer = there.getresponse()
        text = answer.read().decode()
        status, told = answer.status, text
    return Answer(time.monotonic(), status, told)


class ManyMachines:
    """Cluster whose head is m1. The other machines have joined it, and the controller runs on one
    of the machines.
    """

    def __init__(self, house: NetHouse, over: ExitStack, **changes: Any) -> None:
        """Start all nodes; `changes` replace keys of the configuration."""
        self.house, self._over = house, over
        self.names, self.head = list(house.machines), "m1"
        self.config = written(house.folder, len(self.names), **changes)
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self.nodes = {name: self.joins(name) for name in self.names}
        self.key = derived(NodeFolder(self.machine("m1").state).secret(), "devices")
        self.models = [f"model{name[1:]}" for name in self.names]
        self.controller: RunningThere
        self._where = "m1"
        self._told: list[RunningThere] = []

    def machine(self, name: str) -> NetMachine:
        return self.house.machines[name]

    def joins(self, name: str) -> RunningThere:
        """Start the node of a machine: the head itself, or a node that joins the head."""
        machine, head = self.machine(name), self.machine(self.head)
        words = ["node", "start", "--name", name, "--host", machine.host]
        if name != self.head:
            words[1:2] = ["join", f"{head.host}:6390"]
        if not (name == self.head or (machine.state / "secret").exists()):
            copy = machine.folder / "copied-secret"
            copy.touch(0o600)
            copy.write_bytes((head.state / "secret").read_bytes())
            words += ["--secret", str(copy)]
        running = self._over.enter_context(machine.runs(*words))
        running.says(f"{name}: runs", LONG_S)
        return running

    def loses(self, name: str) -> None:
        """Kill all processes of a machine at once. Its files stay."""
        self.house.lose(name)
        if (pool := self._pools.pop(name, None)) is not None:
            pool.shutdown()

    @property
    def there(self) -> list[str]:
        """Machines that are not lost."""
        return [name for name in self.names if name in self.house.machines]

    def serves(self, where: str, *options: str) -> None:
        """Start a controller on a machine, and wait until all routers answer for all models."""
        words = ("serve", str(self.config), "--cluster", "--port", str(PORT), *options)
        self.controller = self._over.enter_context(self.machine(where).runs(*words))
        self._where = where
        self._told.append(self.controller)
        until(lambda: all(map(self.device, self.there)), "all devices serve", LONG_S)
        until(lambda: not self.missing(), "every router answers for every model", LONG_S)

    def device(self, name: str) -> str:
        """Address of a machine's device, as the controllers printed it last."""
        said = "".join(one.text for one in self._told)
        found = re.findall(f"device 'd{name[1:]}' serves at (\\S+)", said)
        return found[-1] if found else ""

    def router(self, name: str) -> str:
        return f"http://{self.machine(name).host}:{PORT}"

    def answers(self, name: str, url: str, model: str) -> bool:
        """True if `model` answers at the address `url` to a request from machine `name`."""
        return self.asks(name, url, model).result().status == 200

    def asks(
        self, name: str, url: str, model: str, timeout_s: float = ANSWER_S, **words: Any
    ) -> Future[Answer]:
        """Send a request from machine `name`; return the future of its answer."""
        if name not in self._pools:
            made = ThreadPoolExecutor(8, initializer=self.machine(name).enter)
            self._pools[name] = made
            self._over.callback(made.shutdown)
        return self._pools[name].submit(asked, url, model, self.key, timeout_s, **words)

    def missing(self) -> list[str]:
        """Pairs of a router and a model that do not answer."""
        pairs = ((name, model) for name in self.there for model in self.models)
        return [f"{n}: {m}" for n, m in pairs if not self.answers(n, self.router(n), m)]

    def astray(self) -> list[str]:
        """Models that are not at their own device, or also at another one."""
        found = []
        for name in self.names:
            for model in self.models:
                is_own = model[-1] == name[-1]
                if self.answers(self._where, self.device(name), model) != is_own:
                    found.append(f"{model} {'not ' if is_own else ''}on d{name[-1]}")
        return found

    def agents(self) -> int:
        """Number of device servers and routers whose agents answer, by `mirage node status`."""
        return self.machine(self._where).mirage("node", "status").stdout.count(", ready,")

    def whole(self) -> None:
        """Wait until each model is at its own device alone, and all agents and routers answer."""
        until(lambda: not self.astray(), "each model is at its own device", LONG_S)
        until(lambda: self.agents() == 2 * len(self.names), "every agent answers", LONG_S)
        until(lambda: not self.missing(), "every router answers for every model", LONG_S)

    def servers(self, names: Collection[str] = ()) -> dict[str, set[int]]:
        return {name: self.machine(name).servers() for name in names or self.there}

    @contextmanager
    def asking(self, names: Collection[str] = ()) -> Iterator[dict[str, Asking]]:
        """Send requests for all models from each machine to its own router while the block runs."""
        made = {
            name: Asking(self.machine(name), self.router(name), self.models, self.key)
            for name in names or self.names
        }
        try:
            everywhere = lambda: all(all(one.answers.values()) for one in made.values())  # noqa: E731
            until(everywhere, "all are asked")
            yield made
        finally:
            for one in made.values():
                one.end()

    def ends(self) -> None:
        """End the cluster by the commands of docs/machines.md. Nothing may be left."""
        assert self.controller.stop() == 130, self.controller.text
        self.names.sort(key=lambda name: name == self.head)
        for name in self.names:
            left = self.machine(name).mirage("node", "leave")
            assert left.returncode == 0 and left.stdout.count("drains and ends") == 2, left
        for name in self.names:
            assert self.nodes[name].ended(60) == 0
            machine = self.machine(name)
            until(lambda m=machine: not m.spaces.processes(), "no process is left", 60)
            assert not list(machine.folder.glob("mirage-*")), "no folder of a server is left"


def served(asking: Asking, model: str, begin: float, end: float) -> int:
    """Number of answers since `begin`. All must be good, and those until `end` from the same
    processes.
    """
    answers = asking.since(model, begin)
    assert answers and {one.status for one in answers} == {200}, (model, bad(answers, begin))
    assert len({one.told for one in answers if one.at < end}) == 1, (model, answers)
    assert answers[-1].told == asking.answers[model][0].told, "the same ones in the end"
    return len(answers)


def bad(answers: Sequence[Answer], begin: float) -> list[tuple[float, int, str]]:
    return [(round(a.at - begin, 1), a.status, a.told) for a in answers if a.status != 200]


def known_away(asking: Asking, model: str, begin: float, end: float) -> float:
    """Seconds from `begin` until a router answers that the model's device is away. All later
    answers until `end` must say so too.
    """
    answers = [one for one in asking.since(model, begin) if one.at < end]
    at = next(n for n, one in enumerate(answers) if "device_away" in one.told)
    assert all("device_away" in one.told for one in answers[at:]), bad(answers, begin)
    return answers[at].at - begin


@contextmanager
def many_machines(count: int, **changes: Any) -> Iterator[ManyMachines]:
    names = [f"m{n}" for n in range(1, count + 1)]
    with net_house(*names) as house, ExitStack() as over:
        yield ManyMachines(house, over, **changes)
