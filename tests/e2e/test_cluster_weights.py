"""Two machines with a weight store each: a model's weights arrive before the model starts."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import pytest
import yaml
from operated import around
from prometheus_client.parser import text_string_to_metric_families
from supervised import DEADLINE_S, HERE, Served, assert_gone, serving
from test_serve_weights import WeightsUser
from weight_machines import ROOT, same

from mirage.machines.seam import DeviceAnswer, DeviceCall, DeviceNews, MachineAway, MachineThere
from mirage.serve.apply.source import ConfigSource
from mirage.serve.logs.logs import LogFormat
from mirage.serve.machine.cluster import ClusterOptions, served_cluster
from mirage.serve.machine.cluster_controller import ClusterController
from mirage.weights.store import WeightStore

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

LEFT, RIGHT = "left", "right"


class ServedMachine:
    """A machine: the server of its only device, and its weight store."""

    def __init__(self, folder: Path, short: Path) -> None:
        self.folder, self._short = folder, short
        folder.mkdir()
        self.store = WeightStore(folder / "mirage" / "weights")

    @property
    def environment(self) -> dict[str, str]:
        cache = {"XDG_CACHE_HOME": str(self.folder), "PYTHONPATH": str(ROOT)}
        return around(self._short) | cache

    @property
    def socket(self) -> str:
        (path,) = self._short.glob("mirage-*/admin-*.sock")
        return str(path)


class TwoMachines:
    """Two machines in the form in which a controller sees them; it reaches their servers at admin
    sockets.
    """

    def __init__(self, machines: Mapping[str, ServedMachine]) -> None:
        self.machines = dict(machines)

    async def there(self) -> Sequence[MachineThere]:
        return [MachineThere(name, "127.0.0.1", "first") for name in self.machines]

    async def start(self, device: str, machine: str, order: bytes) -> None:
        """Do nothing, because each server runs already."""

    async def call(self, device: str, call: DeviceCall) -> DeviceAnswer:
        try:
            connector = aiohttp.UnixConnector(self.machines[device].socket)
            async with (
                aiohttp.ClientSession("http://device", connector=connector) as http,
                http.request(call.method, call.path, data=call.body or None) as answer,
            ):
                return DeviceAnswer(answer.status, await answer.read())
        except (KeyError, ValueError, OSError, aiohttp.ClientError) as error:
            raise MachineAway(str(error)) from None

    async def put(self, key: str, value: bytes, *, absent: bool = False) -> bool:
        return True

    async def facts(self, prefix: str) -> Mapping[str, bytes]:
        return {}

    async def news(self) -> AsyncIterator[DeviceNews]:
        return
        yield


class WeightsCluster:
    """A controller of two machines. At first only the left one has the weights `toy`; the right one
    serves a model of a folder.
    """

    def __init__(self, user: WeightsUser, url: str, stack: ExitStack, **weights: Any) -> None:
        self.user, self.lines = user, list[str]()
        path = user.folder / "cluster.yaml"
        tenant = {"share": 40, "max_model_len": 128}
        told = {
            "devices": [{"name": n, "machine": n, "memory": "64MiB"} for n in (LEFT, RIGHT)],
            "tenants": [
                tenant | {"name": "toy", "model": "weights:toy", "device": LEFT},
                tenant | {"name": "own", "model": str(user.model), "device": RIGHT},
            ],
            "weights": {"secret": "secret", "sources": [url]} | weights,
        }
        path.write_text(yaml.safe_dump(told))
        source = ConfigSource(path)
        options = ClusterOptions((), "", 0, LogFormat.TEXT, 60.0, ())
        self.plan = served_cluster(source, source.written(), options)
        self.at, self.served = dict[str, ServedMachine](), dict[str, Served]()
        for device, name in ((LEFT, "toy"), (RIGHT, "own")):
            short = Path(stack.enter_context(TemporaryDirectory(prefix="t", dir="/tmp")))
            machine = self.at[device] = ServedMachine(user.folder / device, short)
            self.served[device] = stack.enter_context(self._serving(machine, device, name))
        self.machines = TwoMachines(self.at)
        known = self.plan.known((str(HERE / "fake_probe.py"),))
        assert {name: list(one.tenants) for name, one in known.scenes.items()} == {
            device: ["own"] for device in (LEFT, RIGHT)
        }, "moves are simulated with models of which vLLM was asked"
        self._begun = False
        self._controller = ClusterController(self.machines, self.plan, known, self.lines.append)

    def _serving(self, machine: ServedMachine, device: str, name: str) -> Any:
        config = machine.folder / "c.yaml"
        raw = json.loads(json.dumps(self.plan.written(device, [name]).raw))
        raw["weights"]["secret"] = str(self.user.folder / "secret")
        config.write_text(yaml.safe_dump(raw))
        return serving(config, environment=machine.environment)

    def until(self, what: str, holds: Any) -> None:
        """Let the controller look again and again until `holds()` is true; `what` is the message if
        it never is.
        """

        async def run() -> None:
            until = time.monotonic() + DEADLINE_S
            if not self._begun:
                await self._controller.begin()
                self._begun = True
            while not await asyncio.to_thread(holds):
                assert time.monotonic() < until, (what, self.lines)
                await self._controller.step()
                await asyncio.sleep(0.1)

        asyncio.run(run())

    def loses(self, device: str) -> None:
        """End a device's server for good, and forget its machine."""
        family = self.served[device].family()
        assert self.served[device].end(15)[0] == 0
        assert_gone(family)
        del self.machines.machines[device]

    def answers(self, device: str, model: str) -> bool:
        body = {"model": model, "prompt": "x", "max_tokens": 2}
        return bool(self.served[device].request("POST", "/v1/completions", body)[0] == 200)


@pytest.fixture
def user(tmp_path: Path, short: Path) -> WeightsUser:
    return WeightsUser(tmp_path, short)


def brought(server: Served) -> dict[str, float]:
    """Values of the server's metrics about weights, by name and labels."""
    text = server.request("GET", "/metrics")[1].decode()
    return {
        "/".join([one.name, *one.labels.values()]): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
        if one.name.startswith("mirage_weights_")
    }


def test_weights_are_at_the_other_machine_before_the_first_is_lost(user: WeightsUser) -> None:
    with user.origin.serving() as (url, _), ExitStack() as stack:
        cluster = WeightsCluster(user, url, stack)
        right = cluster.at[RIGHT].store
        cluster.until("they are there", lambda: right.is_whole(user.id))
        assert same(right.folder(user.id), user.model)
        ended = lambda: brought(cluster.served[RIGHT])["mirage_weights_brought_total/whole"] == 1  # noqa: E731
        cluster.until("it is told", ended)
        told = brought(cluster.served[RIGHT])
        assert told["mirage_weights_brought_bytes_total"] > 0
        assert told["mirage_weights_missing_bytes"] == 0.0


@pytest.mark.parametrize("ahead", [True, False])
def test_a_model_comes_to_the_other_machine_with_weights_of_its_store(
    user: WeightsUser, ahead: bool
) -> None:
    """The left machine is lost and `toy` moves to the right one. With `ahead` its weights were
    fetched before, and their origin is killed; otherwise they are fetched when the model moves.
    """
    with ExitStack() as stack:
        (url, origin) = stack.enter_context(user.origin.serving())
        cluster = WeightsCluster(user, url, stack, ahead=ahead)
        right = cluster.at[RIGHT].store
        if ahead:
            cluster.until("they are there", lambda: right.is_whole(user.id))
            origin.kill()
        else:
            serve = lambda: sum("serves at" in line for line in cluster.lines) == 2  # noqa: E731
            cluster.until("both have their own", serve)
            assert not right.ids()
        cluster.loses(LEFT)
        cluster.until("it is served", lambda: cluster.answers(RIGHT, "toy"))
        assert same(right.folder(user.id), user.model) and cluster.answers(RIGHT, "own")
        said = f"device {RIGHT!r}: weights of toy are there", f"bring toy on {RIGHT}: done"
        assert any(line.startswith(said) for line in cluster.lines)


def test_weights_that_do_not_come_are_one_line_and_disturb_nobody(user: WeightsUser) -> None:
    with ExitStack() as stack:
        (url, origin) = stack.enter_context(user.origin.serving())
        cluster = WeightsCluster(user, url, stack)
        user.origin.mirage("remove", "toy")
        said = lambda: [one for one in cluster.lines if "do not come" in one]  # noqa: E731
        cluster.until("it is said", said)
        cluster.until("it looks again", lambda: cluster.answers(RIGHT, "own"))
        assert said() == [
            f"device {RIGHT!r}: weights of toy do not come: toy: no source has it ({url} has none "
            "of that name): correct it"
        ]
        assert origin.poll() is None
