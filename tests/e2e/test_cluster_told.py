"""Machines that a controller tells of new keys and limits, and whose host memory it counts."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import msgspec
import pytest
from told_machines import MIB, Controlled, ToldMachines

from mirage.errors import CommandFailed
from mirage.machines.agent import AgentOrder
from mirage.machines.ray.commands import left
from mirage.machines.seam import DeviceAnswer, DeviceCall, MachineAway
from mirage.machines.tether_messages import TetherTold
from mirage.serve.machine import cluster_servers
from mirage.serve.machine.calls import DeviceAway
from mirage.serve.machine.cluster_controller import check_routers
from mirage.serve.machine.machine_router import ORDER, RouterOrder

if TYPE_CHECKING:
    from mirage.machines.ray.machines import RayMachines

pytestmark = pytest.mark.e2e

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
        kept = one.keys.table
        with pytest.raises(Exception, match="a key is named 'cluster'"):
            await one.applier.keys()
        assert one.keys.table is kept, "the controller's own keys stay too"
        assert machines.keys("d1") == {"kept", "new", "cluster"}

    asyncio.run(run())


def test_a_router_that_has_an_older_order_is_no_told_one(tmp_path: Path) -> None:
    """While the controller tells other keys, the router of m2 answers as with its first order, and
    does not answer the order with the new keys. It is named as away, and gets the new order at the
    controller's next look.
    """

    async def run() -> None:
        one = Controlled(tmp_path)
        machines, calls = one.machines, one.machines.call
        told_anew, answered = asyncio.Event(), asyncio.Event()

        async def call(name: str, asked: DeviceCall) -> DeviceAnswer:
            if (name, asked.path) != ("router@m2", ORDER):
                return await calls(name, asked)
            if not told_anew.is_set() and "new" not in str(asked.body):
                await told_anew.wait()
                answered.set()
                return await calls(name, asked)
            if not told_anew.is_set():
                told_anew.set()
                await answered.wait()
                await asyncio.sleep(0.1)
                raise MachineAway("it does not answer")
            return await calls(name, asked)

        machines.call = call  # type: ignore[method-assign]
        await one.controller.begin()
        await one.controller.step()
        one.has_keys("kept", "new")
        line = await one.applier.keys()
        assert line.endswith("; machine m2: away, and will hear of it once they answer"), line
        assert machines.keys("router@m2") == {"kept", "revoked", "cluster"}
        await one.controller.step()
        assert machines.keys("router@m2") == {"kept", "new", "cluster"}

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


def test_a_server_that_cannot_start_any_more_is_said_each_time(tmp_path: Path) -> None:
    """The server of d2 serves, ends and cannot start: one line. It serves again, and then cannot
    start for the same reason: one line more.
    """

    async def run() -> None:
        one = Controlled(tmp_path)
        await one.controller.begin()
        await one.controller.step()
        for times in (1, 2):
            one.machines.cannot = {"d2": "no model folder"}
            for _ in range(3):
                with suppress(DeviceAway):  # which the machine's watch handles
                    await one.controller.devices["d2"].calls.tenants()
                await one.controller.step()
            assert one.lines.count("device 'd2' on m2 does not start: no model folder") == times
            one.machines.cannot = {}
            await one.controller.devices["d2"].calls.tenants()
            await one.controller.step()

    asyncio.run(run())


def test_what_host_memory_does_not_hold_is_said_and_does_not_start(tmp_path: Path) -> None:
    """Each model's weights take 10 MiB of host memory, and m2 has 15 MiB for weights. When m1 is
    lost, its model `a` does not fit on m2 beside `b`: this is logged once, and `a` is not started.
    """

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


def test_a_lost_model_that_fails_does_not_hold_the_others(tmp_path: Path) -> None:
    """The models `a`, `c` and `d` of the lost machine m1 come to d2, where the start of `a` is
    refused: the other two are started in the same decision.
    """

    async def run() -> None:
        tenant = {"model": "model", "max_model_len": 128, "share": 20}
        lost = [{"name": name, "device": "d1", **tenant} for name in "acd"]
        one = Controlled(tmp_path, tenants=[*lost, {"name": "b", "device": "d2", **tenant}])
        await one.controller.begin()
        await one.controller.step()
        one.machines.gone, one.machines.fails = {"m1"}, {"a"}
        await one.controller.step()
        await one.controller.step()
        assert [line for line in one.lines if "failed" in line] == [
            "start a on d2 failed: it is broken; d2 is as it was"
        ]
        assert sorted(one.machines.starts("d2")) == ["b", "c", "d"], one.lines
        move = one.controller.book.told("a", 0.0)[-1]
        results = {(step.verb, step.model): step.result for step in move.steps}
        assert results["start", "a"] == "failed" and results["route", "a"] == "left out"
        assert results["route", "c"] == results["route", "d"] == "done" and move.result == "failed"

    asyncio.run(run())


def test_models_of_a_machine_that_leaves_are_started_elsewhere(tmp_path: Path) -> None:
    """m2 leaves under a live controller. While its server drains, its address answers, and its
    model `b` stays there; once the server has ended, `b` is started on d1, and nothing on m2.
    """

    async def run() -> None:
        one = Controlled(tmp_path)
        machines, orders = one.machines, one.machines.orders
        draining = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1")
        port = draining.sockets[0].getsockname()[1]
        machines.urls["d2"] = f"http://127.0.0.1:{port}"
        await one.controller.begin()
        await one.controller.step()
        before = orders["d2"], orders["router@m2"]
        assert sorted(await left(cast("RayMachines", machines), "m2")) == [
            "device d2: its server drains and ends",
            "router: its server drains and ends",
        ]
        await one.controller.step()
        assert LOST not in one.lines and machines.starts("d1") == ["a"]
        draining.close()
        await draining.wait_closed()
        await one.controller.step()
        assert one.lines.count(LOST) == 1
        assert [t["name"] for t in machines.served["d1"]["tenants"]] == ["a", "b"]
        (move,) = one.controller.book.told(None, 0.0)
        assert move.result == "done" and {step.model for step in move.steps} == {"b"}
        await one.controller.step()
        assert machines.starts("d1") == ["a", "b"], "the next server begins with both"
        assert (orders["d2"], orders["router@m2"]) == before

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


@pytest.mark.parametrize(
    ("silent_s", "answers", "lost_s"),
    [(3, None, 1.0), (12, None, 10.0), (12, False, 0.0), (12, True, None)],
)
def test_a_machine_that_is_missed_is_waited_for_as_long_as_the_file_says(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    silent_s: int,
    answers: bool | None,
    lost_s: float | None,
) -> None:
    clock = SimpleNamespace(now=1000.0)
    clock.monotonic = lambda: clock.now

    async def tries(url: str) -> bool | None:
        assert url == "http://d2"
        clock.now += cluster_servers.REACHED_S if answers is None else 0.0
        return answers

    async def run() -> None:
        one = Controlled(tmp_path, http={"silent_s": silent_s})
        await one.controller.begin()
        await one.controller.step()
        monkeypatch.setattr(cluster_servers, "_answers", tries)
        monkeypatch.setattr(cluster_servers, "time", clock)
        one.machines.gone = {"m2"}
        for silences in range(1, 3):
            begun = clock.now
            while clock.now < begun + 60 and one.lines.count(LOST) < silences:
                await one.controller.servers.look()
                clock.now += 0.0 if one.lines.count(LOST) == silences else 1.0
            took_s = clock.now - begun if one.lines.count(LOST) == silences else None
            if lost_s is None:
                assert took_s is None
            else:
                assert took_s is not None and lost_s - 1 <= took_s <= lost_s + 1
            one.machines.gone = set()
            await one.controller.servers.look()
            one.machines.gone = {"m2"}

    asyncio.run(run())


LOST = "device 'd2' is lost: its models go elsewhere"
