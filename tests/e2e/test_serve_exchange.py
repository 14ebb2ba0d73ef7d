"""The depot of `mirage serve`: shut while an engine starts, and gone with the server."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import beside_gpu
import pytest
from supervised import AS_PROGRAM, Served, serving, write_config

from mirage.serve.exchange import Exchange
from vmm.exchange import COMMIT, OFFER, PAGES, close_all, hear, say

pytestmark = pytest.mark.e2e


@contextmanager
def guest(depot: Path) -> Iterator[socket.socket]:
    """An engine at the depot."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as made:
        made.settimeout(10)
        made.connect(str(depot))
        made.send(b"mirage-depot-1 gpu 4096 guest")
        yield made


def room(there: socket.socket) -> int:
    say(there, OFFER, 5)
    return hear(there)[1]


def deposit(there: socket.socket) -> None:
    assert room(there) == 5
    fds = [os.memfd_create("page") for _ in range(5)]
    say(there, PAGES, 5, fds)
    close_all(fds)
    say(there, COMMIT, 0)
    assert hear(there) == (COMMIT, 5, [])


def held(served: Served) -> int:
    return int(served.request("GET", "/mirage/state")[1]["exchange"]["held"])


def test_it_is_shut_while_an_engine_starts(tmp_path: Path) -> None:
    config, program = write_config(tmp_path, "a", "b"), beside_gpu.EXCHANGING + AS_PROGRAM
    with serving(config, program=program) as served:
        folder = served.run_folder()
        assert folder is not None
        with guest(folder / "depot.sock") as there:
            deposit(there)
            assert held(served) == 5
            ask = {"model": "a", "prompt": "pids"}
            os.kill(served.request("POST", "/v1/completions", ask)[1]["core"], signal.SIGKILL)
            served.until("the engine starts again", lambda: room(there) == 0)
            assert held(served) == 0
            served.until("it is ready", lambda: room(there) == 5)
            assert served.engine_state("a") == "ready"
            assert served.end(signal.SIGTERM)[0] == 0
            assert there.recv(10) == b""
        assert not folder.exists()


def test_without_it_nothing_is_there(tmp_path: Path) -> None:
    async def shut() -> None:
        nothing = Exchange(None)
        nothing.start()
        async with nothing.shut():
            assert nothing.counts() is None
        await nothing.stop()

    asyncio.run(shut())
    with serving(write_config(tmp_path, "a")) as served:
        folder = served.run_folder()
        assert folder is not None and not (folder / "depot.sock").exists()
        assert "exchange" not in served.request("GET", "/mirage/state")[1]


def test_an_engine_whose_start_is_broken_off_shuts_it_no_longer(tmp_path: Path) -> None:
    async def run() -> None:
        exchange = Exchange(tmp_path / "depot.sock")
        exchange.start()

        async def starts() -> None:
            async with exchange.shut():
                await asyncio.sleep(60)

        for wait in (0.0, 0.05):
            task = asyncio.create_task(starts())
            await asyncio.sleep(wait)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        with guest(tmp_path / "depot.sock") as there:
            async with exchange.shut():
                assert await asyncio.to_thread(room, there) == 0
            async with asyncio.timeout(10):  # nobody waits for that it opens
                while await asyncio.to_thread(room, there) != 5:
                    await asyncio.sleep(0.01)
        await exchange.stop()
        await exchange.stop()

    asyncio.run(run())
    assert not (tmp_path / "depot.sock").exists()
