"""The live page and its overview at the router: the keys that may see them, and their cost."""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path

import pytest
from test_router import Site, serving
from test_router_keys import TABLE, bearer

from mirage.config import HttpSection
from mirage.serve.access.forms import NO_KEYS, AccessTable
from mirage.serve.routed.resizing import Resize

pytestmark = pytest.mark.e2e

PAGE, OVERVIEW = "/mirage", "/mirage/overview"
VIEWERS = 40


class Told:
    """Stand-in for the supervisor: it counts how often the router asks for the overview, with
    failures' reasons and without.
    """

    def __init__(self) -> None:
        self.asked: list[bool] = []

    async def __call__(self, *, reasons: bool) -> bytes:
        self.asked.append(reasons)
        return b'{"reasons": %s}' % str(reasons).lower().encode()


def run(
    folder: Path,
    scenario: Callable[[Site, Told], Awaitable[None]],
    table: AccessTable = NO_KEYS,
    *origins: str,
) -> None:
    async def resize(wanted: Resize) -> None: ...

    async def main() -> None:
        told = Told()
        http = HttpSection(cors=list(origins))
        async with serving(folder, table, resize, http, told) as site:
            await scenario(site, told)

    asyncio.run(main())


def test_the_page_is_one_file_that_may_run_its_own_script_alone(tmp_path: Path) -> None:
    async def scenario(site: Site, told: Told) -> None:
        async with site.http.get(site.url + PAGE) as answer:
            page, headers = await answer.text(), answer.headers
        assert headers["Content-Type"] == "text/html; charset=utf-8"
        policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
        assert policy["default-src"] == "'none'" and policy["connect-src"] == "'self'"
        for tag in ("script", "style"):
            (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
            digest = b64encode(sha256(text.encode()).digest()).decode()
            assert policy[f"{tag}-src"] == f"'sha256-{digest}'"
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert not re.search(r"https?://|localStorage|innerHTML|document\.cookie|\son\w+=", page)
        assert not told.asked

    run(tmp_path, scenario)


def test_the_page_needs_no_key_and_its_overview_an_operators(tmp_path: Path) -> None:
    async def scenario(site: Site, told: Told) -> None:
        async with site.http.get(site.url + PAGE) as answer:
            assert answer.status == 200
        for headers, status in (({}, 401), (bearer("user"), 403), (bearer("root"), 200)):
            async with site.http.get(site.url + OVERVIEW, headers=headers) as answer:
                assert answer.status == status
        assert len(told.asked) == 1

    run(tmp_path, scenario, TABLE)


def test_viewers_cost_the_supervisor_nothing_each(tmp_path: Path) -> None:
    async def scenario(site: Site, told: Told) -> None:
        async def looks() -> str:
            async with site.http.get(site.url + OVERVIEW) as answer:
                assert answer.headers["Cache-Control"] == "no-store"
                return await answer.text()

        found = await asyncio.gather(*(looks() for _ in range(VIEWERS)))
        assert set(found) == {'{"reasons": true}'}
        assert len(told.asked) < VIEWERS / 4, "once a second at most"

    run(tmp_path, scenario)


def test_reasons_are_for_this_machine_and_for_operators_keys(tmp_path: Path) -> None:
    far = {"X-Forwarded-For": "1.2.3.4"}

    async def scenario(site: Site, told: Told) -> None:
        for headers, reasons in ((far, False), ({}, True), (far | bearer("root"), False)):
            async with site.http.get(site.url + OVERVIEW, headers=headers) as answer:
                assert (await answer.json()) == {"reasons": reasons}

    async def with_keys(site: Site, told: Told) -> None:
        async with site.http.get(site.url + OVERVIEW, headers=far | bearer("root")) as answer:
            assert (await answer.json()) == {"reasons": True}

    run(tmp_path, scenario)
    (tmp_path / "keys").mkdir()
    run(tmp_path / "keys", with_keys, TABLE)


def test_pages_of_other_origins_read_no_overview(tmp_path: Path) -> None:
    origin = "https://chat.example"

    async def scenario(site: Site, told: Told) -> None:
        for path in (PAGE, OVERVIEW):
            async with site.http.get(site.url + path, headers={"Origin": origin}) as answer:
                assert answer.status == 200
                assert "Access-Control-Allow-Origin" not in answer.headers

    run(tmp_path, scenario, NO_KEYS, origin)


def test_without_a_supervisor_the_page_is_there_and_its_overview_says_so(tmp_path: Path) -> None:
    async def scenario(site: Site, told: Told) -> None:
        (tmp_path / "inner.sock").unlink()
        async with site.http.get(site.url + PAGE) as answer:
            assert answer.status == 200
        async with site.http.get(site.url + OVERVIEW) as answer:
            assert answer.status == 503 and answer.headers["Retry-After"] == "1"
            assert (await answer.json())["error"]["code"] == "supervisor_away"

    run(tmp_path, scenario)
