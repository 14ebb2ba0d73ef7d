"""Requests of web pages of other origins to the router, as a browser sends them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from test_router import EVENTS, Site, serving, slow_stream
from test_router_keys import TABLE, bearer

from mirage.config import HttpSection
from mirage.serve.access.forms import AccessTable
from mirage.serve.routed.resizing import ROUTE, Resize

pytestmark = pytest.mark.e2e

PAGE, OTHER = "https://chat.example", "https://evil.example"
ALLOW = "Access-Control-Allow-Origin"


def run(
    folder: Path,
    scenario: Callable[[Site], Awaitable[None]],
    *origins: str,
    table: AccessTable = TABLE,
) -> None:
    async def resize(wanted: Resize) -> None: ...

    async def main() -> None:
        async with serving(folder, table, resize, HttpSection(cors=list(origins))) as site:
            await scenario(site)

    asyncio.run(main())


async def preflight(site: Site, path: str, origin: str) -> tuple[int, dict[str, str]]:
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,x-stainless-os",
    }
    async with site.http.options(site.url + path, headers=headers) as answer:
        return answer.status, dict(answer.headers)


def test_a_browser_asks_without_a_key_and_is_told(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        for path in ("/v1/chat/completions", "/v1/models", "/v1/models/b/1", "/v1/messages"):
            status, headers = await preflight(site, path, PAGE)
            assert (status, headers[ALLOW], headers["Vary"]) == (204, PAGE, "Origin")
            assert headers["Access-Control-Allow-Headers"] == "authorization,x-stainless-os"
            assert headers["Access-Control-Allow-Methods"] == "GET, POST"
            assert not any("Credentials" in name for name in headers)
            status, headers = await preflight(site, path, OTHER)
            assert status in (401, 405) and ALLOW not in headers and "Vary" in headers
        for path in (ROUTE, "/health", "/metrics", "/mirage/state", "/live", "/nowhere", "/sleep"):
            status, headers = await preflight(site, path, PAGE)
            assert status in (401, 404, 405) and ALLOW not in headers

    run(tmp_path, scenario, "http://localhost:3000", PAGE)


def test_answers_are_for_the_page_streams_and_refusals_too(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        site.a.answer = slow_stream
        site.a.go_on.set()
        async with site.post({"model": "a"}, headers=bearer("user") | {"Origin": PAGE}) as answer:
            assert await answer.read() == b"".join(EVENTS)
            assert (answer.status, answer.headers[ALLOW]) == (200, PAGE)
        for headers, status in ({}, 401), (bearer("other"), 404):
            async with site.post({"model": "a"}, headers=headers | {"Origin": PAGE}) as answer:
                assert (answer.status, answer.headers[ALLOW]) == (status, PAGE)
        for own in ({}, {"Origin": OTHER}):
            async with site.post({"model": "a"}, headers=bearer("user") | own) as answer:
                assert answer.status == 200 and ALLOW not in answer.headers

    run(tmp_path, scenario, PAGE)


def test_any_origin_may_be_let_in_but_not_to_the_servers_own(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        assert (await preflight(site, "/v1/completions", OTHER))[0] == 204
        headers = bearer("root") | {"Origin": OTHER, "Content-Type": "application/json"}
        async with site.http.post(site.url + ROUTE, headers=headers, data=b"{}") as answer:
            assert ALLOW not in answer.headers

    run(tmp_path, scenario, "*")


def test_nobody_is_let_in_by_default(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        status, headers = await preflight(site, "/v1/completions", PAGE)
        assert status == 405 and ALLOW not in headers and "Vary" not in headers

    run(tmp_path, scenario, table=AccessTable())
