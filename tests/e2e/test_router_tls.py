"""TLS at the router: accepted and refused clients, and the limits of clients."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvloop
from certified import Certified
from clients import Connection, connected, counted, limited, one_answer, refused
from test_router import EVENTS, Site, serving, slow_stream
from yarl import URL

pytestmark = pytest.mark.e2e

GET = b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n"
HANDSHAKES = "mirage_http_handshakes_failed_total"
Scenario = Callable[[Site, Certified], Awaitable[None]]


@pytest.fixture(autouse=True)
def little_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirage.serve.clients.connection.GRACE_S", 0.1)


def run(folder: Path, scenario: Scenario, **limits: object) -> None:
    """Run `scenario` with a router with TLS, in the kind of event loop that the router's process
    has (uvloop).
    """
    certified = Certified(folder)

    async def main() -> None:
        http = limited(tls=certified.section, **limits)
        async with serving(folder, http=http) as site:
            async with asyncio.timeout(120):
                await scenario(site, certified)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def believing(client: ssl.SSLContext) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=client))


async def secured(site: Site, client: ssl.SSLContext, data: bytes = b"") -> Connection:
    """A connection whose handshake has ended, over which `data` was sent."""
    url = URL(site.url)
    reader, writer = await asyncio.open_connection(url.host, url.port, ssl=client)
    writer.write(data)
    return reader, writer


async def failed(site: Site, certified: Certified) -> dict[str, float]:
    """Counts of failed handshakes by reason, without those that are 0."""
    async with believing(certified.client) as http:
        found = await counted(http, site.url, HANDSHAKES)
    return {label: number for label, number in found.items() if number}


async def until_failed(site: Site, certified: Certified, why: str) -> None:
    while await failed(site, certified) != {f'why="{why}"': 1.0}:
        await asyncio.sleep(0.05)


def test_a_request_and_a_stream(tmp_path: Path) -> None:
    async def scenario(site: Site, certified: Certified) -> None:
        site.a.answer = slow_stream
        async with believing(certified.client) as http:
            async with http.get(f"{site.url}/v1/models") as answer:
                assert answer.status == 200
                assert [m["id"] for m in (await answer.json())["data"]] == ["a", "b/1"]
            body: dict[str, Any] = {"model": "a", "stream": True}
            async with http.post(f"{site.url}/v1/completions", json=body) as answer:
                assert await answer.content.readuntil(b"\n\n") == EVENTS[0]
                site.a.go_on.set()
                assert await answer.read() == b"".join(EVENTS[1:])

    run(tmp_path, scenario)


def test_a_large_body(tmp_path: Path) -> None:
    async def scenario(site: Site, certified: Certified) -> None:
        async with believing(certified.client) as http:
            body = {"model": "a", "prompt": "x" * 1_000_000}
            async with http.post(f"{site.url}/v1/completions", json=body) as answer:
                assert await answer.json() == {"served_by": "a"}

    run(tmp_path, scenario)


def test_many_connections_at_once(tmp_path: Path) -> None:
    async def scenario(site: Site, certified: Certified) -> None:
        async def one() -> None:
            reader, writer = await secured(site, certified.client, GET)
            assert (await one_answer(reader))[0] == 200
            writer.close()

        await asyncio.gather(*(one() for _ in range(50)))

    run(tmp_path, scenario)


def test_another_authority_is_not_believed(tmp_path: Path) -> None:
    async def scenario(site: Site, certified: Certified) -> None:
        async with believing(ssl.create_default_context()) as http:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await http.get(f"{site.url}/live")
        await until_failed(site, certified, "gone")

    run(tmp_path, scenario)


def test_old_tls_is_refused(tmp_path: Path) -> None:
    async def scenario(site: Site, certified: Certified) -> None:
        old = certified.client
        with pytest.warns(DeprecationWarning):
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        old.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.raises(OSError):
            await secured(site, old)
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        reader, writer = await secured(site, old, GET)
        assert writer.get_extra_info("ssl_object").version() == "TLSv1.2"
        assert (await one_answer(reader))[0] == 200
        writer.close()
        await until_failed(site, certified, "refused")

    run(tmp_path, scenario)


def test_plain_http_is_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(site: Site, certified: Certified) -> None:
        reader, writer = await connected(site.url, GET)
        assert b"HTTP" not in await reader.read()
        writer.close()
        await until_failed(site, certified, "plain")

    with caplog.at_level(logging.WARNING):
        run(tmp_path, scenario)
    (line,) = caplog.records
    assert line.getMessage() == (
        "TLS handshakes that failed: 1, last of 127.0.0.1: plain HTTP where TLS is spoken, "
        "use https"
    )
    assert line.exc_info is None


def test_a_handshake_that_does_not_come_is_late(tmp_path: Path) -> None:
    async def scenario(site: Site, certified: Certified) -> None:
        reader, writer = await connected(site.url)
        assert await reader.read() == b""
        writer.close()
        await until_failed(site, certified, "late")

    run(tmp_path, scenario, head_s=0.5)


def test_who_looks_whether_the_port_is_open_is_worth_no_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(site: Site, certified: Certified) -> None:
        _, writer = await connected(site.url)
        writer.close()
        await until_failed(site, certified, "gone")

    run(tmp_path, scenario)
    assert not caplog.records


def test_connections_count_before_their_handshake(tmp_path: Path) -> None:
    async def scenario(site: Site, certified: Certified) -> None:
        waiting = [await connected(site.url) for _ in range(2)]
        with pytest.raises(OSError):
            await secured(site, certified.client)
        for _, writer in waiting:
            writer.close()
        while True:
            try:
                reader, writer = await secured(site, certified.client, GET)
                break
            except OSError:
                await asyncio.sleep(0.05)
        assert (await one_answer(reader))[0] == 200
        writer.close()

    run(tmp_path, scenario, connections=2)


def test_a_connection_is_counted_once(tmp_path: Path) -> None:
    async def scenario(site: Site, certified: Certified) -> None:
        async with believing(certified.client) as http:
            found = await counted(http, site.url, "mirage_http_connections")
        assert found == {"": 1.0}

    run(tmp_path, scenario, connections=1)


@pytest.mark.slow
def test_heads_and_bodies_have_their_times(tmp_path: Path) -> None:
    async def scenario(site: Site, certified: Certified) -> None:
        head = await refused(await secured(site, certified.client, GET[:-2] + b"X-More: "))
        assert head[0] == 408
        post = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{"
        assert (await refused(await secured(site, certified.client, post)))[0] == 408
        reader, writer = await secured(site, certified.client)
        assert await reader.read() == b""
        writer.close()

    run(tmp_path, scenario, head_s=0.5, body_s=0.5)


def test_a_handshake_that_hangs_keeps_no_router(tmp_path: Path) -> None:
    async def scenario(site: Site, certified: Certified) -> None:
        await connected(site.url)
        await secured(site, certified.client)

    run(tmp_path, scenario)
