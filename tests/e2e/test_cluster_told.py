"""Machines that a controller tells of other keys and limits, and whose host memory it counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from operated import ROSTER
from supervised import HERE, write_config

from mirage.errors import CommandFailed
from mirage.machines.agent import AgentOrder
from mirage.machines.seam import DeviceAnswer, DeviceCall, DeviceNews, MachineAway, MachineThere
from mirage.machines.tether_messages import TetherTold
from mirage.serve.access.forms import AccessKey
from mirage.serve.access.server_keys import ServerKeys, key_source
from mirage.serve.admin.forms import FORM_VERSION, DeviceStatus, KeysTold, TenantsTold
from mirage.serve.apply.forms import ApplyTold
from mirage.serve.apply.source import ConfigSource
from mirage.serve.logs import LogFormat
from mirage.serve.machine.cluster import ClusterOptions, KnownCluster, served_cluster
from mirage.serve.machine.cluster_applying import ClusterApplier, with_own
from mirage.serve.machine.cluster_controller import ClusterController, check_routers
from mirage.serve.machine.machine_router import RouterOrder, RouterTold
from mirage.serve.whatif.forms import PastTold

pytestmark = pytest.mark.e2e

MIB = 2**20
OWN = AccessKey("cluster", "0" * 64, None, admin=True)
SAYS_NOTHING = ApplyTold(
    applied=True,
    revision=1,
    added=(),
    changed=(),
    removed=(),
    roster=(),
    fitting=(),
    awaited={},
    lines=(),
)


class ToldMachines:
    """Machines m1 and m2 with devices d1 and d2: what their servers and routers were told."""

    def __init__(self) -> None:
        self.epoch = 1
        self.gone: set[str] = set()
        self.host = {"m1": 0, "m2": 0}
        self.orders: dict[str, bytes] = {}
        """Orders of agents, which the next servers begin with."""
        self.heard: dict[str, list[tuple[str, Any]]] = {}
        """Paths and bodies that running servers and routers got."""
        self.refusal = ""
        self.url = "http://10.0.0.1:8000"

    async def there(self) -> Sequence[MachineThere]:
        every = (MachineThere(n, "10.0.0.1", "first", host) for n, host in self.host.items())
        return [one for one in every if one.name not in self.gone]

    async def start(self, device: str, machine: str, order: bytes) -> None:
        if machine in self.gone:
            raise MachineAway("it is gone")
        self.orders[device] = order

    async def call(self, device: str, call: DeviceCall) -> DeviceAnswer:
        if {device, f"m{device[-1]}"} & self.gone:
            raise MachineAway("it is gone")
        path, dry = call.path.split("?")[0], "dry_run=1" in call.path
        if call.method == "PUT" and not dry:
            self.heard.setdefault(device, []).append((path, msgspec.json.decode(call.body)))
        if self.refusal and dry:
            return DeviceAnswer(400, msgspec.json.encode({"error": {"message": self.refusal}}))
        answers: dict[str, Any] = {
            "/keys": KeysTold(line=""),
            "/config": SAYS_NOTHING,
            "/tenants": self._all(device),
            "/requests": PastTold(requests=[], next_since=None),
        }
        if path == "/order":
            answers[path] = RouterTold(self.url, msgspec.json.decode(call.body)["doors"])
        return DeviceAnswer(200, msgspec.json.encode(answers[path]))

    def _all(self, device: str) -> Any:
        server = DeviceStatus(
            pid=1, url=f"http://{device}", policy="mirage", device=device, device_bytes=1
        )
        return TenantsTold(form_version=FORM_VERSION, revision=1, server=server, tenants=[])

    async def put(self, key: str, value: bytes, *, absent: bool = False) -> bool:
        return True

    async def facts(self, prefix: str) -> Mapping[str, bytes]:
        return {}

    async def news(self) -> AsyncIterator[DeviceNews]:
        return
        yield

    async def keep(self) -> None: ...

    async def told(self, device: str) -> TetherTold | None:
        return TetherTold(1, 1, 1.0, self.url, True, 0.0)

    def keys(self, device: str) -> set[str]:
        """Names of keys that a running server or router was told last."""
        for path, body in reversed(self.heard.get(device, [])):
            if path in ("/keys", "/order"):
                every = body if path == "/keys" else body["keys"]
                return {one["name"] for one in every}
        return set()

    def starts(self, device: str) -> list[str]:
        """Tenants that the next server begins with."""
        agent = msgspec.json.decode(self.orders[device], type=AgentOrder)
        raw = msgspec.json.decode(agent.order)["config"]["raw"]
        return [one["name"] for one in raw["tenants"]]

    def next_keys(self, device: str) -> set[str]:
        """Names of keys that the next one begins with."""
        agent = msgspec.json.decode(self.orders[device], type=AgentOrder)
        return {one["name"] for one in msgspec.json.decode(agent.order)["keys"]}


class Controlled:
    """A controller of both, with a file of keys and one of two models, one for each device."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.machines, self.lines = ToldMachines(), list[str]()
        self.file, self._keys = write_config(folder, "a"), folder / "keys.yaml"
        tenant = {"model": "model", "max_model_len": 128, "share": 40}
        self.content = {
            "devices": [{"name": f"d{n}", "machine": f"m{n}", "memory": "4MiB"} for n in (1, 2)],
            "dtype": "float32",
            "tenants": [
                {"name": "a", "device": "d1", **tenant},
                {"name": "b", "device": "d2", **tenant},
            ],
            "roster": ROSTER,
        } | changes
        self.writes()
        self.has_keys("kept", "revoked")
        self.keys = ServerKeys(key_source(self._keys, {}))
        source = ConfigSource(self.file)
        options = ClusterOptions(
            with_own(self.keys.table.keys, OWN), "", 8000, LogFormat.TEXT, 60.0, ("-c", "")
        )
        self.plan = served_cluster(source, source.written(), options)
        known = self.plan.known((str(HERE / "fake_probe.py"),))
        models = tuple(replace(one, parameters=10 * MIB) for one in known.facts.models)
        self.known = KnownCluster(replace(known.facts, models=models), {})
        self.applier = ClusterApplier(self.plan, source.written(), self.keys)
        self.controller = ClusterController(self.machines, self.plan, self.known, self.lines.append)
        self.applier.servers = self.controller.servers

    def writes(self, **changes: Any) -> None:
        self.file.write_text(yaml.safe_dump(self.content | changes))

    def has_keys(self, *names: str) -> None:
        own = [{"name": n, "sha256": f"{ord(n[0]):064x}", "models": "all"} for n in names]
        self._keys.touch(0o600)
        self._keys.write_text(yaml.safe_dump({"keys": own}))

    async def apply(self, **words: Any) -> tuple[str, ...]:
        told = await self.applier.apply(lambda before: self.applier.source.written(), **words)
        return told.lines

    def limits(self, device: str) -> list[Any]:
        """Sections `http` that a running server was told, one after the other."""
        told = self.machines.heard.get(device, [])
        return [b.get("config", {"raw": b})["raw"].get("http") for p, b in told if p != "/keys"]


ALL = ("d1", "d2", "router@m1", "router@m2")


def test_other_keys_are_told_at_once_and_to_who_was_away_when_it_is_back(tmp_path: Path) -> None:
    async def run() -> None:
        one = Controlled(tmp_path)
        machines = one.machines
        await one.controller.begin()
        await one.controller.step()
        assert all(machines.keys(name) == {"kept", "revoked", "cluster"} for name in ALL)
        one.has_keys("kept", "new")
        machines.gone = {"m2"}
        line = await one.applier.keys()
        assert "keys: 2 of" in line and line.endswith(
            "; machine m2, device d2: away, and will hear of it once they answer"
        )
        for name in ("d1", "router@m1"):
            assert machines.keys(name) == machines.next_keys(name) == {"kept", "new", "cluster"}
        assert machines.keys("d2") == machines.next_keys("d2") == {"kept", "revoked", "cluster"}
        await one.controller.step()
        machines.gone = {"router@m2"}
        await one.controller.step()
        assert machines.keys("d2") == machines.next_keys("d2") == {"kept", "new", "cluster"}
        assert machines.next_keys("router@m2") == {"kept", "new", "cluster"}, "its agent answers"
        machines.gone = set()
        await one.controller.step()
        assert machines.keys("router@m2") == {"kept", "new", "cluster"}

        before = {name: len(machines.heard[name]) for name in ALL}
        await one.controller.step()
        assert {name: len(machines.heard[name]) for name in ALL} == before, "it is told once"

        one.has_keys("cluster")
        with pytest.raises(Exception, match="a key is named 'cluster'"):
            await one.applier.keys()
        assert machines.keys("d1") == {"kept", "new", "cluster"}

    asyncio.run(run())


def test_other_limits_are_told_if_all_can_have_them(tmp_path: Path) -> None:
    async def run() -> None:
        one = Controlled(tmp_path)
        await one.controller.begin()
        await one.controller.step()
        one.writes(http={"head_s": 3})
        assert await one.apply(dry_run=True) == ("http.head_s: would be changed, at once",)
        assert one.limits("router@m1")[-1] is None
        one.machines.refusal = "http.tls: cannot be read"
        with pytest.raises(CommandFailed, match=r"^machine 'm1': http.tls: cannot be read$"):
            await one.apply()
        assert one.applier.http.head_s == 10 and one.limits("router@m1")[-1] is None
        one.machines.refusal = ""
        assert await one.apply() == ("http.head_s: changed, at once",)
        assert [one.limits(name)[-1] for name in ALL] == [{"head_s": 3}] * 4
        agent = msgspec.json.decode(one.machines.orders["router@m2"], type=AgentOrder)
        order = msgspec.json.decode(agent.order, type=RouterOrder)
        assert order.config.raw["http"] == {"head_s": 3}, "another router begins with it"
        assert await one.apply() == ("nothing differs from what holds",)

        files = {"certificate": "/none", "key": "/none"}
        for changes, words in (
            ({"hang_s": 9}, "hang_s cannot change while this controller runs"),
            ({"http": {"tls": files}}, "http.tls cannot come or go while routers run"),
            ({"http": {"head_s": 0}}, "http.head_s"),
        ):
            one.writes(**changes)
            with pytest.raises(Exception, match=words):
                await one.apply()
        assert [one.limits(name)[-1] for name in ALL] == [{"head_s": 3}] * 4

    asyncio.run(run())


@pytest.mark.parametrize(
    ("url", "fits"),
    [("http://h:8000", True), ("http://h:8001", False), ("https://h:8000", False)],
)
def test_a_router_that_serves_elsewhere_is_said_before_anything(
    tmp_path: Path, url: str, fits: bool
) -> None:
    class Asked(ToldMachines):
        async def told(self, device: str) -> TetherTold | None:
            return TetherTold(1, 1, 1.0, url, True, 0.0)

    machines, plan = Asked(), Controlled(tmp_path).plan
    if fits:
        asyncio.run(check_routers(machines, plan))
        return
    with pytest.raises(CommandFailed, match=f"its router serves at {url}, and --port 8000"):
        asyncio.run(check_routers(machines, plan))


def test_what_host_memory_does_not_hold_is_said_and_does_not_start(tmp_path: Path) -> None:
    """Device 4 MiB, weights 10 MiB each: beside b there is no room for a."""

    async def run() -> None:
        one = Controlled(tmp_path)
        one.machines.host = {"m1": 100 * MIB, "m2": 4 * MIB + 15 * MIB}
        await one.controller.begin()
        await one.controller.step()
        assert [one.machines.starts(name) for name in ("d1", "d2")] == [["a"], ["b"]]
        one.machines.host = {"m2": 4 * MIB + 15 * MIB}
        one.machines.gone = {"m1"}
        await one.controller.step()
        await one.controller.step()
        words = (
            "a does not come to d2: its weights take 10.0 MiB of host memory, and machine 'm2' has "
            "5.0 MiB free of 15.0 MiB for weights: have it elsewhere, or fewer models there"
        )
        assert one.lines.count(words) == 1, one.lines
        assert one.machines.starts("d2") == ["b"]

    asyncio.run(run())


def test_what_does_not_fit_at_first_is_left_out(tmp_path: Path) -> None:
    async def run() -> None:
        one = Controlled(tmp_path)
        one.machines.host = {"m1": 4 * MIB + 9 * MIB, "m2": 0}
        await one.controller.begin()
        await one.controller.step()
        said = [line for line in one.lines if line.startswith("a does not come to d1")]
        assert said and "machine 'm1' has 9.0 MiB free of 9.0 MiB" in said[0]
        assert one.machines.starts("d1") == [] and one.machines.starts("d2") == ["b"]

    asyncio.run(run())
