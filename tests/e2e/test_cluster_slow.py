"""Servers and engines of a cluster that start slowly, or never: all others go on without them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from told_machines import Controlled

pytestmark = pytest.mark.e2e

SOON_S = 60.0
"""Most seconds for events that must not wait for `placement.start_s`, which is ten minutes."""
DEVICES = [{"name": f"d{n}", "machine": f"m{n}", "memory": f"{4 * n}MiB"} for n in (1, 2, 3)]


def three(folder: Path, *places: str) -> Controlled:
    """Controller of three machines. `places` are such as ``a1``: tenant a on device d1."""
    own: dict[str, Any] = {"model": "model", "max_model_len": 128, "share": 20}
    tenants = [{"name": at[0], "device": f"d{at[1]}", **own} for at in places]
    one = Controlled(folder, devices=DEVICES, tenants=tenants)
    one.machines.host["m3"] = 0
    return one


@asynccontextmanager
async def kept(one: Controlled) -> AsyncIterator[None]:
    """The controller at work, until the block ends."""
    async with asyncio.timeout(SOON_S):
        await one.controller.begin()
    work = asyncio.create_task(one.controller.keep())
    try:
        yield
    finally:
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work


async def soon(is_so: Callable[[], bool], one: Controlled) -> None:
    try:
        async with asyncio.timeout(SOON_S):
            while not is_so():
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"{on(one)}, {one.lines}") from None


def on(one: Controlled) -> dict[str, list[str]]:
    """Names of the tenants that each running server serves."""
    served = one.machines.served.items()
    return {name: sorted(t["name"] for t in raw["tenants"]) for name, raw in served}


def places(one: Controlled, model: str) -> list[str]:
    return [device for device, names in on(one).items() if model in names]


def serves(one: Controlled, model: str) -> bool:
    """True if the controller has printed that a moved model serves."""
    return any(line.startswith(f"route {model} on ") and "done" in line for line in one.lines)


@pytest.mark.parametrize(
    ("name", "path"),
    [("d1", ""), ("d1", "/config"), ("d1", "/tenants"), ("router@m1", ""), ("router@m1", "/order")],
)
def test_a_server_that_hangs_holds_up_no_other(tmp_path: Path, name: str, path: str) -> None:
    async def run() -> None:
        one = three(tmp_path, "a1", "b2", "c3")
        one.machines.hangs = {(name, path)}
        async with kept(one):
            await soon(lambda: {"d2", "d3", "router@m2"} <= one.machines.orders.keys(), one)
            await soon(lambda: on(one).get("d2") == ["b"] and on(one).get("d3") == ["c"], one)
            one.machines.gone = {"m2"}
            await soon(lambda: any(at in ("d1", "d3") for at in places(one, "b")), one)
            one.machines.hangs = set()
            await soon(lambda: places(one, "a") == ["d1"] and name in one.machines.orders, one)

    asyncio.run(run())


def test_an_engine_that_does_not_start_holds_up_no_other(tmp_path: Path) -> None:
    """The models `a` and `d` of the lost machine m1 come to other devices, where the engine of `a`
    does not get ready: `d` serves, and after the loss of m2 its model `b` as well.
    """

    async def run() -> None:
        one = three(tmp_path, "a1", "d1", "b2", "c3")
        one.machines.starts_on = {("a", "d2"), ("a", "d3")}
        async with kept(one):
            await soon(lambda: len(on(one)) == 3, one)
            one.machines.gone = {"m1"}
            await soon(lambda: serves(one, "d"), one)
            assert len(places(one, "a")) == 2 and not serves(one, "a")
            one.machines.gone = {"m1", "m2"}
            await soon(lambda: serves(one, "b"), one)
            one.machines.starts_on = set()
            await soon(lambda: serves(one, "a"), one)
            assert {"a", "b", "d"} <= {*on(one)["d3"]}
            one.machines.gone = set()
            await soon(lambda: on(one) == {"d1": ["a", "d"], "d2": ["b"], "d3": ["c"]}, one)

    asyncio.run(run())


def test_a_file_is_applied_while_an_engine_does_not_start(tmp_path: Path) -> None:
    async def run() -> None:
        one = three(tmp_path, "a1", "b2", "c3")
        one.machines.starts_on = {("a", "d2"), ("a", "d3")}
        async with kept(one):
            await soon(lambda: len(on(one)) == 3, one)
            one.machines.gone = {"m1"}
            await soon(lambda: len(places(one, "a")) == 2, one)
            one.writes(http={"head_s": 3})
            async with asyncio.timeout(SOON_S):
                assert "http.head_s: changed, at once" in await one.apply()
            assert len(places(one, "a")) == 2, "it still is to come there"

    asyncio.run(run())
