"""Connections to engines that are kept, and engines that close them: over plain sockets."""

from __future__ import annotations

import asyncio
import select
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest
from routed import routed

from mirage.config import Policy
from mirage.control.roster.states import LifeState
from mirage.serve.registry import Registry, TenantServer

pytestmark = pytest.mark.e2e

WAIT_S = 20
BODY = b'{"model": "a"}'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"

Engine = Callable[[socket.socket], None]


def takes(connection: socket.socket) -> None:
    """Read one request to its end."""
    read = b""
    while not read.endswith(BODY):
        chunk = connection.recv(65536)
        assert chunk, "the router closed its connection"
        read += chunk


def answers(connection: socket.socket) -> None:
    takes(connection)
    connection.sendall(ANSWER)


def closes_unread(connection: socket.socket) -> None:
    """Answer one, and close when the next one comes."""
    answers(connection)
    assert select.select([connection], [], [], WAIT_S)[0]
    connection.close()


def closes_read(connection: socket.socket) -> None:
    """Answer one, and close once the next one was read."""
    answers(connection)
    takes(connection)
    connection.close()


def answers_all(connection: socket.socket) -> None:
    for _ in range(2):
        answers(connection)


def statuses(folder: Path, *engines: Engine) -> tuple[list[int], int]:
    """Status of each of two requests, and connections that came; each has its engine."""
    came: list[socket.socket] = []

    def engine(listener: socket.socket) -> None:
        for one in engines:
            connection, _ = listener.accept()
            came.append(connection)
            one(connection)

    async def main() -> list[int]:
        path = folder / "a.sock"
        backend = TenantServer("a", path, 256, LifeState.READY)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()
            threading.Thread(target=engine, args=(listener,), daemon=True).start()
            registry = Registry(Policy.MIRAGE, 1 << 30, {"a": backend})
            found = []
            async with (
                asyncio.timeout(WAIT_S),
                routed(folder, registry) as one,
                aiohttp.ClientSession() as http,
            ):
                for _ in range(2):
                    async with http.post(f"{one.url}/v1/completions", data=BODY) as answer:
                        found.append(answer.status)
            return found

    found = asyncio.run(main())
    for connection in came:
        connection.close()
    return found, len(came)


@pytest.fixture(autouse=True)
def _blame_is_soon_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirage.serve.router.forward.BLAME_S", 0.1)


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
    """Nobody knows what it has done with it."""
    assert statuses(tmp_path, closes_read, answers) == ([200, 502], 1)
