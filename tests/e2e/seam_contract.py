"""Promises of `Machines` that each implementation keeps."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from mirage.machines.seam import DeviceCall, MachineAway, Machines

CALL = DeviceCall("GET", "/tenants")
DEADLINE_S = 60.0


async def started_twice(
    machines: Machines, device: str, machine: str, orders: tuple[bytes, bytes]
) -> None:
    """Start a device's server by an order, by the same order again, and by another one. The server
    that runs is adopted each time, and the next server begins with the last order.

    The orders name the tenants `a`, and `a` and `b`.
    """
    with pytest.raises(MachineAway):
        await machines.call(device, CALL)
    await machines.start(device, machine, orders[0])
    first = await serves(machines, device, "a")
    for order in orders:
        await machines.start(device, machine, order)
        assert await serves(machines, device, "a") == first
    missing = await machines.call(device, DeviceCall("GET", "/nothing"))
    assert missing.status == 404, "an answer of any status is an answer"
    os.kill(first, signal.SIGKILL)
    assert await serves(machines, device, "a", "b") != first


async def facts_kept(machines: Machines) -> None:
    """Put facts with and without `absent`, and read them by a prefix."""
    assert await machines.facts("seam:") == {}
    assert await machines.put("seam:a/1", b"first", absent=True)
    assert not await machines.put("seam:a/1", b"second", absent=True)
    assert await machines.facts("seam:") == {"seam:a/1": b"first"}
    assert await machines.put("seam:a/1", b"third")
    assert await machines.put("seam:b", b"")
    assert await machines.put("else", b"other")
    assert await machines.facts("seam:a") == {"seam:a/1": b"third"}
    assert await machines.facts("seam:") == {"seam:a/1": b"third", "seam:b": b""}
    puts = (machines.put("seam:c", bytes([n]), absent=True) for n in range(4))
    assert sorted(await asyncio.gather(*puts)) == [False, False, False, True]


async def news_told(
    machines: Machines,
    keep: Callable[[], Coroutine[Any, Any, None]],
    device: str,
    loses: Callable[[], None],
    returns: Callable[[], None],
    seen_s: float = 0.0,
) -> None:
    """Two listeners hear that a device is lost and back, once each and in this order. `keep` runs
    meanwhile, and sees all machines in `seen_s` seconds; `loses` and `returns` have the device lost
    and back.
    """

    async def hears() -> list[bool]:
        heard: list[bool] = []
        async for news in machines.news():
            assert news.device == device and news.why
            heard.append(news.is_there)
            if len(heard) == 1:
                lost.set()
            if len(heard) == 2:
                break
        return heard

    lost, keeping = asyncio.Event(), asyncio.create_task(keep())
    listeners = [asyncio.create_task(hears()) for _ in range(2)]
    try:
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.sleep(seen_s)
            loses()
            await lost.wait()
            returns()
            assert await asyncio.gather(*listeners) == [[False, True]] * 2
    finally:
        for task in (keeping, *listeners):
            task.cancel()
        with suppress(asyncio.CancelledError):
            await keeping


async def serves(machines: Machines, device: str, *tenants: str) -> int:
    """Process id of a device's server, once it has these tenants."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            with suppress(MachineAway):
                answer = await machines.call(device, CALL)
                assert answer.status == 200
                told = json.loads(answer.body)
                if sorted(one["name"] for one in told["tenants"]) == [*tenants]:
                    return int(told["server"]["pid"])
            await asyncio.sleep(0.1)
