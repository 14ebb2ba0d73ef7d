"""The line between supervisor and router: no tenant sleeps while a request may still reach it."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mirage.config import HANG_S, HttpSection, Policy
from mirage.control.roster.needs import StateBytes, SwitchTimes
from mirage.control.roster.roster import Roster
from mirage.control.roster.rules import RosterRules
from mirage.control.roster.specs import TenantSpec
from mirage.control.roster.states import LifeState
from mirage.serve.access.forms import NO_KEYS, AccessTable
from mirage.serve.ends.ending import Ending
from mirage.serve.ends.suspects import RequestFacts
from mirage.serve.registry.registry import Registry, TenantServer
from mirage.serve.roster.attendance import Attendance
from mirage.serve.roster.ticket import NotInTime
from mirage.serve.routed.messages import (
    PROTOCOL_VERSION,
    BlameMemory,
    EndJudged,
    RouterHello,
    RouterWelcome,
    TableApplies,
    TableSeen,
    TenantCount,
    to_router,
)
from mirage.serve.router.link import SupervisorLink
from mirage.serve.routing import desk as desk_module
from mirage.serve.routing.desk import RouterDesk
from mirage.serve.routing.keeper import IMPORT_S
from mirage.wire import encode, receive

pytestmark = pytest.mark.e2e

WAIT_S = 60
OWN = StateBytes(awake=40, least=20, asleep=4, start=40, loaded=36, least_extents=2)
TIMES = SwitchTimes(sleep_s=0.1, wake_s=1.0, stop_s=0.5, warm_s=4.0, cold_s=9.0)
RULES = RosterRules(worth=0.0, busy_s=0.0, busy_worth=0.0, patience_s=0.0, drain_s=1000.0)


@dataclass
class Hearing:
    """Stand-in for a router process: it records the supervisor's orders."""

    keys: list[AccessTable] = field(default_factory=list)

    def holds(self, keys: AccessTable) -> None:
        self.keys.append(keys)

    http: list[dict[str, Any]] = field(default_factory=list)

    def limits(self, http: dict[str, Any]) -> None:
        self.http.append(http)

    def renews(self) -> None: ...

    async def drain(self) -> None:
        """Return at once, as if no request ran."""


@dataclass
class Orders:
    """Stand-in for engines. It records the roster's orders in `told` without carrying them out, and
    shows the roster's states in `registry`.
    """

    registry: Registry
    told: list[str] = field(default_factory=list)

    def start(self, name: str) -> None:
        self.told.append(f"start {name}")

    def stop_one(self, name: str, why: str) -> None:
        self.told.append(f"stop {name}")

    def sleep(self, name: str) -> None:
        self.told.append(f"sleep {name}")

    def wake(self, name: str) -> None:
        self.told.append(f"wake {name}")

    def shows(self, name: str, state: LifeState) -> None:
        self.registry.backends[name].enters(state)

    def gone(self, name: str) -> None:
        """Do nothing, because no tenant is removed here."""


class Server:
    """The supervisor's side: a device, by default with room for one of the tenants `a` and `b`, and
    the desk that talks to the router.
    """

    def __init__(self, lease_s: float = 0.0, nbytes: int = 50, hang_s: float = HANG_S) -> None:
        roster = Roster(nbytes, RULES, apart=True)
        backends = {}
        for name in "ab":
            roster.applied(TenantSpec(name, start="on_request"), OWN, TIMES, 0.0)
            backends[name] = TenantServer(name, Path(name), 128, LifeState.STOPPED)
        self.registry = Registry(Policy.MIRAGE, 50, backends)
        self._acts = Orders(self.registry)
        self.attendance = Attendance(roster, self._acts, changed=lambda: self.desk.changed())
        self.desk = RouterDesk(self.registry, self.attendance, hang_s)
        self._lease_s = lease_s

    async def start(self, path: Path) -> None:
        """Open the desk's socket, at which a router may connect and is welcomed."""
        http = HttpSection().model_dump()
        welcome = RouterWelcome(http, "", 1, HANG_S, "", {}, lease_s=self._lease_s)
        await self.desk.start(path, welcome, NO_KEYS)
        self.attendance.settle()

    async def awake(self, name: str) -> None:
        """Wake a tenant, and check that it is ready."""
        self.attendance.wish(name, LifeState.READY)
        self.attendance.started(name, 1.0)
        assert self.attendance.roster.members[name].state is LifeState.READY
        self.orders.clear()

    @property
    def orders(self) -> list[str]:
        return self._acts.told


class BareRouter:
    """The router's side of the line, which answers only when the test tells it to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer, self._decoder = reader, writer, to_router()

    async def table(self) -> TableApplies:
        while not isinstance(message := await receive(self._reader, self._decoder), TableApplies):
            assert message is not None
        return message

    def saw(self, revision: int, *counts: TenantCount) -> None:
        self.writer.write(encode(TableSeen(revision, list(counts))))


@asynccontextmanager
async def bare(path: Path, guest: str = "") -> AsyncIterator[BareRouter]:
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(encode(RouterHello(PROTOCOL_VERSION, 1, guest)))
    yield BareRouter(reader, writer)
    writer.close()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(WAIT_S):
            await scenario()

    asyncio.run(main())


async def until(holds: Callable[[], Any]) -> None:
    while not holds():
        await asyncio.sleep(0.01)


def test_nobody_is_told_to_sleep_before_the_router_knows(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = Server()
        await server.start(tmp_path / "line")
        await server.awake("a")
        member = server.attendance.roster.members["a"]
        async with bare(tmp_path / "line") as router:
            first = await router.table()
            assert {row.name: row.at_once for row in first.table.tenants} == {"a": True, "b": False}
            router.saw(first.revision)
            server.attendance.wish("a", LifeState.SLEEPING)
            shut = await router.table()
            assert not shut.table.tenants[0].at_once and server.orders == []
            # A request has slipped in before it saw that.
            router.saw(shut.revision, TenantCount("a", 0, 1, 1))
            await until(lambda: member.running == 1)
            assert server.orders == [] and member.state is LifeState.DRAINING
            router.saw(shut.revision, TenantCount("a", 0, 0, 1))
            await until(lambda: server.orders == ["sleep a"])

    run(scenario)


def test_a_router_that_has_gone_has_nothing_running(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = Server()
        await server.start(tmp_path / "line")
        await server.awake("a")
        async with bare(tmp_path / "line") as router:
            first = await router.table()
            router.saw(first.revision, TenantCount("a", 0, 3, 3))
            await until(lambda: server.attendance.roster.members["a"].running == 3)
            server.attendance.wish("a", LifeState.SLEEPING)
            assert server.orders == []
        await until(lambda: server.orders == ["sleep a"])
        assert server.desk.ends["died"] == 1

    run(scenario)


def test_nobody_sleeps_before_the_routers_of_all_machines_know(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = Server()
        await server.start(tmp_path / "line")
        await server.awake("a")
        member = server.attendance.roster.members["a"]
        async with bare(tmp_path / "line") as own:
            async with bare(tmp_path / "line", "m2") as guest:
                first = await own.table()
                assert (await guest.table()).table == first.table
                own.saw(first.revision, TenantCount("a", 0, 2, 2))
                guest.saw(first.revision, TenantCount("a", 0, 3, 3))
                await until(lambda: member.running == 5)
                server.attendance.wish("a", LifeState.SLEEPING)
                shut = await own.table()
                own.saw(shut.revision, TenantCount("a", 0, 0, 2))
                await until(lambda: member.running == 3)
                assert server.orders == []
            await until(lambda: server.orders == ["sleep a"])
            assert member.running == 0, "the other machine's requests went with its router"
            assert server.desk.ends["died"] == 0

    run(scenario)


def test_the_end_of_an_engine_is_judged_by_the_routers_of_all_machines(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = Server()
        await server.start(tmp_path / "line")
        await server.awake("a")
        async with bare(tmp_path / "line") as own, bare(tmp_path / "line", "m2") as guest:
            await own.table()
            await guest.table()
            judged = asyncio.create_task(server.desk.ended("a", Ending(status=-9)))
            own.writer.write(encode(EndJudged("a", "one was there", ["x"], BlameMemory())))
            guest.writer.write(encode(EndJudged("a", "one was there", ["y"], BlameMemory())))
            verdict = await judged
            assert (verdict.words, verdict.bodies) == ("one was there", frozenset("xy"))

    run(scenario)


def test_counts_of_an_engine_that_has_ended_are_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = Server()
        await server.start(tmp_path / "line")
        await server.awake("a")
        member = server.attendance.roster.members["a"]
        async with bare(tmp_path / "line") as router:
            first = await router.table()
            router.saw(first.revision, TenantCount("a", 0, 2, 2))
            await until(lambda: member.running == 2)
            server.attendance.ended("a", 0.0, failed=False)
            assert server.orders == ["start a"] and member.running == 0
            server.attendance.started("a", 1.0)
            # It has not seen the end yet, and one of its requests broke off.
            router.saw(first.revision, TenantCount("a", 0, 1, 2))
            router.saw(first.revision, TenantCount("a", 1, 1, 1))
            await until(lambda: member.running == 1)

    run(scenario)


def test_a_router_of_another_version_is_sent_away(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = Server()
        await server.start(tmp_path / "line")
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "line"))
        writer.write(encode(RouterHello(PROTOCOL_VERSION + 1, 1)))
        assert await reader.read() == b""
        writer.close()

    run(scenario)


def test_a_router_that_starts_may_be_silent_for_longer_than_one_that_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(desk_module, "BEAT_S", 0.001)

    async def scenario() -> None:
        desk = Server().desk
        time = desk._running

        async def hung_after(*passed: float, starts_s: float, speaks: bool = False) -> list[bool]:
            """True if the router counts as hung, after each of these further times (seconds). Its
            start may take `starts_s`; with `speaks` it has given a sign of life.
            """
            hung, known = asyncio.create_task(desk.hung(starts_s)), []
            await asyncio.sleep(0.01)
            if speaks:
                time.seconds += 1.0
                desk._heard = time.seconds
            for seconds in passed:
                time.seconds += seconds
                await asyncio.sleep(0.05)
                known.append(hung.done())
            hung.cancel()
            return known

        assert await hung_after(HANG_S - 1, 1.0, starts_s=0.0) == [False, True]
        assert await hung_after(HANG_S + 1, IMPORT_S, starts_s=IMPORT_S) == [False, True]
        assert await hung_after(HANG_S - 1, 1.0, starts_s=IMPORT_S, speaks=True) == [False, True]

    run(scenario)


@asynccontextmanager
async def linked(server: Server, path: Path) -> AsyncIterator[SupervisorLink]:
    await server.start(path)
    link = SupervisorLink(path)
    await link.connect()
    keeping = asyncio.create_task(link.keep(Hearing()))
    await server.desk.connected()
    yield link
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)


def test_a_request_waits_until_its_tenant_is_awake(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = Server()
        async with linked(server, tmp_path / "line") as link:
            ticket = link.requests.ask(link.tenants["a"])
            assert ticket.waits
            await until(lambda: server.orders == ["start a"])
            server.attendance.started("a", 1.0)
            await ticket.admitted()
            assert link.tenants["a"].row.at_once, "the table came first"
            member = server.attendance.roster.members["a"]
            beside = link.requests.ask(link.tenants["a"])
            assert not beside.waits
            await until(lambda: member.running == 2)
            ticket.over()
            beside.over()
            await until(lambda: member.running == 0)
            left = link.requests.ask(link.tenants["b"])
            await until(lambda: server.attendance.roster.members["b"].waiting)
            left.over()
            await until(lambda: not server.attendance.roster.members["b"].waiting)

    run(scenario)


def test_times_of_another_machine_are_told_by_the_own_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind = SimpleNamespace(monotonic=lambda: time.monotonic() - 5000)
    monkeypatch.setattr("mirage.serve.routing.desk.time", behind)

    async def scenario() -> None:
        server = Server()
        server.registry.backends["a"].comeback.pauses(behind.monotonic(), 600)
        async with linked(server, tmp_path / "line") as link:
            await link.has_table.wait()
            assert 500 < link.tenants["a"].row.wait_s(time.monotonic()) < 700

    run(scenario)


def test_an_end_is_judged_by_the_router_and_known_to_the_next_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = Server()
        async with linked(server, tmp_path / "line") as link:
            facts = RequestFacts("/v1/completions", "a", "body", 10, key="ci")
            link.tenants["a"].suspects.begins(facts)
            verdict = await server.desk.ended("a", Ending(status=-11))
            assert verdict.bodies == {"body"} and "over a request" in verdict.words
            nothing = await server.desk.ended("b", Ending(status=-11))
            assert (nothing.words, nothing.bodies) == ("", frozenset())
        another = SupervisorLink(tmp_path / "line")
        await another.connect()
        keeping = asyncio.create_task(another.keep(Hearing()))
        await another.has_table.wait()
        assert another.tenants["a"].suspects.refuses("body", asyncio.get_running_loop().time())
        keeping.cancel()

    run(scenario)


def test_limits_reach_the_router_that_serves_and_the_next_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        server, path = Server(), tmp_path / "line"
        await server.start(path)
        first, second = Hearing(), Hearing()
        link = SupervisorLink(path)
        await link.connect()
        keeping = asyncio.create_task(link.keep(first))
        await server.desk.connected()
        assert [one["head_s"] for one in first.http] == [10.0]
        server.desk.limits(HttpSection(head_s=3.0))
        await server.desk.seen()
        assert [one["head_s"] for one in first.http] == [10.0, 3.0]
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        another = SupervisorLink(path)
        await another.connect()
        assert another.welcome.http["head_s"] == 3.0
        keeping = asyncio.create_task(another.keep(second))
        await another.has_table.wait()
        assert [one["head_s"] for one in second.http] == [3.0]
        keeping.cancel()

    run(scenario)


def test_a_router_serves_on_while_its_supervisor_is_away(tmp_path: Path) -> None:
    """The supervisor ends. Requests of ready tenants pass, requests that need a wake are refused at
    once, and the next supervisor counts the requests that still run.
    """

    async def scenario() -> None:
        server, path = Server(WAIT_S, 100), tmp_path / "line"
        async with linked(server, path) as link:
            await server.awake("a")
            await server.desk.seen()
            passing, waiting = (
                link.requests.ask(link.tenants["a"]),
                link.requests.ask(link.tenants["b"]),
            )
            await until(lambda: server.attendance.roster.members["b"].waiting)
            hangs_up(server)
            with pytest.raises(NotInTime):
                await waiting.admitted()
            waiting.over()
            assert not link.is_up and not link.requests.ask(link.tenants["a"]).waits
            with pytest.raises(NotInTime):
                link.requests.ask(link.tenants["b"])

            after = Server(WAIT_S)
            await after.start(path)
            await after.awake("a")
            await until(lambda: after.attendance.roster.members["a"].running == 2)
            passing.over()
            await until(lambda: after.attendance.roster.members["a"].running == 1)

    run(scenario)


def test_a_router_brings_its_sockets_and_waits_for_its_welcome(tmp_path: Path) -> None:
    """A router hands its listening sockets to a new supervisor when it connects. So the supervisor
    can start another router on these sockets, even before it knows its engines.
    """

    async def scenario() -> None:
        server, path = Server(), tmp_path / "line"
        await server.desk.open(path)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            link = SupervisorLink(path, [listening])
            connecting = asyncio.create_task(link.connect())
            await until(lambda: server.desk._sockets)
            assert not connecting.done()
            await server.start(path)
            await connecting
        (brought,) = server.desk.take_sockets()
        with brought, socket.create_connection(brought.getsockname()[:2], timeout=WAIT_S):
            brought.accept()[0].close()

    run(scenario)


def test_the_sockets_of_the_last_router_are_kept(tmp_path: Path) -> None:
    async def scenario() -> None:
        server, path = Server(), tmp_path / "line"
        await server.start(path)
        with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("", 0)) as two:
            for count in (1, 2):
                await SupervisorLink(path, [one, two][:count]).connect()
                await until(lambda n=count: len(server.desk._sockets) == n)
            there = one.getsockname(), two.getsockname()
        brought = server.desk.take_sockets()
        assert tuple(s.getsockname() for s in brought) == there
        for left in brought:
            left.close()
        server.desk.close()

    run(scenario)


def test_a_router_that_starts_is_not_taken_for_hung(tmp_path: Path) -> None:
    """A router that has not given a sign of life yet may be silent, because imports take long on a
    busy machine. After its first sign, silence makes it count as hung.
    """

    async def scenario() -> None:
        server, path = Server(hang_s=0.2), tmp_path / "line"
        await server.start(path)
        keeping = asyncio.create_task(server.desk.keep())
        hung = asyncio.create_task(server.desk.hung(starts_s=3600.0))
        await asyncio.sleep(2.0)
        assert not hung.done()
        async with bare(path) as router:
            router.saw((await router.table()).revision)
            await hung
        await server.desk.hung()
        keeping.cancel()
        server.desk.close()

    run(scenario)


def hangs_up(server: Server) -> None:
    """Close the supervisor's sockets, so that no process listens there."""
    server.desk.close()
    assert server.desk._lines.own is not None
    server.desk._lines.own.end()


def test_a_lease_that_is_over_ends_the_router(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = Server()
        await server.start(tmp_path / "line")
        link = SupervisorLink(tmp_path / "line")
        await link.connect()
        keeping = asyncio.create_task(link.keep(Hearing()))
        await server.desk.connected()
        hangs_up(server)
        await keeping

    run(scenario)


def test_one_that_sleeps_again_before_the_router_knew_it_awake(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = Server()
        async with linked(server, tmp_path / "line"):
            await server.awake("a")
            server.attendance.wish("a", LifeState.SLEEPING)
            await until(lambda: server.orders == ["sleep a"])

    run(scenario)
