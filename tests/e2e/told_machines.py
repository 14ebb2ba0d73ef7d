"""Fake machines that record what a controller tells them, and a controller of these machines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import yaml
from operated import ROSTER
from supervised import HERE, write_config

from mirage.machines.agent import AgentOrder
from mirage.machines.seam import (
    DeviceAnswer,
    DeviceCall,
    DeviceNews,
    MachineAway,
    MachineThere,
    ServerCannot,
)
from mirage.machines.tether_messages import TetherTold
from mirage.serve.access.forms import AccessKey
from mirage.serve.access.server_keys import ServerKeys, key_source
from mirage.serve.admin.forms import (
    FORM_VERSION,
    DeclaredTenant,
    DeviceStatus,
    KeysTold,
    TenantStatus,
    TenantsTold,
)
from mirage.serve.apply.forms import ApplyTold
from mirage.serve.apply.said import NOTHING
from mirage.serve.apply.source import ConfigSource
from mirage.serve.apply.state_file import KeptState, StateFile
from mirage.serve.logs.logs import LogFormat
from mirage.serve.machine.cluster import ClusterOptions, KnownCluster, served_cluster
from mirage.serve.machine.cluster_applying import ClusterApplier, ClusterMeans, with_own
from mirage.serve.machine.cluster_controller import ClusterController
from mirage.serve.machine.machine_router import RouterTold
from mirage.serve.whatif.forms import PastTold

MIB = 2**20
OWN = AccessKey("cluster", "0" * 64, None, admin=True)
SPEC = DeclaredTenant(
    share_percent=40.0,
    aliases=[],
    adapters={},
    priority=0,
    start="now",
    keep_alive_s=None,
    stop_after_s=None,
    pinned=False,
    max_waiting=1,
    max_wait_s=1.0,
    keep_weights="host",
)


class ToldMachines:
    """Fakes of the machines m1 and m2 with devices d1 and d2. They record what their servers and
    routers are told.
    """

    def __init__(self) -> None:
        self.epoch = 1
        self.gone: set[str] = set()
        self.known: dict[str, bytes] = {}
        """Facts of the cluster."""
        self.host = {"m1": 0, "m2": 0}
        self.orders: dict[str, bytes] = {}
        """Orders of agents, which the next servers begin with."""
        self.heard: dict[str, list[tuple[str, Any]]] = {}
        """Paths and bodies of the changes (PUT, and no dry run) that running servers and routers
        got, by their names.
        """
        self.served: dict[str, dict[str, Any]] = {}
        """Configuration that each running server was given last."""
        self.refusal = ""
        """Reason for which all refuse a dry run."""
        self.refuses: dict[str, str] = {}
        """Reason for which a device refuses what is no dry run."""
        self.fails: set[str] = set()
        """Tenants that every device refuses, except in a dry run."""
        self.starts_on: set[tuple[str, str]] = set()
        """Tenant and device of each engine whose start does not end."""
        self.hangs: set[tuple[str, str]] = set()
        """Names of devices and routers with the paths of requests that they never answer; an empty
        path stands for the order to their agents.
        """
        self.cannot: dict[str, str] = {}
        """Line with which the server of a device ends at each start."""
        self.url = "http://10.0.0.1:8000"
        self.urls: dict[str, str] = {}
        """Addresses of device servers; `http://` and the device's name for others."""
        self.left: set[str] = set()
        """Machines that were told to leave."""
        self.without_own: set[str] = set()
        """Devices whose own router is not connected."""
        self.late: set[str] = set()
        """Machines whose routers are not connected to any device."""

    async def there(self) -> Sequence[MachineThere]:
        every = (MachineThere(n, "10.0.0.1", "first", host) for n, host in self.host.items())
        return [one for one in every if one.name not in self.gone | self.left]

    async def start(self, device: str, machine: str, order: bytes) -> None:
        if machine in self.gone:
            raise MachineAway("it is gone")
        await self._hangs(device, "")
        self.orders[device] = order

    async def call(self, device: str, call: DeviceCall) -> DeviceAnswer:
        if {device, f"m{device[-1]}"} & self.gone:
            raise MachineAway("it is gone")
        if why := self.cannot.get(device):
            raise ServerCannot(why)
        path, dry = call.path.split("?")[0], "dry_run=1" in call.path
        await self._hangs(device, path)
        if call.method == "PUT" and not dry:
            self.heard.setdefault(device, []).append((path, msgspec.json.decode(call.body)))
        if self.refusal and dry:
            return DeviceAnswer(400, msgspec.json.encode({"error": {"message": self.refusal}}))
        if not dry and path == "/config" and (why := self.refuses.get(device)):
            return DeviceAnswer(409, msgspec.json.encode({"error": {"message": why}}))
        raw = msgspec.json.decode(call.body) if path == "/config" else {}
        if not dry and any(one["name"] in self.fails for one in raw.get("tenants", ())):
            return DeviceAnswer(409, msgspec.json.encode({"error": {"message": "it is broken"}}))
        answers: dict[str, Any] = {
            "/keys": KeysTold(line=""),
            "/config": self._has(device, call.body, dry=dry) if path == "/config" else None,
            "/tenants": self._all(device),
            "/requests": PastTold(requests=[], next_since=None, last=0),
        }
        if path == "/order":
            answers[path] = RouterTold(self.url, msgspec.json.decode(call.body)["doors"])
        return DeviceAnswer(200, msgspec.json.encode(answers[path]))

    async def _hangs(self, name: str, path: str) -> None:
        while (name, path) in self.hangs:
            await asyncio.sleep(0.01)

    def _has(self, device: str, body: bytes, *, dry: bool) -> ApplyTold:
        """Answer of a device server to a new configuration; with `dry` it does not change."""
        raw = msgspec.json.decode(body)
        had, has = ({t["name"]: t for t in r.get("tenants", ())} for r in (self._raw(device), raw))
        added, removed = has.keys() - had.keys(), had.keys() - has.keys()
        changed = {n for n in has.keys() & had.keys() if has[n] != had[n]}
        if not dry:
            self.served[device] = raw
        ways = (("added", added), ("removed", removed), ("changed", changed))
        return ApplyTold(
            applied=not dry,
            revision=1,
            added=tuple(added),
            changed=(),
            removed=tuple(removed),
            roster=(),
            fitting=(),
            awaited=dict.fromkeys(added, "ready") | dict.fromkeys(removed, "absent"),
            lines=tuple(f"{n}: {way}" for way, names in ways for n in sorted(names)) or (NOTHING,),
        )

    def _raw(self, device: str) -> dict[str, Any]:
        return self.served.get(device, {})

    def _all(self, device: str) -> Any:
        server = DeviceStatus(
            pid=1,
            url=self.urls.get(device, f"http://{device}"),
            policy="mirage",
            device=device,
            device_bytes=1,
            routers=sorted(self.host.keys() - self.gone - self.late),
            own_router=device not in self.without_own,
        )
        names = [one["name"] for one in self._raw(device).get("tenants", ())]
        return TenantsTold(
            form_version=FORM_VERSION,
            revision=1,
            server=server,
            tenants=[
                status(name, device, "starting" if (name, device) in self.starts_on else "ready")
                for name in names
            ],
        )

    async def put(self, key: str, value: bytes, *, absent: bool = False) -> bool:
        if absent and key in self.known:
            return False
        self.known[key] = value
        return True

    async def facts(self, prefix: str) -> Mapping[str, bytes]:
        return {key: value for key, value in self.known.items() if key.startswith(prefix)}

    async def news(self) -> AsyncIterator[DeviceNews]:
        return
        yield

    async def keep(self) -> None: ...

    async def told(self, device: str) -> TetherTold | None:
        return TetherTold(1, 1, 1.0, self.url, True, 0.0)

    async def devices(self) -> dict[str, str]:
        return {name: f"m{name[-1]}" for name in self.orders}

    async def leaves(self, machine: str) -> None:
        self.left.add(machine)

    async def end(self, device: str) -> None:
        """Let a server and its agent answer no call any more."""
        self.gone.add(device)

    def keys(self, device: str) -> set[str]:
        """Names of the keys that a running server or router was told last."""
        for path, body in reversed(self.heard.get(device, [])):
            if path in ("/keys", "/order"):
                every = body if path == "/keys" else body["keys"]
                return {one["name"] for one in every}
        return set()

    def starts(self, device: str) -> list[str]:
        """Names of the tenants with which a device's next server would begin."""
        agent = msgspec.json.decode(self.orders[device], type=AgentOrder)
        raw = msgspec.json.decode(agent.order)["config"]["raw"]
        return [one["name"] for one in raw["tenants"]]

    def next_keys(self, device: str) -> set[str]:
        """Names of the keys with which a device's next server would begin."""
        agent = msgspec.json.decode(self.orders[device], type=AgentOrder)
        return {one["name"] for one in msgspec.json.decode(agent.order)["keys"]}


def status(name: str, device: str, state: str) -> TenantStatus:
    """Status of a tenant in a state."""
    return TenantStatus(
        name=name,
        spec=SPEC,
        state=state,
        since=1.0,
        reason="",
        weights="host",
        device=device,
        held_bytes=0,
        share_bytes=None,
        asleep_bytes=None,
        running=0,
        waiting=0,
        ready_s=None,
        yields_s=None,
        adapters=[],
        restarts=0,
        log="",
    )


class Controlled:
    """A controller of the fake machines, with a file of keys and a configuration of two models, one
    on each device.
    """

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
        self.probe = (str(HERE / "fake_probe.py"),)
        known = self.plan.known(self.probe)
        models = tuple(replace(one, parameters=10 * MIB) for one in known.facts.models)
        self.known = KnownCluster(replace(known.facts, models=models), {}, known.models)
        self.state = folder / "state.json"
        file = source.written()
        kept = KeptState(StateFile(self.state), source.path, file, file.sha256)
        means = ClusterMeans(self.keys, self.probe, kept)
        self.applier = ClusterApplier(self.plan, file, self.known, means)
        self.controller = ClusterController(self.machines, self.plan, self.known, self.lines.append)
        self.applier.controller = self.controller

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
        """All sections `http` that a running server or router was told, in order."""
        told = self.machines.heard.get(device, [])
        return [b.get("config", {"raw": b})["raw"].get("http") for p, b in told if p != "/keys"]
