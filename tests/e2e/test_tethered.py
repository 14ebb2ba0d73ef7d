"""A device server that is nobody's child: agents come and go while it serves; its lease ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import psutil
import pytest
from supervised import HERE, assert_gone
from tethered import PROGRAM, ask, environment, family, log_of, order, ready, until

from mirage.machines.agent import AgentOrder, OutsideAgent
from mirage.machines.outside import TetherClient
from mirage.machines.seam import DeviceCall, MachineAway, ServerCannot, StaleEpoch
from mirage.machines.tether_messages import TetherTold
from mirage.processes.marks import mark_of

pytestmark = pytest.mark.e2e

LEASE_S = 4.0


class Tethered:
    """The folder of one device, which has no agent at first."""

    def __init__(self, folder: Path, short: Path) -> None:
        self.folder, self.short = folder / "left", short
        self.order = folder / "agent-order.json"
        given = order(folder, "left", "a", lease_s=LEASE_S)
        self.order.write_bytes(msgspec.json.encode(given))
        self.client = TetherClient(self.folder / "s.sock")

    @contextmanager
    def agent(self, *words: Path) -> Iterator[subprocess.Popen[bytes]]:
        """Run an agent of the device while the block runs; it is killed at the end."""
        script = [sys.executable, str(HERE / "agent_alone.py"), str(self.folder), *map(str, words)]
        process = subprocess.Popen(script, env={**os.environ, **environment(self.short)})
        try:
            yield process
        except BaseException:
            print(log_of(self.folder))
            raise
        finally:
            process.kill()
            process.wait()

    def told(self) -> TetherTold | None:
        """State of the device server, as it answers a renewal of its lease by 0 s; None if no
        server answers.
        """
        try:
            return self.client.renew(0.0)
        except MachineAway:
            return None

    def ready(self) -> TetherTold:
        """Answer of the device server, once it is ready."""
        told: TetherTold = until(lambda: ready(self.told()), "it is ready")
        return told


@pytest.mark.slow
def test_agents_come_and_go_and_the_server_stays(tmp_path: Path, short: Path) -> None:
    device = Tethered(tmp_path, short)
    with device.agent(device.order) as first:
        before = device.ready()
        assert psutil.Process(before.pid).ppid() != first.pid
        status, pids = ask(before.url, "a")
        assert status == 200, pids
        assert ask(before.url, "a", secret="another secret")[0] == 401
        with pytest.raises(StaleEpoch):
            device.client.call(0, DeviceCall("GET", "/tenants"))
        assert device.client.call(3, DeviceCall("GET", "/tenants")).status == 200
        with pytest.raises(StaleEpoch):
            device.client.end(2)
        words = [sys.executable, *PROGRAM, str(device.folder / "order.json")]
        second = subprocess.run(
            [*words, str(device.folder / "s.sock"), "1", "60"],
            env={**os.environ, **environment(short)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert second.returncode == 2, second.stderr
        assert "another process serves this device" in second.stderr
    with device.agent():
        until(lambda: (told := device.told()) and told.left_s > LEASE_S - 1, "it is adopted")
        assert ask(before.url, "a") == (200, pids)
        assert device.ready().pid == before.pid

        psutil.Process(before.pid).send_signal(signal.SIGKILL)
        after = until(
            lambda: (told := ready(device.told())) and told.pid != before.pid and told,
            "another server is ready",
        )
        assert after.url == before.url, "its router went on"
        assert ask(after.url, "a") == (200, pids), "its engines went on"

        psutil.Process(after.pid).send_signal(signal.SIGSTOP)
        third = until(
            lambda: (told := ready(device.told())) and told.pid != after.pid and told,
            "another server is ready",
        )
        assert ask(third.url, "a") == (200, pids), "its engines went on"
        left = family(third, "a")
    assert ask(third.url, "a") == (200, pids), "it serves without an agent"
    assert_gone(left)
    assert "the lease of this device server is over" in log_of(device.folder)
    assert not device.client.pid()
    assert not list(short.iterdir())


def test_an_agent_knows_the_line_with_which_its_server_refuses(tmp_path: Path) -> None:
    agent = OutsideAgent(tmp_path / "left")
    (tmp_path / "left" / "server.log").write_text("mirage: error: an older line\n")
    call = DeviceCall("GET", "/tenants")

    def said() -> str:
        try:
            agent.call(1, call)
        except ServerCannot as error:
            return str(error)
        except MachineAway:
            return ""
        raise AssertionError("a server answers")

    agent.obeys(AgentOrder(1, LEASE_S, 5.0, ("-c", "pass"), b"{}"))
    assert not said(), "it says nothing"
    refuses = "import sys; sys.exit('mirage: error: no model folder')"
    agent.obeys(AgentOrder(1, LEASE_S, 5.0, ("-c", refuses), b"{}"))
    assert until(said, "it is known") == "no model folder"
    (tmp_path / "left" / "server.log").unlink()
    until(lambda: not said(), "its log was deleted")
    assert until(said, "it was started again") == "no model folder"
    agent.obeys(AgentOrder(1, LEASE_S, 5.0, ("-c", "pass"), b"{}"))
    assert not said(), "another order may be obeyed"
    agent.end(1)


def test_a_server_that_never_listens_is_killed_before_another_one_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mirage.machines.agent.IMPORT_S", 2.0)
    pids = tmp_path / "pids"
    silent = f"import os, time; print(os.getpid(), file=open({str(pids)!r}, 'a')); time.sleep(600)"
    agent = OutsideAgent(tmp_path / "left")
    agent.obeys(AgentOrder(1, LEASE_S, 5.0, ("-c", silent), b"{}"))

    def lines() -> list[int]:
        return [int(line) for line in pids.read_text().splitlines()] if pids.exists() else []

    try:
        until(lambda: len(lines()) >= 2, "another one was started")
        assert mark_of(lines()[0]) is None
    finally:
        agent.end(1)
        for pid in lines():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
