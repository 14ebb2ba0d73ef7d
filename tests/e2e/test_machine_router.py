"""Routers of machines for all devices: through doors, without a controller, a device lost."""

from __future__ import annotations

import http.client
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import psutil
import pytest
from supervised import assert_gone
from test_serve_http import is_router
from tethered import PROGRAM, SECRET, ask, environment, family, log_of, order, ready, until

from mirage.machines.outside import TetherClient
from mirage.machines.seam import DeviceCall, MachineAway
from mirage.machines.tether_messages import TetherTold
from mirage.serve.access.forms import AccessKey
from mirage.serve.access.ring import digest
from mirage.serve.logs.logs import LogFormat
from mirage.serve.machine.machine_router import PROGRAM as ROUTER
from mirage.serve.machine.machine_router import RouterOrder
from mirage.serve.machine.tethered import TetheredOrder

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

CLIENT = "a client's secret"
CLIENTS_KEY = AccessKey("client", digest(CLIENT), None)
OWN_KEY = AccessKey("cluster", digest(SECRET), None, admin=True, metrics=True)


class Tethers:
    """Device servers and routers started by their orders, each in its own folder, by name."""

    def __init__(self, folder: Path, short: Path) -> None:
        self.folder, self._short = folder, short
        self._processes = ExitStack()
        self.given = dict[str, RouterOrder]()

    def start(self, program: tuple[str, ...], given: TetheredOrder | RouterOrder) -> TetherTold:
        """Start the server of an order, and wait until it is ready."""
        folder = self.folder / given.device
        folder.mkdir(exist_ok=True)
        (folder / "order.json").write_bytes(msgspec.json.encode(given))
        words = [sys.executable, *program, str(folder / "order.json"), str(folder / "s.sock")]
        log = self._processes.enter_context((folder / "server.log").open("ab"))
        process = subprocess.Popen(
            [*words, "1", "60"],
            env={**os.environ, **environment(self._short)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        self._processes.callback(self._end, process)
        told: TetherTold = until(lambda: ready(self.told(given.device)), f"{given.device} is ready")
        return told

    def told(self, name: str) -> TetherTold | None:
        with suppress(MachineAway):
            return TetherClient(self.folder / name / "s.sock").renew(60.0)
        return None

    def device(self, name: str, *tenants: str) -> TetherTold:
        """Start the server of a device, and wait until it is ready."""
        given = order(self.folder / "models", name, *tenants)
        return self.start(PROGRAM, msgspec.json.decode(given.order, type=TetheredOrder))

    def router(self, name: str, doors: dict[str, str]) -> TetherTold:
        """Start a router for devices; `doors` has the address of each device's door."""
        config = msgspec.json.decode(
            order(self.folder / "models", "left", "a").order, type=TetheredOrder
        ).config
        keys = (CLIENTS_KEY, OWN_KEY)
        given = RouterOrder(
            *(f"router@{name}", name, config, "127.0.0.1", 0, keys, SECRET, doors),
            *(logging.INFO, LogFormat.TEXT),
        )
        self.given[name] = given
        return self.start(ROUTER, given)

    def orders(self, name: str, *, query: str = "", status: int = 200, **changes: Any) -> Any:
        """Send a router a changed order; return the answer, whose status must be `status`."""
        order = msgspec.structs.replace(self.given[name], **changes)
        call = DeviceCall("PUT", f"/order{query}", msgspec.json.encode(order))
        told = self.call(f"router@{name}", call, status)
        if status == 200 and not query:
            self.given[name] = order
        return told

    def limits(self, name: str, **http: Any) -> Any:
        """Configuration of a router with these keys in its section `http`."""
        config = self.given[name].config
        return msgspec.structs.replace(config, raw=config.raw | {"http": http})

    def call(self, name: str, call: DeviceCall, status: int = 200) -> Any:
        answer = TetherClient(self.folder / name / "s.sock").call(1, call)
        assert answer.status == status, answer
        return json.loads(answer.body)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)
        process.kill()
        process.wait()

    def close(self) -> None:
        self._processes.close()


@pytest.fixture(name="tethers")
def _tethers(tmp_path: Path, short: Path) -> Iterator[Tethers]:
    tethers = Tethers(tmp_path, short)
    try:
        yield tethers
    except BaseException:
        raise
    finally:
        tethers.close()
        for log in tmp_path.glob("*/server.log"):
            print(log.parent.name, log_of(log.parent))
    assert not list(short.iterdir())


def get(url: str, path: str, secret: str = CLIENT) -> tuple[int, Any]:
    parts = urlsplit(url)
    with closing(http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=30)) as there:
        there.request("GET", path, headers={"Authorization": f"Bearer {secret}"})
        answer = there.getresponse()
        return answer.status, json.loads(answer.read())


def serves(url: str, model: str) -> bool:
    return ask(url, model, CLIENT)[0] == 200


def test_each_router_reaches_every_model_and_knows_at_once_who_is_gone(tethers: Tethers) -> None:
    left, right = tethers.device("left", "a", "both"), tethers.device("right", "b", "both")
    doors = {"left": left.url, "right": right.url}
    first, second = tethers.router("m1", doors), tethers.router("m2", doors)
    gone = family(left, "a", "both") | family(right, "b", "both")
    for url in (first.url, second.url):
        assert {one["id"] for one in get(url, "/v1/models")[1]["data"]} == {"a", "b", "both"}
        for model in ("a", "b", "both"):
            until(lambda url=url, model=model: serves(url, model), f"{url} serves {model}")
        assert ask(url, "a", "another secret")[0] == 401
        assert get(url, "/health", SECRET)[1]["tenants"]["both"] == {
            "left": "ready",
            "right": "ready",
        }
        state = get(url, "/mirage/state?device=right", SECRET)
        assert state[0] == 200 and set(state[1]["engines"]) == {"b", "both"}, state
    assert ask(left.url, "a", CLIENT)[0] == 401, "a device opens to its own keys alone"

    for process in family(right, "b", "both") | set(psutil.Process(right.pid).children(True)):
        with suppress(psutil.Error):
            process.kill()
    assert serves(first.url, "both") and serves(second.url, "both"), "the other replica serves"
    for url in (first.url, second.url):
        until(lambda url=url: ask(url, "b", CLIENT)[0] == 503, "its model is away")
        assert ask(url, "nothing", CLIENT)[0] == 503, "it may be a model of who is away"
        assert serves(url, "a")

    again = tethers.device("right", "b", "both")
    doors = {"left": left.url, "right": again.url}
    for name in ("m1", "m2"):
        assert tethers.orders(name, doors=doors)["doors"] == doors
    for url in (first.url, second.url):
        until(lambda url=url: serves(url, "b"), "it is back, somewhere else")
    gone |= family(again, "b", "both")
    tethers.close()
    assert_gone(gone)


def test_a_router_and_a_device_obey_another_order_while_they_serve(
    tethers: Tethers, tmp_path: Path
) -> None:
    left = tethers.device("left", "a")
    router = tethers.router("m1", {"left": left.url})
    until(lambda: serves(router.url, "a"), "it serves")
    another = AccessKey("another", digest("another secret"), None)
    with closing(drips(router.url, CLIENT)) as connection:
        stream = connection.getresponse()  # it has begun
        tethers.orders("m1", keys=(another, OWN_KEY), config=tethers.limits("m1", body_s=9.0))
        assert ask(router.url, "a", CLIENT)[0] == 401
        assert ask(router.url, "a", "another secret")[0] == 200
        told = tethers.orders("m1", config=tethers.limits("m1", connections_per_peer=1))
        assert told["url"] == router.url
        status, answer = ask(router.url, "a", "another secret")
        assert (status, answer["error"]["code"]) == (503, "too_many_connections")
        assert stream.read().count(b"data: {}") == 10, "what runs goes on"
    tethers.orders("m1", config=tethers.limits("m1"))
    until(lambda: ask(router.url, "a", "another secret")[0] == 200, "the limit has gone")

    none = {"certificate": "/none", "key": "/none"}
    for changes, words in (
        ({"port": 9}, f"it serves at {router.url}, not at http://127.0.0.1:9"),
        ({"host": "127.0.0.9"}, "which cannot change while it runs"),
        ({"config": tethers.limits("m1", tls=none, body_s=1.0)}, "not at https://127.0.0.1"),
    ):
        for query in ("", "?dry_run=1"):
            refused = tethers.orders("m1", query=query, status=409, **changes)
            assert words in refused["error"]["message"], refused
    refused = tethers.orders("m1", status=400, config=tethers.limits("m1", body_s=0))
    assert "http.body_s" in refused["error"]["message"]
    assert ask(router.url, "a", "another secret")[0] == 200

    (child,) = (p for p in family(router) if is_router(p) and not p.children())
    child.kill()
    child.wait()
    until(lambda: is_open(router.url, "another secret"), "another one serves")
    assert ask(router.url, "a", CLIENT)[0] == 401, "it knows the newest keys"

    keys = msgspec.json.encode((another, OWN_KEY))
    tethers.call("left", DeviceCall("PUT", "/keys", keys))
    assert ask(left.url, "a", "another secret")[0] == 200
    tethers.call("left", DeviceCall("POST", "/keys"))
    assert ask(left.url, "a", "another secret")[0] == 200, "they are read again from the order"
    tethers.call("left", DeviceCall("PUT", "/keys", msgspec.json.encode((OWN_KEY,))))
    assert ask(left.url, "a", "another secret")[0] == 401
    tethers.call("left", DeviceCall("PUT", "/keys", b"[1]"), 400)
    assert ask(router.url, "a", "another secret")[0] == 200, "the router's are its own"
    gone = family(left, "a") | family(router)
    doors = {"left": left.url, "new": ""}
    assert tethers.orders("m1", doors=doors)["url"] == router.url, "it answers"
    until(lambda: tethers.told("router@m1") is None, "and ends, so that another one starts")
    tethers.close()
    assert_gone(gone)


def is_open(url: str, secret: str) -> bool:
    with suppress(OSError):
        return ask(url, "a", secret)[0] == 200
    return False


def drips(url: str, secret: str) -> http.client.HTTPConnection:
    """Connection over which a stream of ten events a second has been requested, and
    nothing read.
    """
    parts = urlsplit(url)
    there = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)
    body = json.dumps({"model": "a", "prompt": "drip", "max_tokens": 10, "stream": True})
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {secret}"}
    there.request("POST", "/v1/completions", body, headers)
    return there
