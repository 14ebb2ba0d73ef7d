"""Time bounds of connections between machines, read from the kernel."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mirage.serve.router.peer_silence import PeerSilence

pytestmark = pytest.mark.e2e


@asynccontextmanager
async def connected(server: asyncio.Server, connect: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    async with server:
        _, writer = await connect()
        yield writer.transport
        writer.close()


def bounds(there: socket.socket) -> tuple[int, int, int]:
    """Bounds of a socket: 1 if it asks for signs of life, the seconds for which it asks in vain
    until it breaks, and the milliseconds for which sent data may stay unacknowledged.
    """
    tcp = socket.IPPROTO_TCP
    every = there.getsockopt(tcp, socket.TCP_KEEPINTVL)
    return (
        there.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
        every * there.getsockopt(tcp, socket.TCP_KEEPCNT),
        there.getsockopt(tcp, socket.TCP_USER_TIMEOUT),
    )


def test_open_connections_get_another_bound_too() -> None:
    async def run() -> None:
        silence = PeerSilence(3)
        made = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = made.sockets[0].getsockname()[1]
        async with connected(made, lambda: asyncio.open_connection("127.0.0.1", port)) as line:
            there = line.get_extra_info("socket")
            before = bounds(there)
            silence.watch(line)
            assert before[0] == 0 and bounds(there) == (1, 3, 0)
            silence.becomes(20)
            assert bounds(there) == (1, 20, 0), "what is computed may take longer"
            silence.beats(line)
            assert bounds(there) == (1, 20, 20_000)
            silence.becomes(5)
            assert bounds(there) == (1, 5, 5_000)
            assert silence.door_s == pytest.approx(10 / 3)
        silence.becomes(3)  # it is closed, and that is all

    asyncio.run(run())


def test_connections_of_one_machine_are_left_as_they_are(tmp_path: Path) -> None:
    async def run() -> None:
        silence, path = PeerSilence(3), str(tmp_path / "s")
        made = await asyncio.start_unix_server(lambda *_: None, path)
        async with connected(made, lambda: asyncio.open_unix_connection(path)) as line:
            silence.watch(line)
            silence.beats(line)
            silence.becomes(5)

    asyncio.run(run())
