"""Connections to engines that the router keeps, and engines that close them, over raw sockets."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import aiohttp
import pytest
from multidict import CIMultiDict
from routed import routed

from mirage.config import Policy
from mirage.control.roster.states import LifeState
from mirage.serve.registry.registry import Registry, TenantServer
from mirage.serve.router.engines import EngineConnections, EngineRequest
from mirage.serve.router.reach import UnixReach

pytestmark = pytest.mark.e2e

WAIT_S = 60
BODY = b'{"model": "a"}'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"

Engine = Callable[[socket.socket], None]


def takes(connection: socket.socket) -> None:
    """Read one request to its end."""
    read = b""
    while not read.endswith(BODY[1:]):
        chunk = connection.recv(65536)
        assert chunk, "the router closed its connection"
        read += chunk


def answers(connection: socket.socket) -> None:
    takes(connection)
    connection.sendall(ANSWER)


def closes_unread(connection: socket.socket) -> None:
    """Fake engine that answers one request, and closes the connection when the next one arrives,
    without reading it.
    """
    answers(connection)
    assert select.select([connection], [], [], WAIT_S)[0]
    connection.close()


def closes_read(connection: socket.socket) -> None:
    """Fake engine that answers one request, reads the next one, and closes the connection."""
    answers(connection)
    takes(connection)
    connection.close()


def answers_all(connection: socket.socket) -> None:
    for _ in range(2):
        answers(connection)


Scenario = Callable[[str, aiohttp.ClientSession], Awaitable[None]]


def served(folder: Path, engines: Sequence[Engine], scenario: Scenario) -> int:
    """Run `scenario` with a router; each of `engines` handles one connection to the engine's
    socket. Return the number of connections.
    """
    came: list[socket.socket] = []

    def engine(listener: socket.socket) -> None:
        for one in engines:
            connection, _ = listener.accept()
            came.append(connection)
            one(connection)

    async def main() -> None:
        path = folder / "a.sock"
        backend = TenantServer("a", path, 256, LifeState.READY)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()
            threading.Thread(target=engine, args=(listener,), daemon=True).start()
            registry = Registry(Policy.MIRAGE, 1 << 30, {"a": backend})
            async with (
                asyncio.timeout(WAIT_S),
                routed(folder, registry) as one,
                aiohttp.ClientSession() as http,
            ):
                await scenario(f"{one.url}/v1/completions", http)

    asyncio.run(main())
    for connection in came:
        connection.close()
    return len(came)


def statuses(folder: Path, *engines: Engine, body: bytes = BODY) -> tuple[list[int], int]:
    """Statuses of two requests sent one after the other, and the number of connections to the
    engine.
    """
    found: list[int] = []

    async def scenario(url: str, http: aiohttp.ClientSession) -> None:
        for _ in range(2):
            async with http.post(url, data=body) as answer:
                found.append(answer.status)

    came = served(folder, engines, scenario)
    return found, came


@pytest.fixture(autouse=True)
def _blame_is_soon_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirage.serve.router.broken.BLAME_S", 0.1)


def test_a_connection_is_kept_for_the_next_request(tmp_path: Path) -> None:
    assert statuses(tmp_path, answers_all) == ([200, 200], 1)


def test_a_request_that_no_engine_has_read_is_sent_once_more(tmp_path: Path) -> None:
    assert statuses(tmp_path, closes_unread, answers) == ([200, 200], 2)


def test_a_request_is_sent_no_third_time(tmp_path: Path) -> None:
    def unread(connection: socket.socket) -> None:
        assert select.select([connection], [], [], WAIT_S)[0]
        connection.close()

    assert statuses(tmp_path, closes_unread, unread, answers) == ([200, 502], 2)


def test_a_request_that_an_engine_has_read_is_not_sent_again(tmp_path: Path) -> None:
    """The engine closes a kept connection after it has read the second request. That is answered
    with 502 and not sent again, because the engine may have acted on it.
    """
    assert statuses(tmp_path, closes_read, answers) == ([200, 502], 1)


def test_an_answer_that_nobody_waited_for_is_not_the_next_ones(tmp_path: Path) -> None:
    """A client leaves while the engine computes. That connection to the engine is closed, and the
    next request gets its own answer on a new one.
    """
    taken, left = threading.Event(), threading.Event()

    def slow(connection: socket.socket) -> None:
        takes(connection)
        taken.set()
        assert connection.recv(1) == b"", "the engine hears of it"
        left.set()

    async def scenario(url: str, http: aiohttp.ClientSession) -> None:
        asked = asyncio.create_task(http.post(url, data=BODY))
        await asyncio.to_thread(taken.wait, WAIT_S)
        asked.cancel()
        await asyncio.to_thread(left.wait, WAIT_S)
        async with http.post(url, data=BODY) as answer:
            assert await answer.read() == b"{}"

    assert served(tmp_path, [slow, answers], scenario) == 2


def test_a_connection_that_has_said_too_much_is_not_used_again(tmp_path: Path) -> None:
    def says_more(connection: socket.socket) -> None:
        takes(connection)
        connection.sendall(ANSWER + b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")

    assert statuses(tmp_path, says_more, answers) == ([200, 200], 2)


def test_an_idle_connection_is_closed_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mirage.serve.router.engines.KEPT_S", 0.1)
    closed = threading.Event()

    def hears(connection: socket.socket) -> None:
        answers(connection)
        assert connection.recv(1) == b""
        closed.set()

    async def scenario(url: str, http: aiohttp.ClientSession) -> None:
        for _ in range(2):
            async with http.post(url, data=BODY) as answer:
                assert answer.status == 200
            await asyncio.to_thread(closed.wait, WAIT_S)
            closed.clear()

    assert served(tmp_path, [hears, hears], scenario) == 2


@pytest.mark.parametrize("begun", [True, False], ids=["in its body", "before its head"])
def test_a_request_fails_when_its_connection_is_closed(tmp_path: Path, begun: bool) -> None:
    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if begun:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n")
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    async def scenario() -> None:
        path = str(tmp_path / "engine")
        async with await asyncio.start_unix_server(engine, path):
            connections = EngineConnections(UnixReach(), path)

            async def asks() -> bytes:
                async with EngineRequest(connections, "GET", "/", CIMultiDict()) as answer:
                    return await answer.content.read()

            asking = asyncio.create_task(asks())
            await asyncio.sleep(0.3)
            connections.close()
            with pytest.raises(aiohttp.ClientError):
                await asyncio.wait_for(asking, WAIT_S)
            connections.close()

    asyncio.run(scenario())


def test_what_comes_before_an_answer_is_none(tmp_path: Path) -> None:
    def hints(connection: socket.socket) -> None:
        for _ in range(2):
            takes(connection)
            connection.sendall(b"HTTP/1.1 103 Early Hints\r\n\r\n" + ANSWER)

    assert statuses(tmp_path, hints) == ([200, 200], 1)


def test_what_is_no_answer_is_a_502(tmp_path: Path) -> None:
    def babbles(connection: socket.socket) -> None:
        takes(connection)
        connection.sendall(b"hello\r\n\r\n")

    assert statuses(tmp_path, babbles, answers) == ([502, 200], 2)


LONG = b'{"prompt": "' + b"x" * (3 << 20) + b'", ' + BODY[1:]
"""More than a connection holds, and than is sent at a time."""


def test_a_long_body_comes_whole(tmp_path: Path) -> None:
    assert statuses(tmp_path, answers_all, body=LONG) == ([200, 200], 1)


def test_an_engine_may_answer_before_it_has_read_a_long_body(tmp_path: Path) -> None:
    """An engine answers 413 before it has read the whole body. The router closes that connection,
    because the engine would parse the rest of the body as the next request.
    """

    def refuses(connection: socket.socket) -> None:
        connection.recv(1024)
        connection.sendall(ANSWER.replace(b"200 OK", b"413 Too Large"))

    assert statuses(tmp_path, refuses, answers, body=LONG) == ([413, 200], 2)
