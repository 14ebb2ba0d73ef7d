"""Two devices in one process: events on one of them do not affect the other."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from domain_served import LIMIT_S, domain_served
from supervised import write_config
from warm import adopting

from mirage.config import load
from mirage.control.roster.states import LifeState
from mirage.serve.device.domain import Domain
from mirage.tiers.client import PoolClient
from mirage.tiers.contract import Key, Lookup, Member
from mirage.units import MIB
from vmm.faults import FAULTS

pytestmark = pytest.mark.e2e

BLOCK = 65536
TIERS = {"host": {"bytes": 8 * BLOCK}}


class Side(NamedTuple):
    """One of two devices: its `Domain`, its folder of sockets, and its address."""

    domain: Domain
    sockets: Path
    url: str

    async def pids(self, tenant: str) -> Any:
        """Process ids of an engine's API server and core."""
        body = {"model": tenant, "prompt": "pids"}
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{self.url}/v1/completions", json=body) as answer,
        ):
            assert answer.status == 200, await answer.text()
            return await answer.json()

    def told(self) -> dict[str, Any]:
        return self.domain.registry.state()

    def states(self) -> dict[str, tuple[LifeState, int]]:
        """State and number of restarts of each tenant."""
        backends = self.domain.registry.backends
        return {name: (tenant.state, tenant.restarts) for name, tenant in backends.items()}


@pytest.fixture(autouse=True)
def _fakes_do_as_they_should(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE", "")


@asynccontextmanager
async def served(folder: Path, *names: str, memory: str, **changes: Any) -> AsyncIterator[Side]:
    """Serve a device with tenants `names` while the block runs; all are ready at its begin. The
    engines end with it, whatever happens.
    """
    folder.mkdir()
    config = load(write_config(folder, *names, device={"memory": memory}, **changes))
    async with domain_served(config, all_or_nothing=True) as one:
        yield Side(one.domain, one.sockets, one.url)


@asynccontextmanager
async def both(folder: Path) -> AsyncIterator[tuple[Side, Side]]:
    """Two devices with tenants of the same names, the second one twice as large."""
    async with (
        served(folder / "1", "a", "b", memory="64MiB", tiers=TIERS) as one,
        served(folder / "2", "a", "b", memory="128MiB", tiers=TIERS) as two,
    ):
        yield one, two


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not holds():
            await asyncio.sleep(0.02)


def run(scenario: Any) -> None:
    with adopting():
        asyncio.run(scenario)


def test_one_that_is_stopped_before_its_process_is_there_does_not_serve(tmp_path: Path) -> None:
    """A tenant is stopped while the fork of its engine still begins, which takes seconds on a busy
    machine. The process ends as soon as it is there.
    """

    async def scenario() -> None:
        async with served(tmp_path / "1", "a", memory="64MiB") as one:
            manager = one.domain.managers["a"]
            begins, begun = manager._engine._start, []

            def slowly(*words: Any) -> Any:
                time.sleep(1.0)
                begun.append(begins(*words))
                return begun[-1]

            manager._engine._start = slowly
            os.kill((await one.pids("a"))["core"], signal.SIGKILL)
            await until(lambda: manager._run.begins)
            manager.stops()
            # Its share goes on calling: the process after this one may serve.
            await until(lambda: begun and begun[0].poll() is not None)

    run(scenario())


@pytest.mark.slow
def test_each_has_its_sockets_its_ledger_its_registry_and_its_pool(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with both(tmp_path) as (one, two):
            mine, others = set(one.sockets.glob("*.sock")), set(two.sockets.glob("*.sock"))
            # control, keeper, tiers, router, inner, a, b
            assert len(mine) == len(others) == 7 and not mine & others
            pids = [await side.pids(name) for side in (one, two) for name in ("a", "b")]
            assert len({pid for told in pids for pid in told.values()}) == 8
            assert one.told()["device_bytes"] == 64 * MIB
            assert two.told()["device_bytes"] == 128 * MIB
            for side, device in ((one, 64 * MIB), (two, 128 * MIB)):
                # What both engines were allotted when they came; never more than its own device.
                await until(lambda side=side, device=device: side.domain.free_bytes < device)
                assert side.domain.free_bytes > device - 64 * MIB
            await asyncio.to_thread(pools_differ, one.sockets, two.sockets)
            await until(lambda: one.told()["host_pool"]["blocks"] == 1)
            assert two.told()["host_pool"]["blocks"] == 0

    run(scenario())


@pytest.mark.slow
def test_an_engine_that_ends_ends_on_its_device_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with both(tmp_path) as (one, two):
            before = [await two.pids(name) for name in ("a", "b")]
            booked = two.domain.free_bytes
            first = await one.pids("a")
            os.kill(first["core"], signal.SIGKILL)
            await until(lambda: one.states()["a"] == (LifeState.READY, 1))
            assert (await one.pids("a"))["core"] != first["core"]
            assert [await two.pids(name) for name in ("a", "b")] == before
            assert set(two.states().values()) == {(LifeState.READY, 0)}
            assert two.domain.free_bytes == booked

    run(scenario())


@pytest.mark.slow
def test_a_device_that_fails_takes_its_engines_and_no_others(tmp_path: Path) -> None:
    fault = FAULTS["CUDA_ERROR_ECC_UNCORRECTABLE"]

    async def scenario() -> None:
        async with both(tmp_path) as (one, two):
            before = [await two.pids(name) for name in ("a", "b")]
            one.domain.device.met("a", fault)
            await until(lambda: {state for state, _ in one.states().values()} == {"failed"})
            assert one.told()["device"]["status"] == "failed"
            assert two.told()["device"]["status"] == "ok"
            assert [await two.pids(name) for name in ("a", "b")] == before

    run(scenario())


def pools_differ(one: Path, two: Path) -> None:
    """Check that the devices have pools of their own: a block stored in one is
    absent in the other.
    """
    key, member = Key(b"k"), Member("a", b"w", BLOCK)
    with (
        closing(PoolClient(one / "tiers.sock", member, answer_s=10)) as here,
        closing(PoolClient(two / "tiers.sock", member, answer_s=10)) as there,
    ):
        here.reserve([key])
        here.commit([key])
        for client in (here, there):
            client.seek("r", [key])
        assert answer(here, key) is Lookup.READY
        assert answer(there, key) is Lookup.ABSENT


def answer(client: PoolClient, key: Key) -> Lookup:
    while (found := client.found("r", key)) is Lookup.UNKNOWN:
        time.sleep(0.01)
    return found


@pytest.mark.slow
def test_one_stops_and_leaves_nothing_and_the_other_serves_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(tmp_path / "2", "a", "b", memory="128MiB") as two:
            async with served(tmp_path / "1", "a", "b", memory="64MiB") as one:
                gone = [pid for name in ("a", "b") for pid in (await one.pids(name)).values()]
                before = [await two.pids(name) for name in ("a", "b")]
                sockets = one.sockets
            assert not any(Path(f"/proc/{pid}").exists() for pid in gone)
            assert not sockets.exists()
            assert [await two.pids(name) for name in ("a", "b")] == before

    run(scenario())
