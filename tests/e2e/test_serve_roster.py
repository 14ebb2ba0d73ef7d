"""More tenants than fit: fake engines sleep, wake, start and stop as requests need them."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import wraps
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import aiohttp
import pytest
from domain_served import LIMIT_S, domain_served
from fake_engine import HELD, SHAPE
from supervised import write_config

from mirage.config import load
from mirage.control.roster.states import LifeState
from mirage.protocol import PROTOCOL_VERSION, Hello
from mirage.serve.device.domain import Domain
from mirage.wire import encode
from vmm.faults import FAULTS

pytestmark = pytest.mark.e2e

NAMES = "abcde"
TENANT = {"share": 40, "start": "on_request", "max_wait_s": 900.0}
QUICK = {"busy_s": 0.0, "busy_worth": 0.0, "patience_s": 0.0, "drain_s": 0.2, "worth": 0.0}


@pytest.fixture(autouse=True)
def _engines_obey(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE", "obeys")
    monkeypatch.setenv("FAKE_REST_S", "1")  # who was killed too often comes again in time


def run(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Decorator for a test that is a coroutine: it runs in an event loop of its own."""

    @wraps(test)
    def ran(*args: Any, **named: Any) -> None:
        asyncio.run(test(*args, **named))

    return ran


class Site(NamedTuple):
    """A device with more tenants than fit, the address of its server, and a client session."""

    domain: Domain
    url: str
    http: aiohttp.ClientSession
    control: Path
    """Socket at which engines say hello."""

    async def ask(self, tenant: str, prompt: str = "pids") -> tuple[int, Any, dict[str, str]]:
        body = {"model": tenant, "prompt": prompt}
        async with self.http.post(f"{self.url}/v1/completions", json=body) as answer:
            return answer.status, await answer.json(), dict(answer.headers)

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.http.get(self.url + path) as answer:
            kind = answer.headers["Content-Type"]
            return answer.status, await (answer.json() if "json" in kind else answer.text())

    @property
    def states(self) -> dict[str, LifeState]:
        return {name: one.state for name, one in self.domain.registry.backends.items()}

    def count(self, state: LifeState) -> int:
        return sum(one is state for one in self.states.values())

    async def until(self, tenant: str, *states: LifeState) -> None:
        async with asyncio.timeout(LIMIT_S):
            while self.states[tenant] not in states:
                await asyncio.sleep(0.01)

    def check(self) -> None:
        attendance = self.domain.attendance
        assert attendance is not None
        attendance.roster.check()
        assert self.domain.free_bytes >= 0


@asynccontextmanager
async def served(folder: Path, names: str = NAMES, **changes: Any) -> AsyncIterator[Site]:
    """Serve five tenants (`names`) of 40 % each while the block runs. `changes` are keys of the
    configuration, and ``own``: further keys of single tenants, by name.
    """
    folder.mkdir(exist_ok=True)
    own = changes.pop("own", {})
    tenants = [
        {"name": name, "model": "model", "max_model_len": 128, **TENANT, **own.get(name, {})}
        for name in names
    ]
    roster = QUICK | changes.pop("roster", {})
    told = {"device": {"memory": "4MiB"}, "tenants": tenants, "roster": roster} | changes
    config = load(write_config(folder, *names, **told))
    async with (
        domain_served(config, all_or_nothing=False) as one,
        aiohttp.ClientSession() as http,
    ):
        yield Site(one.domain, one.url, http, one.sockets / "control.sock")


@run
async def test_requests_decide_who_is_awake(tmp_path: Path) -> None:
    async with served(tmp_path / "s") as site:
        assert set(site.states.values()) == {LifeState.STOPPED}
        assert (await site.get("/health"))[1]["status"] == "ok"
        for name in NAMES:
            status, body, _ = await site.ask(name)
            assert status == 200, body
            site.check()
        assert site.count(LifeState.READY) <= 2 and site.count(LifeState.SLEEPING) >= 2
        first = (await site.ask("a"))[1]
        site.check()
        assert (await site.ask("a"))[1] == first
        listed = (await site.get("/v1/models"))[1]["data"]
        assert [card["id"] for card in listed] == [*NAMES]
        status, health = await site.get("/health")
        assert (status, health["status"]) == (200, "ok")
        assert 'mirage_tenant_up{tenant="b"} 1.0' in (await site.get("/metrics"))[1]


@run
async def test_a_wake_keeps_the_process(tmp_path: Path) -> None:
    async with served(tmp_path / "s", "abc") as site:
        before = (await site.ask("a"))[1]
        await site.ask("b")
        await site.ask("c")
        assert site.states["a"] is LifeState.SLEEPING or site.states["b"] is LifeState.SLEEPING
        assert (await site.ask("a"))[1] == before
        site.check()


@run
async def test_twenty_requests_are_one_start(tmp_path: Path) -> None:
    async with served(tmp_path / "s", "abc") as site:
        answers = await asyncio.gather(*(site.ask("a") for _ in range(20)))
        assert {status for status, *_ in answers} == {200}
        assert len({body["core"] for _, body, _ in answers}) == 1
        attendance = site.domain.attendance
        assert attendance is not None and attendance.roster.members["a"].running == 0


@run
async def test_what_cannot_come_in_time_is_told_when(tmp_path: Path) -> None:
    own = {"a": {"max_waiting": 1}, "b": {"max_wait_s": 0.0}}
    async with served(tmp_path / "s", "abc", own=own) as site:
        status, body, headers = await site.ask("b")
        assert status == 503 and body["error"]["code"] == "model_not_in_time"
        assert int(headers["Retry-After"]) >= 1
        await site.until("b", LifeState.READY)
        assert (await site.ask("b"))[0] == 200
        answers = await asyncio.gather(*(site.ask("a") for _ in range(4)))
        assert sorted(status for status, *_ in answers) == [200, 503, 503, 503]


@run
async def test_nobody_waits_for_an_engine_that_is_given_up_for_longer_than_he_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_ENGINE", "dies:a")
    monkeypatch.setenv("FAKE_REST_S", "1000")
    async with served(tmp_path / "s", "ab") as site:
        asked = site.ask("a"), site.ask("a")
        for status, body, headers in await asyncio.wait_for(asyncio.gather(*asked), LIMIT_S):
            assert (status, body["error"]["code"]) == (503, "model_not_in_time")
            assert int(headers["Retry-After"]) >= 900, "it may wait for so many seconds"
        assert site.states["a"] is LifeState.FAILED
        site.check()


@run
async def test_nobody_waits_for_a_device_that_has_failed(tmp_path: Path) -> None:
    async with served(tmp_path / "s", "ab") as site:
        assert (await site.ask("a"))[0] == 200
        site.domain.device.met("a", FAULTS["CUDA_ERROR_ECC_UNCORRECTABLE"])
        for name in "ba":
            status, body, headers = await site.ask(name)
            assert status == 503 and "the device has failed: " in body["error"]["message"]
            assert int(headers["Retry-After"]) >= 1


@run
async def test_one_that_runs_drains_first(tmp_path: Path) -> None:
    async with served(tmp_path / "s", "abc", roster={"drain_s": 5.0}) as site:
        assert (await site.ask("a"))[0] == (await site.ask("b"))[0] == 200
        running = [asyncio.create_task(site.ask(name, "wait")) for name in "ab"]
        await asyncio.sleep(0.2)
        assert (await site.ask("c"))[0] == 200
        assert {(await task)[0] for task in running} == {200}
        site.check()


@run
async def test_who_is_idle_sleeps_and_then_stops(tmp_path: Path) -> None:
    own = {"a": {"keep_alive": 0.1, "stop_after": 0.3}}
    async with served(tmp_path / "s", "ab", own=own) as site:
        assert (await site.ask("a"))[0] == 200
        await site.until("a", LifeState.SLEEPING)
        await site.until("a", LifeState.STOPPED)
        assert site.domain.free_bytes == 4 << 20
        assert (await site.ask("a"))[0] == 200


@run
async def test_eager_ones_start_as_far_as_they_fit(tmp_path: Path) -> None:
    own = {name: {"start": "eager"} for name in "ab"}
    async with served(tmp_path / "s", "abc", own=own) as site:
        assert site.states["a"] is site.states["b"] is LifeState.READY
        assert site.states["c"] is LifeState.STOPPED


@run
async def test_one_that_dies_in_any_state_comes_again(tmp_path: Path) -> None:
    async with served(tmp_path / "s", "abc") as site:
        pids = (await site.ask("a"))[1]
        os.kill(pids["core"], signal.SIGKILL)
        await site.until("a", LifeState.DOWN, LifeState.STARTING)
        again = (await site.ask("a"))[1]
        assert again["core"] != pids["core"]
        assert site.domain.registry.backends["a"].restarts == 1
        cores = {"a": again["core"]}
        for name in "bc":
            cores[name] = (await site.ask(name))[1]["core"]
        asleep = next(n for n, s in site.states.items() if s is LifeState.SLEEPING)
        os.kill(cores[asleep], signal.SIGKILL)
        await site.until(asleep, LifeState.STOPPED)  # nobody asks for it
        assert (await site.ask(asleep))[0] == 200
        site.check()


@run
async def test_the_socket_of_one_that_sleeps_is_missed_as_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with served(tmp_path / "s", "abc") as site:
        first = {name: (await site.ask(name))[1] for name in "abc"}
        asleep = next(n for n, s in site.states.items() if s is LifeState.SLEEPING)
        site.domain.registry.backends[asleep].socket.unlink()
        await site.until(asleep, LifeState.STOPPED)  # nobody asks for it
        status, body, _ = await site.ask(asleep)
        assert status == 200 and body["core"] != first[asleep]["core"]
        site.check()
    said = f"mirage: {asleep}: its engine cannot be reached (its socket is gone): it is ended"
    assert said in capsys.readouterr().err


@run
async def test_a_start_that_is_taken_back_at_once_is_none(tmp_path: Path) -> None:
    async with served(tmp_path / "s", "ab") as site:
        attendance = site.domain.attendance
        assert attendance is not None
        attendance.wish("a", LifeState.READY)
        attendance.wish("a", LifeState.STOPPED)
        assert site.states["a"] is LifeState.STOPPED
        await asyncio.sleep(0.3)
        assert site.states["a"] is LifeState.STOPPED and not site.domain.managers["a"].starts
        assert (await site.ask("a"))[0] == 200
        attendance.wish("a", LifeState.STOPPED)
        await site.until("a", LifeState.STOPPED)
        assert site.domain.free_bytes == 4 << 20
        attendance.wish("b", LifeState.READY)
        async with asyncio.timeout(LIMIT_S):
            while "b" not in site.domain.registry.reports:  # its engine starts
                await asyncio.sleep(0.002)
        attendance.wish("b", LifeState.STOPPED)
        await site.until("b", LifeState.STOPPED)
        assert (await site.ask("b"))[0] == 200
        site.check()


@run
async def test_an_engine_that_nobody_has_started_is_sent_away(tmp_path: Path) -> None:
    """An engine that this server did not start says hello; it may have been started by a server
    that was killed before recording it. Its connection is closed, and no memory is booked for it.
    """
    async with served(tmp_path / "s", "ab") as site:
        reader, writer = await asyncio.open_unix_connection(str(site.control))
        writer.write(encode(Hello(PROTOCOL_VERSION, "a", os.getpid(), SHAPE, HELD)))
        async with asyncio.timeout(LIMIT_S):
            assert await reader.read() == b""
        writer.close()
        assert site.domain.free_bytes == 4 << 20
        assert (await site.ask("a"))[0] == 200
        site.check()


@run
async def test_policy_static_stops_instead(tmp_path: Path) -> None:
    async with served(tmp_path / "s", "abc", policy="static") as site:
        for name in "abcab":
            assert (await site.ask(name))[0] == 200
            site.check()
        assert site.count(LifeState.SLEEPING) == 0 and site.count(LifeState.STOPPED) >= 1
        assert {b.restarts for b in site.domain.registry.backends.values()} == {0}


@run
async def test_a_client_that_goes_away_is_forgotten(tmp_path: Path) -> None:
    async with served(tmp_path / "s", "abc") as site:
        asked = asyncio.create_task(site.ask("a"))
        await asyncio.sleep(0.05)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        attendance = site.domain.attendance
        assert attendance is not None
        async with asyncio.timeout(LIMIT_S):
            while attendance.roster.members["a"].waiting:
                await asyncio.sleep(0.01)
        site.check()


WISHES = [LifeState.READY, LifeState.SLEEPING, LifeState.STOPPED]


async def _storm(site: Site, rng: Random, operations: int) -> dict[int, int]:
    """Send requests, operators' acts and kills in random order; return the number of answers by
    status.
    """
    asked: list[asyncio.Task[tuple[int, Any, dict[str, str]]]] = []
    attendance = site.domain.attendance
    assert attendance is not None
    for _ in range(operations):
        name, dice = rng.choice(NAMES), rng.random()
        if dice < 0.6:
            prompt = rng.choice(["pids", "pids", "wait"])
            asked += [asyncio.create_task(site.ask(name, prompt)) for _ in range(rng.randint(1, 3))]
        elif dice < 0.8:
            attendance.wish(name, rng.choice(WISHES))
        elif dice < 0.85:
            await _kill_one(site, rng)
        await asyncio.sleep(rng.choice([0.0, 0.01, 0.1, 0.4]))
        site.check()
    statuses: dict[int, int] = {}
    for status, body, _ in await asyncio.wait_for(asyncio.gather(*asked), LIMIT_S * 3):
        statuses[status] = statuses.get(status, 0) + 1
        if status != 200:
            print(status, body["error"]["message"])
    return statuses


async def _kill_one(site: Site, rng: Random) -> None:
    """Kill the core or the API server of a tenant that is ready, if there is one."""
    ready = [name for name, state in site.states.items() if state is LifeState.READY]
    if not ready:
        return
    status, pids, _ = await site.ask(rng.choice(ready))
    if status == 200:
        with suppress(ProcessLookupError):
            os.kill(pids[rng.choice(["core", "server"])], signal.SIGKILL)


@pytest.mark.parametrize("operations", [60, pytest.param(300, marks=pytest.mark.slow)])
@run
async def test_any_operations_in_any_order_leave_true_books(
    tmp_path: Path, operations: int
) -> None:
    seed = int(os.environ.get("MIRAGE_TEST_SEED") or time.time())
    print(f"seed {seed}")
    async with served(tmp_path / "s") as site:
        statuses = await _storm(site, Random(seed), operations)
        assert set(statuses) <= {200, 502, 503}, statuses
        assert statuses[200] >= 0.6 * sum(statuses.values()), statuses
        attendance = site.domain.attendance
        assert attendance is not None
        for name in NAMES:
            status, body, _ = await site.ask(name)
            assert status == 200, body
        site.check()
        members = attendance.roster.members.values()
        counts = lambda: [(m.running, m.inside, len(m.waiting)) for m in members]  # noqa: E731
        async with asyncio.timeout(LIMIT_S):  # the end of a request is heard after its answer
            while counts() != [(0, 0, 0)] * len(NAMES):
                await asyncio.sleep(0.01)
        assert {m.name: m.state for m in members} == site.states
        reports = site.domain.registry.reports
        held = sum(report.held_bytes for report in reports.values())
        assert held <= 4 << 20


@run
async def test_a_request_that_outlives_its_engine_counts_for_no_other(tmp_path: Path) -> None:
    async with served(tmp_path / "s", "ab") as site:
        attendance = site.domain.attendance
        assert attendance is not None
        pids = (await site.ask("a"))[1]
        old = attendance.ask("a")
        os.kill(pids["core"], signal.SIGKILL)
        await site.until("a", LifeState.STOPPED, LifeState.DOWN, LifeState.STARTING)
        assert (await site.ask("a"))[0] == 200
        new = attendance.ask("a")
        old.over()
        async with asyncio.timeout(LIMIT_S):
            while attendance.roster.members["a"].running != 1:  # the router tells what has ended
                await asyncio.sleep(0.01)
        new.over()
        assert attendance.roster.members["a"].running == 0


@run
async def test_who_gives_up_waiting_leaves_the_others_their_time(tmp_path: Path) -> None:
    async with served(tmp_path / "s", "ab") as site:
        attendance = site.domain.attendance
        assert attendance is not None
        first, second = attendance.ask("a"), attendance.ask("a")
        came = attendance.roster.members["a"].waiting[1]
        first.over()
        assert list(attendance.roster.members["a"].waiting) == [came]
        second.over()
