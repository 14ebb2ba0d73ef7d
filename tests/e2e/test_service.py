"""A server as a systemd service: notifications, watchdog pings, and a passed socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from operated import around
from supervised import AS_PROGRAM, DEADLINE_S, HERE, Served, assert_gone, serving
from supervised import write_config as config_of

from mirage.serve.service.manager import ServiceManager, service_manager

pytestmark = pytest.mark.e2e

WATCHDOG_S = 2.0
AT_FIRST = 1310720
"""Bytes that an engine holds until it has obeyed an allotment."""
VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID")


class Listener:
    """A service manager's socket, which a thread reads all the time: at a path, or with ``@`` at an
    abstract address.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._lines: queue.Queue[str] = queue.Queue()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address.replace("@", "\0", 1))
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while told := self._socket.recv(4096).decode():
            for line in told.splitlines():
                self._lines.put(line)

    def until(self, line: str) -> list[str]:
        """Lines that came before the first one that begins with `line`."""
        before: list[str] = []
        deadline = time.monotonic() + DEADLINE_S
        while not (new := self._lines.get(timeout=DEADLINE_S)).startswith(line):
            before.append(new)
            assert time.monotonic() < deadline, f"{line} does not come: {before}"
        return before

    def pause(self, seconds: float) -> None:
        """Return once nothing has come for `seconds`."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._lines.get(timeout=seconds)

    def rest(self) -> list[str]:
        """All lines that have come until now."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
            one.sendto(b"END", self.address.replace("@", "\0", 1))
        return self.until("END")

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
            one.sendto(b"", self.address.replace("@", "\0", 1))
        self._thread.join()
        self._socket.close()


@pytest.fixture
def short() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(params=["path", "abstract"])
def listener(request: pytest.FixtureRequest, short: Path) -> Iterator[Listener]:
    path = request.param == "path"
    one = Listener(str(short / "notify") if path else f"@mirage-test-{os.getpid()}")
    yield one
    one.close()


def test_variables_are_taken_out_of_the_environment(listener: Listener) -> None:
    environment = {"NOTIFY_SOCKET": listener.address, "WATCHDOG_USEC": "2000000", "HOME": "/h"}
    service_manager(environment).ready()
    assert listener.rest() == ["READY=1"]
    assert environment == {"HOME": "/h"}


def test_a_status_is_told_when_it_changes(listener: Listener) -> None:
    manager = ServiceManager(listener.address)
    for line in ("looking", "looking", "serving"):
        manager.status(line)
    assert listener.rest() == ["STATUS=looking", "STATUS=serving"]


def test_a_reload_before_all_is_ready_does_not_say_so(listener: Listener) -> None:
    manager = ServiceManager(listener.address)
    manager.reloading()
    manager.reloaded()
    assert listener.rest() == []


@pytest.mark.parametrize("address", ["", "/nowhere/notify", "vsock:2:1234", "@nobody-is-there"])
def test_a_manager_that_does_not_hear_keeps_nobody_from_serving(address: str) -> None:
    manager = service_manager({"NOTIFY_SOCKET": address})
    manager.ready()
    manager.stopping()


@contextlib.contextmanager
def full_socket(address: str) -> Iterator[socket.socket]:
    """Socket of a manager with no room for another datagram; each datagram that fills it is
    ``full``.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.bind(address)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
            other.setblocking(False)
            with pytest.raises(BlockingIOError):
                while True:
                    other.sendto(b"full", address)
        one.setblocking(False)
        yield one


def all_of(one: socket.socket) -> list[str]:
    """First line of each datagram in a socket, without those that filled it."""
    found = []
    with contextlib.suppress(BlockingIOError):
        while True:
            found.append(one.recv(100).decode().split("\n")[0])
    return [line for line in found if line != "full"]


async def looked(manager: ServiceManager, decisions: int = 0) -> None:
    """Let `manager` look at the server once, and send what it has to."""
    keeping = asyncio.create_task(manager.keep(lambda: decisions, lambda: "serving"))
    await asyncio.sleep(0)
    keeping.cancel()


def test_a_manager_that_had_too_much_to_read_is_told_again(short: Path) -> None:
    """The manager's socket is full, so states cannot be sent, and the server does not wait. At a
    later look all states are sent in order.
    """
    manager = ServiceManager(str(short / "notify"), watchdog_s=60.0)
    with full_socket(str(short / "notify")) as one, pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "settimeout", None)  # whoever waits fails
        manager.ready()
        manager.status("serving")
        manager.reloading()
        manager.reloaded()
        asyncio.run(looked(manager))
        assert all_of(one) == []
        asyncio.run(looked(manager))
        states = ["READY=1", "RELOADING=1", "READY=1"]
        assert all_of(one) == [*states, "STATUS=serving", "WATCHDOG=1"]
        asyncio.run(looked(manager))
        assert all_of(one) == ["WATCHDOG=1"], "each look of a new task"


def test_a_ping_that_was_not_heard_is_sent_again(short: Path) -> None:
    """A watchdog ping did not fit into the full socket. It is sent again although nothing was
    decided since, because the last decision was not reported yet.
    """
    heard: list[list[str]] = []

    async def scenario() -> None:
        manager = ServiceManager(str(short / "notify"), watchdog_s=0.04)
        keeping = asyncio.create_task(manager.keep(lambda: 1, lambda: ""))
        await asyncio.sleep(0)
        heard.append(all_of(one))
        while not heard[-1]:
            await asyncio.sleep(0.01)
            heard.append(all_of(one))
        keeping.cancel()

    with full_socket(str(short / "notify")) as one:
        asyncio.run(asyncio.wait_for(scenario(), DEADLINE_S))
    assert heard[-1] == ["WATCHDOG=1"]


def test_a_full_socket_is_one_line_of_the_log(
    short: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager = ServiceManager(str(short / "notify"))
    with full_socket(str(short / "notify")) as one:
        for _ in range(3):
            manager.status("serving")
        all_of(one)
        manager.status("serving")
    told = "the service manager is not told STATUS=serving: "
    assert [line.startswith(told) for line in caplog.messages] == [True]


def test_who_decides_nothing_is_not_pinged(listener: Listener) -> None:
    """The count of decisions stands still while the event loop runs. The status is still sent, and
    no further ping, so systemd would restart the server.
    """
    decisions = iter([0, 1, 2, 2, 2, 2])

    async def scenario() -> None:
        manager = ServiceManager(listener.address, watchdog_s=0.04)
        looks = 0

        def status() -> str:
            nonlocal looks
            looks += 1
            return f"look {looks}"

        with pytest.raises(RuntimeError):  # of an iterator that has ended, in a coroutine
            await manager.keep(lambda: next(decisions), status)

    asyncio.run(scenario())
    said = listener.rest()
    assert said.count("WATCHDOG=1") == 3
    assert said[-1] == "STATUS=look 7"


@pytest.mark.parametrize(
    ("more", "watched"),
    [
        ({}, True),
        ({"WATCHDOG_PID": str(os.getpid())}, True),
        ({"WATCHDOG_PID": "1"}, False),
        ({"WATCHDOG_USEC": "0"}, False),
        ({"WATCHDOG_USEC": "soon"}, False),
    ],
)
def test_a_watchdog_of_another_process_is_not_pinged(
    listener: Listener, more: dict[str, str], watched: bool
) -> None:
    told = {"NOTIFY_SOCKET": listener.address, "WATCHDOG_USEC": "40000"} | more

    async def scenario() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                await service_manager(told).keep(lambda: 1, lambda: "")

    asyncio.run(scenario())
    assert ("WATCHDOG=1" in listener.rest()) is watched


def test_a_server_tells_of_its_life(tmp_path: Path, listener: Listener, short: Path) -> None:
    config = config_of(tmp_path, "a", "b")
    told = around(short) | {
        "NOTIFY_SOCKET": listener.address,
        "WATCHDOG_USEC": str(int(WATCHDOG_S * 1e6)),
        "FAKE_PROGRAMS": "1",
    }
    with serving(config, environment=told) as served:
        served.drain()
        before = listener.until("READY=1")
        assert before[0].startswith("STATUS=looking at the models")
        assert before[1].startswith(f"STATUS={served.url}: ")
        before += [*listener.until("WATCHDOG=1"), *listener.until("WATCHDOG=1")]
        assert f"STATUS={served.url}: 2 ready" in before
        family = served.family()
        for process in family:
            with contextlib.suppress(psutil.Error):
                inherited = process.environ()
                assert process.pid == served.process.pid or not inherited.keys() & {*VARIABLES}
        served.process.send_signal(signal.SIGHUP)
        listener.until("RELOADING=1")
        listener.until("READY=1")
        served.process.send_signal(signal.SIGTERM)
        listener.until("STOPPING=1")
        assert served.process.wait(DEADLINE_S) == 0
    assert_gone(family)


def test_a_frozen_server_is_silent(tmp_path: Path, short: Path) -> None:
    """The supervisor is stopped while its router serves on. No ping is sent until it continues."""
    one = Listener(str(short / "notify"))
    told = around(short) | {"NOTIFY_SOCKET": one.address, "WATCHDOG_USEC": "400000"}
    with serving(config_of(tmp_path, "a"), environment=told) as served:
        served.drain()
        one.until("WATCHDOG=1")
        served.process.send_signal(signal.SIGSTOP)
        one.pause(1.0)
        assert served.request("GET", "/live")[0] == 200
        assert one.rest() == []
        served.process.send_signal(signal.SIGCONT)
        one.until("WATCHDOG=1")
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(DEADLINE_S) == 0
    one.close()


# -- sockets that are passed ------------------------------------------------------------


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    """A listening socket as systemd opens it, before there is a server."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        yield one


def activated(*passed: socket.socket) -> str:
    """Python program that runs a server with these sockets passed as systemd passes them."""
    lines = ["import os", *(f"os.dup2({one.fileno()}, {n})" for n, one in enumerate(passed, 3))]
    lines.append(f"os.environ.update(LISTEN_FDS='{len(passed)}', LISTEN_PID=str(os.getpid()))")
    return "; ".join([*lines, AS_PROGRAM])


@contextlib.contextmanager
def serving_at(
    one: socket.socket, config: Path, short: Path, lease_s: float = 0
) -> Iterator[Served]:
    with serving(
        config,
        program=activated(one),
        environment=around(short),
        passed=[one.fileno()],
        lease_s=lease_s,
    ) as served:
        served.drain()
        yield served


def ask(port: int) -> socket.socket:
    """Connect to `port` and send a request, whether or not a server accepts yet."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
    connection.sendall(b"GET /live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    return connection


def test_a_server_listens_where_the_manager_does(
    tmp_path: Path, short: Path, listening: socket.socket
) -> None:
    port = listening.getsockname()[1]
    config = config_of(tmp_path, "a")
    waiting = ask(port)
    with serving_at(listening, config, short) as served:
        assert urlsplit(served.url).port == port, "--port is 0"
        assert waiting.recv(20).startswith(b"HTTP/1.1 200"), "who came before it was there"
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(DEADLINE_S) == 0
    waiting = ask(port)
    with serving_at(listening, config, short):
        assert waiting.recv(20).startswith(b"HTTP/1.1 200"), "who came between two of them"


def test_the_next_server_goes_on_at_the_same_socket(
    tmp_path: Path, short: Path, listening: socket.socket
) -> None:
    config = config_of(tmp_path, "a")
    with serving_at(listening, config, short, lease_s=300) as first:
        first.until("its engine has obeyed", lambda: held_bytes(first) > AT_FIRST)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        url = first.url
    with serving_at(listening, config, short, lease_s=300) as second:
        assert second.url == url
        second.until("it says so", lambda: any("adopted from process" in n for n in second.log))
        family = second.family()
        second.process.send_signal(signal.SIGTERM)
        assert second.process.wait(DEADLINE_S) == 0
    assert_gone(family)


def held_bytes(served: Served) -> int:
    told = served.request("GET", "/mirage/state")[1].get("tenants", {})
    return int(told.get("a", {}).get("held_bytes", 0))


def refused(one: socket.socket, config: Path, short: Path, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", activated(one), "serve", str(config), *options],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        pass_fds=[one.fileno()],
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1]), **around(short)},
    )
    assert done.returncode == 2
    return done.stderr.splitlines()[-1]


def test_other_machines_are_not_let_in_by_a_socket_that_is_passed(
    tmp_path: Path, short: Path
) -> None:
    with socket.create_server(("0.0.0.0", 0)) as one:
        assert "--host 0.0.0.0 lets other machines in" in refused(
            one, config_of(tmp_path, "a"), short
        )


def test_a_socket_of_another_kind_is_refused(tmp_path: Path, short: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(short / "s"))
        one.listen()
        line = refused(one, config_of(tmp_path, "a"), short)
    assert line == (
        "mirage: error: LISTEN_FDS: descriptor 3 (AF_UNIX) does not listen on an address of IP: "
        "use ListenStream=ADDRESS:PORT"
    )


def test_a_controller_of_a_cluster_refuses_a_socket(
    tmp_path: Path, short: Path, listening: socket.socket
) -> None:
    assert refused(listening, config_of(tmp_path, "a"), short, "--cluster") == (
        "mirage: error: LISTEN_FDS cannot be used with --cluster: the router of each machine opens "
        "its own address, so remove the socket unit, and name --port"
    )
