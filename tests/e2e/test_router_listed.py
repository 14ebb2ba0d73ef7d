"""Routes of Ollama and llama-swap at the router: under keys, and with a slow supervisor."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from test_router import Site, run, serving
from test_router_keys import KEYS, bearer

import mirage
from mirage.control.roster.states import LifeState
from mirage.protocol import ModelShape, Report
from mirage.serve.access.forms import AccessTable

pytestmark = pytest.mark.e2e

SHAPE = ModelShape(8, 4096, 100, 8192, 2, 16, 9, 3, 8)
NAMES = {"/api/tags": ("models", "name"), "/api/ps": ("models", "name")}
NAMES["/running"] = ("running", "model")


async def told(site: Site, path: str, headers: dict[str, str] | None = None) -> Any:
    async with site.http.get(site.url + path, headers=headers) as answer:
        assert answer.status == 200
        return await answer.json()


async def listed(site: Site, path: str, headers: dict[str, str] | None = None) -> list[str]:
    key, field = NAMES[path]
    return [one[field] for one in (await told(site, path, headers))[key]]


def test_tools_see_what_is_served_and_what_is_loaded(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        site.registry.shapes["a"] = SHAPE
        site.registry.reports["a"] = Report(1, True, 77, 3, 2, 4, 1)
        await site.becomes("b/1", LifeState.SLEEPING)
        assert await told(site, "/api/version") == {"version": mirage.__version__}
        assert await listed(site, "/api/tags") == ["a", "b/1"]
        (one,) = (await told(site, "/api/ps"))["models"]
        assert (one["name"], one["size_vram"], one["size"]) == ("a", 77, 77 + 3 * 4096)
        assert await listed(site, "/running") == ["a"]
        async with site.http.post(site.url + "/api/ps") as answer:
            assert answer.status == 405
        assert not site.a.seen and not site.b.seen

    run(tmp_path, scenario)


def test_a_key_sees_its_tenants_alone(tmp_path: Path) -> None:
    opens = {"user": ["a"], "other": ["b/1"], "root": ["a", "b/1"], "prom": []}

    async def main() -> None:
        async with serving(tmp_path, AccessTable(tuple(KEYS.values()))) as site:
            for path in NAMES:
                for key, names in opens.items():
                    assert await listed(site, path, bearer(key)) == names, (path, key)
                async with site.http.get(site.url + path) as answer:
                    assert answer.status == 401

    asyncio.run(main())


def test_without_a_supervisor_sizes_are_missing_and_names_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(inner: object) -> None:
        raise aiohttp.ClientConnectionError

    monkeypatch.setattr("mirage.serve.router.inner.InnerClient.loaded", fails)

    async def scenario(site: Site) -> None:
        assert await listed(site, "/api/ps") == ["a", "b/1"]
        assert (await told(site, "/api/tags"))["models"][0]["size"] == 0

    run(tmp_path, scenario)
