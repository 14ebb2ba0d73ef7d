"""Steps of a placement move at the devices' sockets: their order, their failures,
and the undoing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import yaml
from aiohttp import web
from weight_machines import Machine, make_model, same

from mirage.control.placement.placed import DevicePlacement
from mirage.control.placement.steps import MoveStep, MoveVerb
from mirage.machines.board import NewsBoard
from mirage.machines.keeper import DeviceKeeper
from mirage.processes.reaper_client import ReaperClient
from mirage.serve.admin.bringing import Bringing
from mirage.serve.admin.forms import TenantStatus
from mirage.serve.admin.status import declared
from mirage.serve.api.openai import ApiError, errors_as_json
from mirage.serve.apply.revision import Revision
from mirage.serve.apply.source import ConfigSource
from mirage.serve.http.private_site import PrivateSite
from mirage.serve.machine.calls import DeviceCalls, DeviceRefused
from mirage.serve.machine.carrying import StepCarrier, StepFailed
from mirage.serve.machine.declared import DeclaredMachine, declared_machine
from mirage.serve.machine.order import DeviceOrder
from mirage.serve.machine.ordering import device_order
from mirage.serve.machine.served_device import ServedDevice
from mirage.serve.models.weights_ahead import WeightsAhead
from mirage.serve.models.weights_progress import AheadState
from mirage.serve.supervisor import ServeOptions
from mirage.weights.store import WeightStore

pytestmark = pytest.mark.e2e

BOTH = DevicePlacement.of_names({"a": ["x", "y"]})
THERE = DevicePlacement.of_names({"a": ["y"]})


class SmallDevice:
    """Fake of a device's server for moves: a tenant that comes is in the state `comes` at once."""

    def __init__(self, machine: DeclaredMachine, folder: Path, name: str, *tenants: str) -> None:
        self._machine, self._socket = machine, folder / name
        self.states = dict.fromkeys(tenants, "ready")
        self.comes, self.refuses = "ready", False
        self.heard: list[str] = []
        self._site, self._revision = PrivateSite(), Revision()
        self.ahead = WeightsAhead(lambda: machine.file.common.weights, lambda line: None)
        device = machine.device(name, tenants)
        self.keeper = DeviceKeeper(
            name,
            folder / "order",
            lambda: None,
            (),
            cast(ReaperClient, None),
            5.0,
            0.0,
            lambda line: None,
            NewsBoard(),
        )
        order = device_order(device, ServeOptions("127.0.0.1"), folder, folder, None)
        self.keeper.order = msgspec.json.encode(order)
        calls = DeviceCalls(name, self._socket)
        self.served = ServedDevice(self.keeper, order, calls, machine, tenants)

    @property
    def ordered(self) -> list[str]:
        """Names of the tenants with which the device's next server would begin."""
        order = msgspec.json.decode(self.keeper.order, type=DeviceOrder)
        return [one["name"] for one in order.config.raw["tenants"]]

    async def start(self) -> None:
        app = web.Application(middlewares=[errors_as_json])
        app.add_routes([web.get("/tenants", self._told), web.put("/config", self._put)])
        app.add_routes([web.post("/tenants/{name}/{act}", self._act)])
        app.add_routes(Bringing(self.ahead, self._revision).routes())
        await self._site.start(app, self._socket)

    async def stop(self) -> None:
        await self._site.stop()
        await self.ahead.stop()

    async def _told(self, request: web.Request) -> web.Response:
        rows = [self._row(name, state) for name, state in self.states.items()]
        server = {"pid": 1, "url": "", "policy": "", "device": "", "device_bytes": 0}
        return web.json_response(
            {"form_version": 4, "revision": 0, "server": server, "tenants": rows}
        )

    def _row(self, name: str, state: str) -> dict[str, Any]:
        spec = declared(self._machine.file.common.tenant(name))
        row = TenantStatus(
            **dict.fromkeys(TenantStatus.__struct_fields__, 0)
            | {"name": name, "spec": spec, "state": state, "adapters": [], "removed": False}
            | dict.fromkeys(("reason", "weights", "device", "log"), "")
        )
        return cast(dict[str, Any], msgspec.to_builtins(row))

    async def _put(self, request: web.Request) -> web.Response:
        if self.refuses:
            raise ApiError(400, "it does not fit")
        assert request.query["above"] == "1"
        names = [one["name"] for one in (await request.json())["tenants"]]
        drain = [request.query["drain_s"]] if "drain_s" in request.query else []
        self.heard.append(" ".join(["serves", *names, *drain]))
        self.states = {name: self.states.get(name, self.comes) for name in names}
        told: dict[str, Any] = {key: [] for key in ("added", "changed", "removed", "roster")}
        told |= {"fitting": [], "awaited": {}, "lines": []}
        return web.json_response(told | {"applied": True, "revision": 1})

    async def _act(self, request: web.Request) -> web.Response:
        name, act = request.match_info["name"], request.match_info["act"]
        self.heard.append(f"{act} {name}")
        self.states[name] = {"wake": "ready"}.get(act, "sleeping")
        told = {"tenant": name, "act": act, "will": "", "state": "", "revision": 1}
        return web.json_response(told, status=202)


class World:
    """Two devices: `a` is on x alone, `b` on y."""

    def __init__(self, folder: Path, *sources: str) -> None:
        """With `sources` (addresses of weights), the model of both tenants is `toy`
        of the stores.
        """
        config = folder / "many.yaml"
        model = "weights:toy" if sources else "/m"
        tenants = [{"name": n, "model": model, "share": 40} for n in ("a", "b")]
        devices = [{"name": name, "memory": "4MiB"} for name in ("x", "y")]
        weights = {"store": "here", "secret": "secret", "sources": list(sources)}
        told: dict[str, Any] = {"devices": devices, "tenants": tenants}
        config.write_text(yaml.safe_dump(told | ({"weights": weights} if sources else {})))
        source = ConfigSource(config)
        machine = declared_machine(source, source.written())
        self.x = SmallDevice(machine, folder, "x", "a")
        self.y = SmallDevice(machine, folder, "y", "b")
        served = {"x": self.x.served, "y": self.y.served}
        self.carrier = StepCarrier(served, 5.0, 7.0)
        self.told: list[str] = []

    async def carry(self, steps: list[MoveStep], placement: DevicePlacement) -> str:
        """Carry all steps out. If one fails, return its number, its reason, and the result of
        undoing the steps before.
        """
        for number in range(len(steps)):
            try:
                await self.carrier.carry(steps, number, placement, self.told.append)
            except StepFailed as error:
                return f"{number}: {error}; {await self.carrier.back(steps, number)}"
        return ""


@asynccontextmanager
async def world(folder: Path, *sources: str) -> AsyncIterator[World]:
    made = World(folder, *sources)
    for device in (made.x, made.y):
        await device.start()
    try:
        yield made
    finally:
        for device in (made.x, made.y):
            await device.stop()


def step(verb: MoveVerb, device: str) -> MoveStep:
    return MoveStep(verb, "a", device)


MOVE = [
    step(MoveVerb.START, "y"),
    step(MoveVerb.ROUTE, "y"),
    step(MoveVerb.DRAIN, "x"),
    step(MoveVerb.STOP, "x"),
]


def test_a_move_is_two_configurations_and_the_orders_of_both_servers_follow(short: Path) -> None:
    async def run() -> None:
        async with world(short) as made:
            assert await made.carry(MOVE, THERE) == ""
            assert (made.y.heard, made.x.heard) == (["serves a b"], ["serves 7"])
            assert (made.y.ordered, made.x.ordered) == (["a", "b"], [])

    asyncio.run(run())


def test_an_engine_that_does_not_come_is_taken_away_again(short: Path) -> None:
    async def run() -> None:
        async with world(short) as made:
            made.y.comes = "failed"
            told = await made.carry(MOVE, THERE)
            assert told == "0: a is failed on y: ; y is as it was"
            assert made.y.heard == ["serves a b", "serves b"] and made.x.heard == []
            assert (made.y.ordered, made.x.ordered) == (["b"], ["a"])

    asyncio.run(run())


def test_what_is_refused_leaves_the_order_as_it_was(short: Path) -> None:
    async def run() -> None:
        async with world(short) as made:
            made.y.refuses = True
            assert (await made.carry(MOVE, THERE)).startswith("0: it does not fit; ")
            assert made.y.ordered == ["b"] and made.x.heard == []

    asyncio.run(run())


def test_a_device_that_refuses_begins_anew_with_what_it_had(short: Path) -> None:
    async def run() -> None:
        async with world(short) as made:
            made.y.refuses = True
            with pytest.raises(DeviceRefused):
                await made.y.served.serves(frozenset({"a", "b"}))
            assert made.y.ordered == ["b"] and made.y.served.tenants == {"b"}

    asyncio.run(run())


def test_a_device_that_is_away_comes_back_without_it(short: Path) -> None:
    async def run() -> None:
        async with world(short) as made:
            await made.y.stop()
            told = await made.carry(MOVE, THERE)
            assert told == "0: the server of y is away; y comes back without a"
            assert made.y.ordered == ["b"] and made.x.heard == []

    asyncio.run(run())


def test_nothing_ends_before_what_serves_instead_is_ready(short: Path) -> None:
    async def run() -> None:
        async with world(short) as made:
            assert await made.carry(MOVE[:2], THERE) == ""
            made.y.states["a"] = "down"
            told = await made.carry(MOVE[2:], THERE)
            assert told == "0: a does not serve on y any more; what served before does so still"
            assert made.x.heard == [] and made.x.ordered == ["a"]

    asyncio.run(run())


def test_what_ends_on_a_device_that_is_away_ends_when_that_is_back(short: Path) -> None:
    async def run() -> None:
        async with world(short) as made:
            assert await made.carry(MOVE[:2], THERE) == ""
            await made.x.stop()
            assert await made.carry(MOVE[2:], THERE) == ""
            assert made.x.ordered == []

    asyncio.run(run())


def test_sleeps_and_wakes_are_acts(short: Path) -> None:
    async def run() -> None:
        asleep = [step(MoveVerb.DRAIN, "x"), step(MoveVerb.SLEEP, "x")]
        async with world(short) as made:
            assert await made.carry(asleep, DevicePlacement()) == ""
            assert made.x.heard == ["drain a"] and made.x.states == {"a": "sleeping"}
            assert await made.carry([step(MoveVerb.WAKE, "x")], BOTH) == ""
            assert made.x.heard == ["drain a", "wake a"] and made.x.ordered == ["a"]

    asyncio.run(run())


def origin(folder: Path) -> Machine:
    """Machine whose store of weights has `toy`, with the secret that the world's devices know."""
    secret = folder / "secret"
    secret.write_text("a secret of this cluster")
    secret.chmod(0o600)
    machine = Machine(folder / "origin", secret)
    machine.add(make_model(folder / "model"), "toy")
    return machine


def test_weights_are_brought_before_the_engine_starts(short: Path) -> None:
    async def run(url: str) -> None:
        async with world(short, url) as made:
            assert made.y.served.lacks_weights("a")
            assert await made.carry([step(MoveVerb.BRING, "y"), *MOVE], THERE) == ""
            assert not made.y.served.lacks_weights("a")
            assert same(here.folder(there.store.names()["toy"]), short / "model")
            assert made.y.heard == ["serves a b"] and made.x.heard == ["serves 7"]
            assert made.told[-1].endswith(" of 2.5 MiB")
            assert made.y.ahead.results == {AheadState.WHOLE: 1, AheadState.FAILED: 0}
            assert made.y.ahead.bytes == there.here(there.store.names()["toy"])
            assert await made.carry([step(MoveVerb.BRING, "y")], THERE) == ""
            assert made.y.ahead.results[AheadState.WHOLE] == 1, "it was there"

    there, here = origin(short), WeightStore(short / "here")
    with there.serving("--rate", "4MiB") as (url, _):
        asyncio.run(run(url))


def test_weights_that_do_not_come_end_the_move_and_nothing_has_gone(short: Path) -> None:
    async def run(url: str) -> None:
        async with world(short, url) as made:
            told = await made.carry([step(MoveVerb.BRING, "y"), *MOVE], THERE)
            why = f"toy: no source has it ({url} does not take the secret (401)): correct it"
            assert told == f"0: {why}; what served before does so still"
            assert (made.y.heard, made.x.heard, made.y.ordered) == ([], [], ["b"])
            assert made.y.ahead.results[AheadState.FAILED] == 1 and not made.y.ahead.coming

    there = origin(short)
    with there.serving() as (url, _):
        there.secret.write_text("another secret than that")
        asyncio.run(run(url))
