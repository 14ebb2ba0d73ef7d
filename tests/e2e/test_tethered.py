"""A device server that is nobody's child: agents come and go, and it serves; its lease ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil
import pytest
from supervised import HERE, assert_gone
from tethered import PROGRAM, ask, environment, family, log_of, order, ready, until

from mirage.machines.outside import TetherClient
from mirage.machines.seam import DeviceCall, MachineAway, StaleEpoch
from mirage.machines.tether_messages import TetherTold

pytestmark = pytest.mark.e2e

LEASE_S = 4.0


class Tethered:
    """One device of a folder, without an agent of its own."""

    def __init__(self, folder: Path, short: Path) -> None:
        self.folder, self.short = folder / "left", short
        self.order = folder / "agent-order.json"
        given = order(folder, "left", "a", lease_s=LEASE_S)
        self.order.write_bytes(msgspec.json.encode(given))
        self.client = TetherClient(self.folder / "s.sock")

    @contextmanager
    def agent(self, *words: Path) -> Iterator[subprocess.Popen[bytes]]:
        """An agent, which is killed at the end."""
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
        """The server, if one answers. It is asked for no longer lease."""
        try:
            return self.client.renew(0.0)
        except MachineAway:
            return None

    def ready(self) -> TetherTold:
        """The server, once it is ready."""
        told: TetherTold = until(lambda: ready(self.told()), "it is ready")
        return told


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
