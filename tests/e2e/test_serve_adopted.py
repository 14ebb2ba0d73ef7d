"""A supervisor is killed: its engines run on for the lease, and the next supervisor adopts them."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
import yaml
from operated import Operated, around, content, mirage
from supervised import DEADLINE_S, Served, assert_gone, serving, write_config

pytestmark = pytest.mark.e2e

LEASE_S = 300.0
KILLS = 4
AT_FIRST = 1310720
"""Bytes that an engine holds until it has obeyed an allotment."""


def config_of(folder: Path, **changes: Any) -> Path:
    """Configuration of the tenants a and b, which start with the server."""
    told = content("a", "b", **changes)
    told["tenants"] = [{**one, "start": "eager"} for one in told["tenants"]]
    folder.mkdir(exist_ok=True)
    config = write_config(folder, "a")
    config.write_text(yaml.safe_dump(told))
    return config


@contextmanager
def served(config: Path, short: Path, *options: str, lease_s: float = LEASE_S) -> Iterator[Served]:
    with serving(config, *options, environment=around(short), lease_s=lease_s) as server:
        server.drain()
        try:
            for name in yaml.safe_load(config.read_text())["tenants"]:
                server.until("it has memory", lambda n=name["name"]: has_some(server, n))
            yield server
        except BaseException:
            print("".join(server.log))
            killed(server)
            mirage(short, "stop")
            raise


def has_some(server: Served, name: str) -> bool:
    """True once an engine has obeyed an allotment. An engine that has none cannot be adopted."""
    told = server.request("GET", "/mirage/state")[1].get("tenants", {})
    return bool(told.get(name, {}).get("held_bytes", 0) > AT_FIRST)


def killed(server: Served) -> None:
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()


def engines(short: Path) -> dict[str, tuple[int, int]]:
    """Process ids of each engine's API server and core, asked at the engines' own sockets."""
    found = {}
    for path in short.glob("mirage-*/engine-*.sock"):
        name = path.name.split("-")[1]
        connection = http.client.HTTPConnection("engine", timeout=60)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(path))
        body = json.dumps({"model": name, "prompt": "pids"})
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        told = json.loads(connection.getresponse().read())
        connection.close()
        found[name] = (told["server"], told["core"])
    return found


def processes(found: dict[str, tuple[int, int]]) -> set[psutil.Process]:
    return {psutil.Process(pid) for pids in found.values() for pid in pids}


def state(server: Served, name: str) -> dict[str, Any]:
    told: dict[str, Any] = server.request("GET", "/mirage/state")[1]["engines"][name]
    return told


def test_another_supervisor_has_the_engines_of_one_that_was_killed(
    tmp_path: Path, short: Path
) -> None:
    config = config_of(tmp_path)
    with served(config, short) as first:
        before, folder, others = engines(short), first.run_folder(), first.family()
        killed(first)
    assert engines(short) == before, "they serve without it"
    with served(config, short) as second:
        assert engines(short) == before and second.run_folder() is None
        adopted = {"state": "ready", "restarts": 0, "adopted": True, "moves": []}
        assert [state(second, name) for name in before] == [adopted, adopted]
        assert any("adopted from process" in line for line in second.log)
        assert mirage(short, "ps").stdout.count("ready") == 2
        family = second.family() | processes(before)
        assert second.end(signal.SIGTERM)[0] == 0
        assert_gone(family | others)
    assert folder is not None and not folder.exists() and not list(short.iterdir())


def test_of_two_killed_servers_the_later_ones_engines_go_on(tmp_path: Path, short: Path) -> None:
    config = config_of(tmp_path)
    with served(config, short) as first:
        older = first.family()
        with served(config, short) as second:
            killed(first)
            killed(second)
    with served(config, short) as third:
        told = f"engines of process {first.process.pid}, which died, are ended: those of a later"
        assert any(told in line for line in third.log), "".join(third.log)
        assert_gone(older)
        assert [state(third, name)["adopted"] for name in "ab"] == [True, True]
        assert third.end(signal.SIGTERM)[0] == 0
    assert not list(short.iterdir())


def test_an_adopted_engine_that_ends_is_started_again(tmp_path: Path, short: Path) -> None:
    config = config_of(tmp_path)
    with served(config, short) as first:
        killed(first)
    with served(config, short) as second:
        before = engines(short)
        os.kill(before["a"][1], signal.SIGKILL)
        second.until("it is started again", lambda: state(second, "a")["restarts"] == 1)
        second.until("it is ready", lambda: state(second, "a")["state"] == "ready")
        told = "a: engine core was ended from outside (SIGKILL)"  # by whoever reaped it
        assert any(told in line for line in second.log), "".join(second.log)
        after = engines(short)
        assert after["b"] == before["b"] and not {*after["a"]} & {*before["a"]}
        assert "adopted" not in state(second, "a")
        assert second.end(signal.SIGTERM)[0] == 0


@pytest.mark.parametrize("victim", ["core", "server"])
@pytest.mark.slow
def test_an_engine_that_ended_meanwhile_is_started_anew(
    tmp_path: Path, short: Path, victim: str
) -> None:
    config = config_of(tmp_path)
    with served(config, short) as first:
        before = engines(short)
        killed(first)
    os.kill(before["a"][victim == "core"], signal.SIGKILL)
    with served(config, short) as second:
        after = engines(short)
        assert after["b"] == before["b"] and not {*after["a"]} & {*before["a"]}
        assert second.end(signal.SIGTERM)[0] == 0
    assert not list(short.iterdir())


def test_tenants_that_are_others_now_start_anew_and_removed_ones_end(
    tmp_path: Path, short: Path
) -> None:
    config = config_of(tmp_path)
    with served(config, short) as first:
        before = engines(short)
        gone = processes({"b": before["b"]})
        killed(first)
    told = yaml.safe_load(config.read_text())
    told["tenants"][1]["name"] = "c"
    config.write_text(yaml.safe_dump(told))
    with served(config, short) as second:
        second.until("c is ready", lambda: "c" in engines(short))
        assert engines(short)["a"] == before["a"]
        assert_gone(gone)
        assert second.end(signal.SIGTERM)[0] == 0


def test_another_device_begins_with_new_engines(tmp_path: Path, short: Path) -> None:
    config = config_of(tmp_path)
    with served(config, short) as first:
        before = engines(short)
        left = processes(before)
        killed(first)
    config.write_text(config.read_text().replace("4MiB", "5MiB"))
    with served(config, short) as second:
        assert_gone(left)
        assert len(engines(short)) == 2
        assert any("device.memory is not as it was" in line for line in second.log)
        assert second.end(signal.SIGTERM)[0] == 0
    assert not list(short.iterdir())


def test_after_the_lease_nothing_is_left(tmp_path: Path, short: Path) -> None:
    with served(config_of(tmp_path), short, lease_s=2.0) as first:
        family = first.family()
        killed(first)
    assert_gone(family)
    until(lambda: not list(short.iterdir()))


def test_a_taken_port_leaves_the_engines_as_they_are(tmp_path: Path, short: Path) -> None:
    config = config_of(tmp_path)
    with served(config, short) as first:
        before = engines(short)
        killed(first)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = mirage(short, "serve", str(config), "--port", port, "--lease", str(LEASE_S))
    assert done.returncode == 2 and "cannot listen" in done.stderr
    assert engines(short) == before
    with served(config, short) as second:
        assert engines(short) == before
        assert second.end(signal.SIGTERM)[0] == 0
    assert not list(short.iterdir())


def until(holds: Any) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def reaper_of(server: Served) -> psutil.Process:
    children = psutil.Process(server.process.pid).children()
    (found,) = (one for one in children if any("reaper.py" in word for word in one.cmdline()))
    return found


def is_engine(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return "--uds" in process.cmdline()
    return False


@pytest.mark.parametrize("reaper", ["lives", "killed", "stopped"])
def test_stop_ends_what_a_killed_server_has_left(tmp_path: Path, short: Path, reaper: str) -> None:
    with served(config_of(tmp_path), short) as first:
        family = first.family()
        killed_too = reaper_of(first)
        if reaper == "stopped":
            killed_too.suspend()
        killed(first)
        if reaper == "killed":
            killed_too.kill()
    done = mirage(short, "stop")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("process ") and "it had left " in done.stdout
    assert_gone(family)
    assert not list(short.iterdir())
    again = mirage(short, "stop")
    assert again.returncode == 2 and "nothing to stop" in again.stderr


def test_stop_ends_a_server_that_runs_in_order(tmp_path: Path, short: Path) -> None:
    with served(config_of(tmp_path), short) as first:
        family = first.family()
        done = mirage(short, "stop")
        assert done.returncode == 0 and "has ended, with a, b" in done.stdout
        assert first.process.wait() == 0
        assert_gone(family)
    assert not list(short.iterdir())


@pytest.mark.slow
def test_a_supervisor_may_be_killed_at_any_moment(tmp_path: Path, short: Path) -> None:
    """Supervisors are killed at random moments, one after the other. Each next one adopts what is
    left, and no engine runs twice in the end.
    """
    config, rng = config_of(tmp_path), random.Random(20261127)
    families: set[psutil.Process] = set()
    with contextlib.ExitStack() as ends:
        ends.callback(mirage, short, "stop")
        for _ in range(KILLS):
            options = {"environment": around(short), "lease_s": LEASE_S}
            with serving(config, ready_timeout_s=None, **options) as server:  # type: ignore[arg-type]
                server.drain()
                time.sleep(rng.uniform(0.0, 6.0))
                families |= server.family()
                killed(server)
        with served(config, short) as last:
            assert sorted(engines(short)) == ["a", "b"]
            held = processes(engines(short))
            assert not [p for p in families - last.family() - held if is_engine(p)]
            assert last.end(signal.SIGTERM)[0] == 0
        assert_gone({p for p in families | held if p.is_running() and is_engine(p)})
    # One that is killed while it asks about models leaves the folder of that.
    assert not list(short.glob("mirage-*/*.sock")) + list(short.glob("mirage-*/run.json"))


def test_its_router_serves_on_and_is_the_next_ones(tmp_path: Path, short: Path) -> None:
    """A supervisor is killed while streams run. Its router serves on at the same address; the next
    supervisor adopts it, with the number of running requests.
    """
    config = config_of(tmp_path)
    asked = {"model": "a", "prompt": "pids"}
    with served(config, short) as first:
        before, url = nursery(first), first.url
        os.kill(engines(short)["a"][1], signal.SIGKILL)  # the next server counts from one again
        first.until("it is noticed", lambda: state(first, "a")["restarts"] == 1)
        first.until("it serves again", lambda: state(first, "a")["state"] == "ready")
        first.until("it has memory", lambda: has_some(first, "a"))
        streams = [begun(first), begun(first)]
        first.until("both are told", lambda: running(first, short) == 2)
        killed(first)
    assert first.request("POST", "/v1/completions", asked)[0] == 200, "it serves without it"
    assert first.request("GET", "/health")[1]["status"] == "ok"
    with served(config, short) as second:
        assert second.url == url and nursery_of(second, before) == before
        assert second.request("POST", "/v1/completions", asked)[0] == 200
        for left in (2, 1, 0):
            second.until("they are told", lambda left=left: running(second, short) == left)
            if left:
                streams.pop().close()
        with never_refused(url):
            before.kill()
            second.until("another one is there", lambda: nursery_of(second, before) != before)
            assert second.request("POST", "/v1/completions", asked)[0] == 200
        family = second.family()
        assert second.end(signal.SIGTERM)[0] == 0
        assert_gone(family)


def test_an_adopted_address_stays_open_from_server_to_server(tmp_path: Path, short: Path) -> None:
    """Processes of the router are killed, one after each adoption. Clients can connect at every
    moment, and the last server removes everything.
    """
    config = config_of(tmp_path)
    asked = {"model": "a", "prompt": "pids"}
    with served(config, short) as first:
        left, url = nursery(first), first.url
        killed(first)
    with never_refused(url):
        for kill in (router_of, lambda one: one, router_of):
            with served(config, short) as after:
                assert after.url == url
                killing = kill(left)
                killing.kill()
                psutil.wait_procs([killing])
                assert after.request("POST", "/v1/completions", asked)[0] == 200
                left = nursery_of(after, left)
                killed(after)
    with served(config, short) as last:
        assert last.url == url and nursery_of(last, left) == left
        assert last.end(signal.SIGTERM)[0] == 0
    assert not list(short.iterdir())


def test_a_router_may_end_while_engines_are_awaited(tmp_path: Path, short: Path) -> None:
    config = config_of(tmp_path)
    asked = {"model": "a", "prompt": "pids"}
    with served(config, short) as first:
        before, (_, core) = nursery(first), engines(short)["b"]
        killed(first)
    os.kill(core, signal.SIGSTOP)
    options = {"environment": around(short), "lease_s": LEASE_S}
    with serving(config, ready_timeout_s=None, **options) as second:  # type: ignore[arg-type]
        second.drain()
        second.until("it has the router's socket", lambda: listens(second, first.url))
        with never_refused(first.url):
            before.kill()
            assert_gone({before})
            os.kill(core, signal.SIGCONT)
            second.wait_ready(DEADLINE_S)
            assert second.request("POST", "/v1/completions", asked)[0] == 200
        family = second.family()
        assert second.end(signal.SIGTERM)[0] == 0
        assert_gone(family)


def test_a_router_that_is_taken_over_gets_other_limits(tmp_path: Path, short: Path) -> None:
    config = config_of(tmp_path)
    with served(config, short) as first:
        before, engine, url = nursery(first), engines(short), first.url
        killed(first)
    changed = yaml.safe_load(config.read_text()) | {"http": {"cors": ["http://page.test"]}}
    config.write_text(yaml.safe_dump(changed))
    with served(config, short) as second:
        assert second.url == url and nursery_of(second, before) == before
        assert engines(short) == engine
        second.until("its router has the origin", lambda: opened_to(url, "http://page.test"))
        assert second.request("POST", "/v1/completions", {"model": "a", "prompt": "pids"})[0] == 200
        family = second.family() | {before}
        assert second.end(signal.SIGTERM)[0] == 0
        assert_gone(family)


def opened_to(url: str, origin: str) -> bool:
    """True if the CORS headers at `url` let a page of `origin` read the answers."""
    asked = urllib.request.Request(f"{url}/v1/models", headers={"Origin": origin})
    with urllib.request.urlopen(asked, timeout=DEADLINE_S) as answer:
        return answer.headers.get("Access-Control-Allow-Origin") == origin


def nursery(server: Served) -> psutil.Process:
    """The process that forks the server's routers."""
    (found,) = routers(psutil.Process(server.process.pid).children())
    return found


def routers(found: Iterable[psutil.Process]) -> list[psutil.Process]:
    return [one for one in found if "mirage.serve.router.process" in one.cmdline()]


def nursery_of(server: Served, left: psutil.Process) -> psutil.Process:
    """The process that forks the server's routers: its own child, or `left` if it adopted that."""
    own = routers(psutil.Process(server.process.pid).children())
    return own[0] if own else left


def router_of(nursery: psutil.Process) -> psutil.Process:
    (found,) = nursery.children()
    return found


def listens(server: Served, url: str) -> bool:
    """True if the supervisor itself has the listening socket of `url`."""
    there = psutil.Process(server.process.pid).net_connections("tcp")
    return any(
        one.status == psutil.CONN_LISTEN and one.laddr.port == urlsplit(url).port for one in there
    )


@contextmanager
def never_refused(url: str) -> Iterator[None]:
    """Context in which a client connects again and again; no connection may be refused."""
    address, over = (urlsplit(url).hostname, urlsplit(url).port), threading.Event()
    refused: list[OSError] = []

    def connects() -> None:
        while not over.wait(0.002):
            try:
                socket.create_connection(address, timeout=DEADLINE_S).close()
            except OSError as error:
                refused.append(error)

    thread = threading.Thread(target=connects, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert not refused


def running(server: Served, short: Path) -> int:
    """Number of running requests of tenant `a`, by the admin socket."""
    told = Operated(server, short).ask("GET", "/tenants/a")[1]
    return int(told["running"])


def begun(server: Served) -> http.client.HTTPConnection:
    """Connection with a streamed answer that has begun and does not end."""
    body = {"model": "a", "prompt": "hang", "stream": True}
    connection = server.open("POST", "/v1/completions", body)
    assert connection.getresponse().readline() == b"data: {}\n"
    return connection
