"""An engine's agent finds out if its control server, a real one in another process, lives.

The server's decisions can be slow, and the server is stopped, continued and killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path

import msgspec
import pytest

from mirage.control.growth_hold import LONGEST_S, SILENT_S, GrowthHold
from mirage.engine.agent import Agent
from mirage.engine.mailbox import Mailbox
from mirage.protocol import (
    PROTOCOL_VERSION,
    Alive,
    Allotment,
    CoreFailed,
    EngineHoldings,
    EngineLease,
    FromEngine,
    Hello,
    ModelShape,
    Pulse,
    Refusal,
    Report,
)
from mirage.wire import Broken, Channel
from vmm.driver import DeviceError, DeviceLost

pytestmark = pytest.mark.e2e

PAGE = 65536
SHAPE = ModelShape(4, PAGE, PAGE, PAGE, 1, 16, 40, 4, 4)
REPORT = Report(0, True, 4 * PAGE, 0, 1, 4, 4, growth_extents=5, running=1)
HOLD_S = 0.2
LATE_S = 1.5

SERVER = f"""
import asyncio, sys, time
from pathlib import Path
from mirage.config import Policy
from mirage.protocol import Refusal
from mirage.serve.device.control_server import ControlServer, Unkept
from mirage.serve.registry.registry import TenantServer, Registry

class Slow:
    asked = False
    def joined(self, hello, now): pass
    def lost(self, tenant, now): pass
    def next_deadline(self, now): return None
    def reported(self, tenant, report, now): self.asked = True
    def decide(self, now):
        if not self.asked:
            return []
        self.asked = False
        time.sleep({LATE_S})  # nothing else of this process runs meanwhile
        return [("a", Refusal(0))]

async def main():
    folder = Path(sys.argv[1])
    registry = Registry(Policy.MIRAGE, 1 << 30, {{"a": TenantServer("a", folder / "a", 128)}})
    await ControlServer(Slow(), registry, Unkept()).start(folder / "control.sock")
    print("up", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    yield process
    process.kill()
    process.wait()


@contextlib.contextmanager
def connected(folder: Path) -> Iterator[tuple[Agent, list[Refusal], GrowthHold]]:
    """An engine's agent at a control server, the refusals that it has heard, and the `GrowthHold`
    that asks whether the server is alive.
    """
    told: list[Refusal] = []
    mailbox = Mailbox()
    mailbox.read_by(lambda message: None if message == Alive() else told.append(message))  # type: ignore[arg-type]
    agent = Agent(str(folder / "control.sock"), mailbox)
    agent.start(Hello(PROTOCOL_VERSION, "a", os.getpid(), SHAPE, 4 * PAGE), lambda: Pulse(0, 0))
    try:
        until(lambda: time.monotonic() - agent.heard < SILENT_S)
        yield agent, told, GrowthHold(HOLD_S, time.monotonic, lambda: agent.heard)
    finally:
        agent.close()


def lacks(hold: GrowthHold) -> None:
    hold.begin_step()
    hold.lacks(1, 0)
    hold.end_step()


def until(holds: Callable[[], object], timeout_s: float = 60) -> float:
    """Wait until a condition holds; return the seconds that this took."""
    since = time.monotonic()
    while not holds():
        assert time.monotonic() - since < timeout_s
        time.sleep(0.01)
    return time.monotonic() - since


def test_a_server_that_is_late_is_waited_for(tmp_path: Path, server: subprocess.Popen[str]) -> None:
    with connected(tmp_path) as (agent, told, hold):
        lacks(hold)
        agent.send(REPORT)
        since = time.monotonic()
        while not told:
            assert hold.may_hold()
            time.sleep(0.01)
        assert time.monotonic() - since > LATE_S > HOLD_S
        assert told == [Refusal(0)]


def test_a_server_that_was_stopped_holds_nobody(
    tmp_path: Path, server: subprocess.Popen[str]
) -> None:
    with connected(tmp_path) as (agent, told, hold):
        server.send_signal(signal.SIGSTOP)
        lacks(hold)
        agent.send(REPORT)
        assert until(lambda: not hold.may_hold()) < LONGEST_S, "silence alone ends it"
        lacks(hold)
        assert not hold.may_hold() and not told
        server.send_signal(signal.SIGCONT)
        until(hold.may_hold)


def test_a_connection_that_is_closed_holds_nobody(
    tmp_path: Path, server: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[tuple[int, int]] = []
    kill = os.kill
    monkeypatch.setattr(os, "kill", lambda *what: ended.append(what))
    with connected(tmp_path) as (agent, _, hold):
        lacks(hold)
        agent.send(REPORT)
        kill(server.pid, signal.SIGKILL)
        server.wait()
        until(lambda: ended)
        assert agent.heard == -inf, "it counts as silent at once"
        until(lambda: not hold.may_hold())
    assert ended == [(os.getpid(), signal.SIGTERM)], "an engine without a server has no use"


def test_an_unfinished_engine_goes_on_and_hears_first_what_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "kill", lambda *what: None)
    handled: list[object] = []
    mailbox = Mailbox()
    mailbox.read_by(handled.append)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        listening.listen()
        agent = Agent(str(tmp_path / "socket"), mailbox)
        hello = Hello(PROTOCOL_VERSION, "a", 7, SHAPE, 0)
        agent.start(hello, lambda: Pulse(0, 0), lambda: handled.count(Alive()) < 3)
        server, _ = listening.accept()
        channel: Channel[FromEngine] = Channel(server, FromEngine)
        with contextlib.closing(channel):
            channel.say(Refusal(1), Refusal(2))
            until(lambda: len(handled) == 5)
            channel.say(Refusal(3))
            until(lambda: len(handled) == 6)
            agent.close()
    assert handled == [Refusal(1), Refusal(2), Alive(), Alive(), Alive(), Refusal(3)]


class Door:
    """The server's end of the control socket, which the test opens and closes. It waits for a
    connection for up to `patience_s` seconds.
    """

    def __init__(self, folder: Path, patience_s: float = 60) -> None:
        path = folder / "socket"
        path.unlink(missing_ok=True)
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen()
        self._listening.settimeout(patience_s)
        self.channel: Channel[FromEngine]

    def admit(self) -> FromEngine:
        """Accept a connection, and return its first message."""
        self.channel = Channel(self._listening.accept()[0], FromEngine)
        return self.channel.wait()[0]

    def dies(self) -> None:
        self.channel.close()
        self.close()

    def close(self) -> None:
        self._listening.close()


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """List of events of the engine for which this process stands. The signal that would end the
    engine is noted as an event and not sent.
    """
    happened: list[str] = []
    monkeypatch.setattr(os, "kill", lambda *what: happened.append("ends"))
    monkeypatch.setattr("mirage.engine.agent.LEASE_MARGIN_S", 0.5)
    return happened


@contextlib.contextmanager
def leased(folder: Path, ended: list[str], *, served: bool = True) -> Iterator[Agent]:
    """Agent of an engine with a lease of two seconds, just after its server has died. `served` says
    if the engine wants another server.
    """
    mailbox = Mailbox()
    mailbox.read_by(lambda message: None)
    door = Door(folder)
    agent = Agent(str(folder / "socket"), mailbox)
    report = msgspec.structs.replace(REPORT, revision=3)
    hello = Hello(PROTOCOL_VERSION, "a", 7, SHAPE, 4 * PAGE)
    holdings = EngineHoldings(Allotment(3, 0, 0, 4, 4 * PAGE), report)

    def again() -> Hello | None:
        assert mailbox.is_held
        ended.append("again")
        return msgspec.structs.replace(hello, holdings=holdings) if served else None

    pulse, alone = (lambda: Pulse(0, 0)), (lambda: ended.append("alone"))
    agent.start(hello, pulse, alone=alone, again=again)
    try:
        assert door.admit() == hello
        door.channel.say(EngineLease(2.0))
        until(lambda: agent.heard > -inf)
        door.dies()
        yield agent
    finally:
        agent.close()


def test_an_engine_goes_on_and_says_hello_to_the_next_server_with_what_it_holds(
    tmp_path: Path, ended: list[str]
) -> None:
    with leased(tmp_path, ended) as agent:
        until(lambda: ended == ["alone"])
        assert agent.heard == -inf
        agent.send(REPORT)  # nobody hears it
        for _ in range(2):
            door = Door(tmp_path)
            first = door.admit()
            assert isinstance(first, Hello) and first.holdings is not None
            assert first.holdings.allotment.revision == 3
            agent.send(msgspec.structs.replace(REPORT, revision=4))
            while not isinstance(message := door.channel.wait()[0], Report):
                assert isinstance(message, Pulse)
            assert message.revision == 4, "reports from before are of no use to another server"
            door.channel.say(EngineLease(2.0))
            until(lambda: agent.heard > -inf)
            door.dies()
        until(lambda: ended.count("alone") == 3)
        assert ended.count("again") == 2 and "ends" not in ended


def test_an_engine_ends_with_its_lease(tmp_path: Path, ended: list[str]) -> None:
    with leased(tmp_path, ended):
        until(lambda: ended == ["alone", "ends"])


def test_servers_that_send_an_engine_away_do_not_prolong_its_lease(
    tmp_path: Path, ended: list[str]
) -> None:
    with leased(tmp_path, ended):
        door = Door(tmp_path, patience_s=1)  # nobody connects any more when the engine has ended
        while "ends" not in ended:
            with contextlib.suppress(TimeoutError, Broken):
                door.admit()
                door.channel.close()
        assert ended.count("alone") == 1 and ended.count("again") > 1


def test_an_engine_that_has_not_served_ends_when_there_is_another_server(
    tmp_path: Path, ended: list[str]
) -> None:
    with leased(tmp_path, ended, served=False):
        door = Door(tmp_path)
        until(lambda: ended == ["alone", "again", "ends"])
        door.close()


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (DeviceLost("cuMemUnmap(1, 2): CUDA_ERROR_ILLEGAL_ADDRESS"), "CUDA_ERROR_ILLEGAL_ADDRESS"),
        (DeviceError("cuMemMap(1): CUDA_ERROR_NO_DEVICE, none"), "CUDA_ERROR_NO_DEVICE"),
        (RuntimeError("a bug of ours"), None),
    ],
)
def test_a_message_that_meets_a_fault_of_the_gpu_ends_the_engine_by_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, fault: str | None
) -> None:
    """The thread that reads messages also moves memory of an idle engine. An error there ends the
    engine; it is reported to the server as a fault of the GPU only if it is one.
    """
    ended: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *what: ended.append(what))
    mailbox = Mailbox()

    def fails(message: object) -> None:
        raise error

    mailbox.read_by(fails)  # type: ignore[arg-type]
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        listening.listen()
        agent = Agent(str(tmp_path / "socket"), mailbox)
        agent.start(Hello(PROTOCOL_VERSION, "a", 7, SHAPE, 0), lambda: Pulse(0, 0))
        server, _ = listening.accept()
        channel: Channel[FromEngine] = Channel(server, FromEngine)
        with contextlib.closing(channel):
            channel.say(Refusal(1))
            heard = list(channel.until_end())
    until(lambda: ended)
    said = [message.fault for message in heard if isinstance(message, CoreFailed)]
    assert said == ([] if fault is None else [fault])
    assert ended == [(os.getpid(), signal.SIGTERM)]
