"""Many connections and many bodies at one router, and its bounds for them."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from clients import connected, counted, limited, one_answer, refused
from test_router import Site, never, run
from yarl import URL

from mirage.serve.clients.connection import MOST_LINGERING
from mirage.units import KIB, MIB

pytestmark = pytest.mark.e2e

GET = b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n"


async def is_let_in(url: str, peer: str = "127.0.0.1") -> bool:
    """True if a connection from `peer` is served; False if it is answered that
    there are too many.
    """
    reader, writer = await connected(url, GET, peer)
    try:
        status, _, body = await one_answer(reader)
    finally:
        writer.close()
    if status == 503:
        assert json.loads(body)["error"]["code"] == "too_many_connections"
    return status == 200


async def in_the_end(url: str, peer: str = "127.0.0.1") -> None:
    """Connect from `peer` again and again until a connection is served, because another one has
    gone.
    """
    while not await is_let_in(url, peer):
        await asyncio.sleep(0.02)


def test_one_address_has_so_many_connections_and_another_one_as_well(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        kept = [await connected(site.url, GET) for _ in range(2)]
        for reader, _ in kept:
            assert (await one_answer(reader))[0] == 200
        status, error = await refused(await connected(site.url))
        assert (status, error["code"]) == (503, "too_many_connections")
        assert "of your address are open" in error["message"]
        assert await is_let_in(site.url, "127.0.0.2")
        kept[0][1].close()
        await in_the_end(site.url)
        kept[1][1].close()
        name = "mirage_http_connections_refused_total"
        while not (found := await told(site, name)):
            await asyncio.sleep(0.02)
        assert found['limit="peer"'] >= 1 and found['limit="all"'] == 0

    run(tmp_path, scenario, limited(connections_per_peer=2))


def test_who_is_refused_may_send_a_request_first_and_reads_why(tmp_path: Path) -> None:
    """Clients send head and body after the answer has come, before they read it."""

    async def scenario(site: Site) -> None:
        kept = await connected(site.url, GET)
        assert (await one_answer(kept[0]))[0] == 200
        late = [await connected(site.url) for _ in range(MOST_LINGERING)]
        over = [await connected(site.url) for _ in range(MOST_LINGERING)]
        for part in (b"POST /v1/completions HTTP/1.1\r\n", b"Content-Length: 9\r\n\r\n", b"x" * 9):
            await asyncio.sleep(0.05)
            for _, sends in late:
                sends.write(part)
                await sends.drain()
        for answer, sends in over:  # closed at once: there are as many as may wait
            assert (await one_answer(answer))[0] == 503
            with pytest.raises(OSError):
                for _ in range(3):
                    sends.write(b"x")
                    await sends.drain()
                    await asyncio.sleep(0.01)
        for one in late:
            status, error = await refused(one)
            assert (status, error["code"]) == (503, "too_many_connections")
        kept[1].close()
        await in_the_end(site.url)

    run(tmp_path, scenario, limited(connections_per_peer=1))


async def told(site: Site, name: str) -> dict[str, float]:
    """Values of a metric by label; empty while the router has no room for the
    connection that asks.
    """
    try:
        return await counted(site.http, site.url, name)
    except (OSError, asyncio.IncompleteReadError):
        return {}


def test_all_addresses_together_have_so_many_connections(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        kept = [await connected(site.url, GET, f"127.0.0.{n}") for n in (1, 2)]
        for reader, _ in kept:
            assert (await one_answer(reader))[0] == 200
        _, error = await refused(await connected(site.url, b"", "127.0.0.3"))
        assert error["message"].startswith("too many connections are open")
        kept[0][1].close()
        await in_the_end(site.url, "127.0.0.3")
        kept[1][1].close()

    run(tmp_path, scenario, limited(connections=2))


BYTES = "mirage_http_body_bytes"
LARGE = {"model": "a", "prompt": "x" * 700}
FULL = limited(body_bytes=1000)


async def given_up(*asking: asyncio.Task[Any]) -> None:
    """Cancel requests, as clients do that go away."""
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)


async def held(site: Site) -> asyncio.Task[object]:
    """Request whose large body has reached an engine that never answers."""
    site.a.answer = never
    asking = asyncio.create_task(site.post(LARGE).__aenter__())
    await site.a.begun.wait()
    return asking


def test_a_body_without_room_is_not_read(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        asking = await held(site)
        assert (await counted(site.http, site.url, BYTES))[""] == len(json.dumps(LARGE))
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 700\r\n\r\n"
        reader, writer = await connected(site.url, head)  # nothing of it is there
        status, headers, body = await one_answer(reader)
        error = json.loads(body)["error"]
        assert (status, headers["retry-after"]) == (503, "1")
        assert (error["code"], error["type"]) == ("no_room_for_body", "server_error")
        assert error["message"].startswith("no room for this body beside those of others")
        writer.close()
        async with site.post({"model": "b/1"}) as answer:
            assert answer.status == 200, "a small one has room"
        await given_up(asking)
        await site.a.cancelled.wait()
        while (await counted(site.http, site.url, BYTES))[""]:
            await asyncio.sleep(0.02)
        async with site.post(LARGE | {"model": "b/1"}) as answer:
            assert answer.status == 200
        assert await counted(site.http, site.url, "mirage_http_bodies_refused_total") == {"": 1.0}

    run(tmp_path, scenario, FULL)


async def pieces() -> object:
    for _ in range(8):
        yield b"x" * 100


def test_a_body_of_chunks_takes_room_as_it_comes(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        asking = await held(site)
        url = f"{site.url}/v1/completions"
        async with site.http.post(url, data=pieces()) as answer:
            assert answer.status == 503
        await given_up(asking)

    run(tmp_path, scenario, FULL)


def test_what_a_body_may_become_has_to_have_room(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        packed = {"headers": {"Content-Encoding": "gzip"}}
        large = gzip.compress(json.dumps(LARGE | {"prompt": "x" * 10_000}).encode())
        async with site.post(large, **packed) as answer:
            assert answer.status == 503
        assert not site.a.seen

    run(tmp_path, scenario, limited(body_bytes=20_000))


async def many_bodies(site: Site, count: int, bytes_each: int, fit: int) -> None:
    """Send `count` requests at once. `fit` of them, whose bodies have room, reach the engine; the
    others are refused with 503.
    """
    site.a.answer = never
    body = json.dumps({"model": "a", "prompt": "x" * bytes_each}).encode()

    async def ask() -> int:
        async with site.post(body) as answer:
            return answer.status

    asking = [asyncio.create_task(ask()) for _ in range(count)]
    refusals = count - fit
    while sum(task.done() for task in asking) < refusals or len(site.a.seen) < fit:
        assert (await counted(site.http, site.url, BYTES))[""] <= fit * len(body)
        await asyncio.sleep(0.05)
    assert [task.result() for task in asking if task.done()] == [503] * refusals
    assert len(site.a.seen) == fit
    async with site.post({"model": "b/1"}) as answer:
        assert answer.status == 200
    await given_up(*asking)


def test_bodies_beyond_the_budget_reach_no_engine(tmp_path: Path) -> None:
    room = limited(body_bytes=10 * 100_100)
    run(tmp_path, lambda site: many_bodies(site, 40, 100_000, 10), room)


def memory(pid: int, field: str) -> int:
    """Bytes in a memory field of a process's /proc status, such as the present size or the largest
    so far.
    """
    found = re.search(rf"^{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.M)
    assert found is not None
    return int(found[1]) * KIB


async def sent(url: str, body: bytes) -> int:
    """Status of the answer to a body; 0 without an answer. This process has one copy of the body
    for all senders.
    """
    address = URL(url)
    loop = asyncio.get_running_loop()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.socket() as client:
        client.setblocking(False)
        await loop.sock_connect(client, (address.host, address.port))
        with contextlib.suppress(ConnectionError):  # it may be answered, and closed, before
            await loop.sock_sendall(client, head.encode())
            await loop.sock_sendall(client, body)
        answer = await loop.sock_recv(client, 100)
    return int(answer.split()[1]) if answer else 0


@pytest.mark.slow
@pytest.mark.parametrize("reads", [True, False], ids=["an engine that reads", "one that does not"])
def test_a_hundred_bodies_take_no_more_memory_than_is_for_bodies(
    tmp_path: Path, reads: bool
) -> None:
    budget, body = 128 * MIB, json.dumps({"model": "a", "prompt": "x" * 8 * MIB}).encode()
    fit = budget // len(body)

    async def main() -> None:
        async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while reads and await reader.read(MIB):
                pass
            await over.wait()
            writer.close()

        path = tmp_path / "engine.sock"
        over = asyncio.Event()
        server = await asyncio.start_unix_server(engine, path)
        alone = await asyncio.create_subprocess_exec(
            sys.executable, Path(__file__).with_name("router_alone.py"), path, str(budget),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert alone.stdin is not None and alone.stdout is not None
        url = (await alone.stdout.readline()).decode().strip()
        before = memory(alone.pid, "VmRSS")
        asking = [asyncio.create_task(sent(url, body)) for _ in range(100)]
        while sum(task.done() for task in asking) < 100 - fit:
            await asyncio.sleep(0.1)
        assert [task.result() for task in asking if task.done()] == [503] * (100 - fit)
        grown = memory(alone.pid, "VmHWM") - before
        print(f"{grown / MIB:.0f} MiB for a budget of {budget / MIB:.0f} MiB")
        assert grown <= 1.2 * budget + 64 * MIB  # sockets' buffers of those that were refused
        await given_up(*asking)
        alone.stdin.close()
        await alone.wait()
        over.set()
        server.close()

    asyncio.run(main())
