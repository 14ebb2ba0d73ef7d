"""Peers' memory above the host pool, between processes: shared, revoked, holders killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from supervised import WITH_FAKES, serving, write_config
from test_tier_pool import BLOCK, Process, eventually

from mirage.config import load
from mirage.serve.device.tiers import TierPool
from mirage.serve.routed.resizing import Resize
from mirage.tiers.core import Core
from mirage.tiers.counts import PeersState
from mirage.tiers.ledger import Due
from mirage.tiers.lending.lenders import Lenders
from mirage.tiers.peer_backing import PeerPlan
from mirage.tiers.server import PoolServer
from tests.vmm.libcuda import lending

pytestmark = pytest.mark.e2e

LEND = 4 * BLOCK
DEVICE = 64 * BLOCK
HANG_S = 5
Start = Callable[[str], Process]
WAYS = {"backed": (True, False), "lossy": (False, False)}
LENT = {"backed-gpu": (True, True), "lossy-gpu": (False, True)}
"""As `WAYS`, but the peer lends memory of a GPU, through the stand-in for libcuda."""


@pytest.fixture(params=WAYS | LENT)
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[PoolServer]:
    backed, gpu = (WAYS | LENT)[request.param]
    granule = BLOCK if gpu else 0
    core = Core(8 * BLOCK, peers=PeerPlan({"gpu1": LEND}, backed=backed, granule=granule))
    lenders = None
    if gpu:
        if find_spec("cuda.bindings.driver") is None:
            pytest.skip("cuda-python is not installed")
        (tmp_path / "device").touch()
        words = lending.program(tmp_path / "device", DEVICE, BLOCK)
        lenders = Lenders({"gpu1": 1}, lambda name: tmp_path / f"{name}.sock", words)
    pace = None if gpu else 1e9
    made = PoolServer(tmp_path / "tiers.sock", core, dict.fromkeys("ab", Due()), pace, lenders)
    made.start()
    yield made
    made.stop()
    assert not list(tmp_path.glob("*.sock"))


@pytest.fixture
def start(tmp_path: Path, server: PoolServer) -> Iterator[Start]:
    begun: list[Process] = []
    device = tmp_path / "device"
    more = [str(device), str(DEVICE)] if device.exists() else []

    def start(tenant: str) -> Process:
        begun.append(Process(tmp_path / "tiers.sock", tenant, more))
        return begun[-1]

    yield start
    for process in begun:
        process.kill()


def peers(server: PoolServer) -> PeersState:
    state = server.state().peers
    assert state is not None
    return state


def lent(server: PoolServer) -> int:
    return peers(server).devices["gpu1"].held_bytes


def test_what_a_peer_wants_back_is_in_host_memory_or_gone(start: Start, server: PoolServer) -> None:
    a, b = start("a"), start("b")
    assert a("store(1, 2)") == [1, 2]
    assert b("hold('r', 1)") == {1: "ready"}
    eventually(lambda: lent(server) == 2 * BLOCK)
    server.resize_peer("gpu1", 0).result()
    eventually(lambda: lent(server) == BLOCK)  # what b needs is still there
    assert b("hold('r', 1)") == {1: "ready"}
    assert b("pool.leave('r')") is None
    eventually(lambda: lent(server) == 0)
    found = "ready" if peers(server).backed else "absent"
    assert b("reads(1, 2)") == {1: found, 2: found}
    server.resize_peer("gpu1", LEND).result()
    assert a("store(3)") == [3]
    assert b("reads(3)") == {3: "ready"}
    eventually(lambda: lent(server) == BLOCK)


def test_a_killed_holder_keeps_the_peer_until_its_processes_have_ended(
    start: Start, server: PoolServer
) -> None:
    a, b = start("a"), start("b")
    assert a("store(1)") == [1]
    assert a("half(2)") == [2]
    assert a("hold('r', 1)") == {1: "ready"}
    a.popen.send_signal(signal.SIGKILL)
    eventually(lambda: b("reads(2)") == {2: "absent"})
    server.resize_peer("gpu1", 0).result()
    # A copy of its own may still be on its way to both places.
    eventually(lambda: peers(server).devices["gpu1"].owed_bytes == 2 * BLOCK)
    server.dead("a").result()
    eventually(lambda: lent(server) == 0)
    assert b("reads(2)") == {2: "absent"}
    assert b("reads(1)") == {1: "ready" if peers(server).backed else "absent"}


@pytest.mark.parametrize("server", LENT, indirect=True)
def test_a_killed_holders_blocks_are_misses(
    start: Start, server: PoolServer, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = start("a"), start("b")
    assert a("store(1, 2)") == [1, 2]
    assert b("hold('r', 1)") == {1: "ready"}
    eventually(lambda: lent(server) == 2 * BLOCK)
    lenders = server._acting._lenders
    assert lenders is not None
    os.kill(lenders.pids()["gpu1"], signal.SIGKILL)
    eventually(lambda: peers(server).devices["gpu1"].budget_bytes == 0)
    assert b("reads(2)") == {2: "absent"}
    assert b("reads(1)") == {1: "absent"}, "no further request finds what one still needs"
    assert lent(server) == BLOCK
    assert b("pool.leave('r')") is None
    eventually(lambda: lent(server) == 0)
    assert a("store(1, 2)") == [1, 2], "in host memory"
    assert b("reads(1, 2)") == {1: "ready", 2: "ready"}
    with pytest.raises(ValueError, match="its holder has ended"):
        server.resize_peer("gpu1", LEND).result()
    assert [r for r in caplog.records if "is lost" in r.message][1:] == []


@pytest.mark.parametrize("moves", [False, True])
def test_a_frozen_holder_is_ended_and_engines_go_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    moves: bool,
) -> None:
    """The process that holds a peer's memory is stopped. It is ended; its blocks are lost, also
    those that it was told to copy to host memory (`moves`), and engines go on.
    """
    pytest.importorskip("cuda.bindings.driver", reason="cuda-python is not installed")
    (device := tmp_path / "device").touch()
    words = lending.program(device, DEVICE, BLOCK)
    lenders = Lenders({"gpu1": 1}, lambda name: tmp_path / f"{name}.sock", words)
    monkeypatch.setattr("mirage.serve.device.tiers.lenders_of", lambda peer, socket: lenders)
    monkeypatch.setattr("mirage.serve.device.tiers.granule_of", lambda peer: BLOCK)
    peer = {"devices": {"gpu1": LEND}, "backed": False}
    tiers = {"host": {"bytes": 8 * BLOCK}, "peer": peer}
    config = load(write_config(tmp_path, "a", "b", tiers=tiers, hang_s=HANG_S))
    pool, begun = TierPool(config, tmp_path / "tiers.sock"), list[Process]()
    pool.start()
    try:
        for tenant in ("a", "b"):
            more = [str(device), str(DEVICE)]
            begun.append(Process(tmp_path / "tiers.sock", tenant, more))
        a, b = begun
        assert a("store(1, 2)") == [1, 2]
        assert b("reads(1)") == {1: "ready"}
        os.kill(lenders.pids()["gpu1"], signal.SIGSTOP)
        if moves:
            asyncio.run(pool.resize(Resize(peer={"gpu1": 0})))

        def budget() -> int:
            state = pool.state()
            assert state is not None and state.peers is not None
            return state.peers.devices["gpu1"].budget_bytes

        def lost() -> bool:
            for process in (a, b):  # what they have taken is theirs meanwhile
                assert process("reads(1)")[1] in ("ready", "gone", "absent")
            return any("is lost" in record.message for record in caplog.records)

        eventually(lost)
        eventually(lambda: budget() == 0)
        assert b("reads(1, 2)") == {1: "absent", 2: "absent"}
        assert a("store(1, 2)") == [1, 2], "in host memory"
        assert b("reads(1, 2)") == {1: "ready", 2: "ready"}
    finally:
        for process in begun:
            process.kill()
        asyncio.run(pool.stop())
    assert not list(tmp_path.glob("*.sock"))


TIERS: dict[str, Any] = {
    "host": {"bytes": 8 * BLOCK},
    "peer": {"devices": {"gpu1": LEND, "gpu2": LEND}, "link_gb_s": 20},
}


def test_budgets_change_over_http(tmp_path: Path) -> None:
    assert WITH_FAKES
    with serving(write_config(tmp_path, "a", tiers=TIERS)) as served:

        def change(body: Any) -> tuple[int, Any]:
            status, answer = served.request("POST", "/mirage/tiers", body)
            return status, answer

        def pool() -> dict[str, Any]:
            told: dict[str, Any] = served.request("GET", "/mirage/state")[1]["host_pool"]
            return told

        def lends() -> list[int]:
            return [device["budget_bytes"] for device in pool()["peers"]["devices"].values()]

        assert lends() == [LEND, LEND]
        assert change({"peer": {"gpu2": 0}, "host": "64KiB"})[0] == 200
        served.until("it is heard", lambda: lends() == [LEND, 0])
        served.until("and that of host memory", lambda: pool()["budget_bytes"] == BLOCK)
        assert change({"peer": {"gpu2": LEND}})[0] == 200
        served.until("it lends again", lambda: lends() == [LEND, LEND])
        for body, words in (
            ({"peer": {"gpu3": 0}}, "no peer is named 'gpu3': there is 'gpu1', 'gpu2'"),
            ({"peer": {"gpu1": 2 * LEND}}, "it has 262144"),
            ({"host": "9MiB"}, "the pool was made for"),
            ({"host": "much"}, "host: "),
            ({"ssd": 1}, "unknown key 'ssd'"),
            ({"peer": {"gpu1": -1}}, "peer.gpu1: "),
            ([], "the body: found [], write keys with values"),
        ):
            status, answer = change(body)
            assert (status, words in answer["error"]["message"]) == (400, True), answer
        assert lends() == [LEND, LEND]


def test_without_tiers_nothing_can_be_changed(tmp_path: Path) -> None:
    with serving(write_config(tmp_path, "a")) as served:
        status, answer = served.request("POST", "/mirage/tiers", {"host": 0})
        assert (status, "no tiers are configured" in answer["error"]["message"]) == (400, True)
