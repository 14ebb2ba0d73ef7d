"""Promises of `Machines`, kept by this machine alone; `test_cluster_ray.py` has those of a
cluster.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from seam_contract import facts_kept, news_told, serves, started_twice
from supervised import HERE

from mirage.machines.board import NewsBoard
from mirage.machines.keeper import DeviceKeeper
from mirage.machines.local import HERE as THIS
from mirage.machines.local import LocalMachines
from mirage.processes.reaper_client import ReaperClient

pytestmark = pytest.mark.e2e
ORDERS = json.dumps(["a"]).encode(), json.dumps(["a", "b"]).encode()


@asynccontextmanager
async def local(folder: Path) -> AsyncIterator[LocalMachines]:
    """This machine with the devices x and y, whose servers are stand-ins."""
    reaper: Any = SimpleNamespace(began=lambda group: None, over=lambda group: None)
    board = NewsBoard()
    sockets = {name: folder / f"{name}.sock" for name in ("x", "y")}
    keepers = [
        DeviceKeeper(
            name,
            folder / f"{name}.json",
            lambda: None,
            (str(HERE / "seam_server.py"), str(socket)),
            cast(ReaperClient, reaper),
            60.0,
            0.0,
            lambda line: None,
            board,
        )
        for name, socket in sockets.items()
    ]
    machines = LocalMachines(keepers, sockets, folder / "facts", board)
    try:
        yield machines
    finally:
        await machines.stop()


def test_a_server_is_started_once_and_the_next_one_has_the_last_order(short: Path) -> None:
    async def run() -> None:
        async with local(short) as machines:
            assert [one.name for one in await machines.there()] == [THIS]
            await started_twice(machines, "x", THIS, ORDERS)

    asyncio.run(run())


def test_facts_are_put_once_if_they_must_be_absent(short: Path) -> None:
    async def run() -> None:
        async with local(short) as machines:
            await facts_kept(machines)

    asyncio.run(run())


def test_a_device_whose_server_ends_is_lost_and_back_with_the_next_one(short: Path) -> None:
    async def run() -> None:
        async with local(short) as machines:
            for device in ("x", "y"):
                await machines.start(device, THIS, ORDERS[0])
                await machines.keepers[device].first
            pid = await serves(machines, "x", "a")
            kills = lambda: os.kill(pid, signal.SIGKILL)  # noqa: E731
            await news_told(machines, machines.keep, "x", kills, lambda: None)

    asyncio.run(run())
