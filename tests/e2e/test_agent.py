"""An engine's agent and the real control server in a process of its own: does it live?

The server's decisions can be made slow, and the server stopped, continued and killed.
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

import pytest

from mirage.control.growth_hold import LONGEST_S, SILENT_S, GrowthHold
from mirage.engine.agent import Agent
from mirage.engine.mailbox import Mailbox
from mirage.protocol import (
    PROTOCOL_VERSION,
    Alive,
    CoreFailed,
    FromEngine,
    Hello,
    ModelShape,
    Pulse,
    Refusal,
    Report,
)
from mirage.wire import Channel
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
from mirage.serve.control import ControlServer, Unkept
from mirage.serve.registry import TenantServer, Registry

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
    """An engine's agent, what it was told, and the hold that listens to it."""
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
    """Seconds that it took."""
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
    """The thread that reads moves the memory of an idle engine; a bug of ours blames nobody."""
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
