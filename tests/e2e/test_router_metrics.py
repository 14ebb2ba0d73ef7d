"""vLLM's metrics of each engine in the server's own `/metrics`, also if engines misbehave."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families
from routed import Routed, routed

from mirage.config import Policy
from mirage.control.roster.states import LifeState
from mirage.serve.registry.registry import Registry, TenantServer
from mirage.serve.router.engine_metrics import MOST_BYTES
from mirage.serve.routing import inner

pytestmark = pytest.mark.e2e

WAIT_S = 60
TEXT = """\
# HELP vllm:num_requests_running Requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="{name}"}} {count}
# HELP http_requests_total Answers
# TYPE http_requests_total counter
http_requests_total{{status="2xx"}} {count}
"""


class MetricsEngine:
    """Fake server of one tenant. It answers a scrape once the event `may` is set, and counts
    scrapes.
    """

    def __init__(self, name: str, socket: Path) -> None:
        self.name, self.socket, self.count, self.status = name, socket, 0, 200
        self.may = asyncio.Event()
        self.may.set()
        self.asked = asyncio.Event()

    async def metrics(self, request: web.Request) -> web.Response:
        self.count += 1
        self.asked.set()
        await self.may.wait()
        text = TEXT.format(name=self.name, count=self.count)
        return web.Response(text=text, status=self.status)

    async def answers(self, request: web.Request) -> web.StreamResponse:
        return await self.metrics(request)

    @contextlib.asynccontextmanager
    async def serves(self) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_get("/metrics", self.answers)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.UnixSite(runner, str(self.socket)).start()
        try:
            yield
        finally:
            await runner.cleanup()


class Site(NamedTuple):
    """A router for the engines `a` and `b`."""

    routed: Routed
    registry: Registry
    http: aiohttp.ClientSession
    a: MetricsEngine
    b: MetricsEngine

    async def becomes(self, name: str, state: LifeState) -> None:
        self.registry.backends[name].state = state
        await self.routed.desk.seen()

    async def text(self) -> str:
        async with self.http.get(self.routed.url + "/metrics") as answer:
            assert answer.status == 200
            return await answer.text()

    async def running(self) -> dict[str, float]:
        """Value of a metric of each engine, by model, from the router's whole answer."""
        found = list(text_string_to_metric_families(await self.text()))
        assert len({one.name for one in found}) == len(found), "families stand together"
        both = {"vllm:num_requests_running", "http_requests_total"}
        told = [one for family in found for one in family.samples if one.name in both]
        by_model = {one.labels["model_name"]: one.value for one in told}
        assert len(told) == 2 * len(by_model)
        return by_model


def run(folder: Path, scenario: Callable[[Site], Awaitable[None]]) -> None:
    async def main() -> None:
        engines = [MetricsEngine(name, folder / f"{name}.sock") for name in "ab"]
        backends = {e.name: TenantServer(e.name, e.socket, 256, LifeState.READY) for e in engines}
        registry = Registry(Policy.MIRAGE, 1 << 30, backends)
        async with contextlib.AsyncExitStack() as stack:
            for engine in engines:
                await stack.enter_async_context(engine.serves())
            one = await stack.enter_async_context(routed(folder, registry))
            http = await stack.enter_async_context(aiohttp.ClientSession())
            async with asyncio.timeout(WAIT_S):
                await scenario(Site(one, registry, http, *engines))

    asyncio.run(main())


@pytest.fixture
def asked_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every scrape ask the engines again, because no earlier answer is fresh enough."""
    monkeypatch.setattr("mirage.serve.router.asked_source.FRESH_S", 0.0)


def test_each_engine_is_told_under_its_tenant(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        assert await site.running() == {"a": 1, "b": 1}
        assert 'mirage_engine_metrics_age_seconds{tenant="b"}' in await site.text()

    run(tmp_path, scenario)


def test_many_scrapes_ask_engines_and_supervisor_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, rendered = [], inner.rendered
    monkeypatch.setattr(inner, "rendered", lambda *told: made.append(1) or rendered(*told))
    monkeypatch.setattr("mirage.serve.router.asked_source.FRESH_S", 1000.0)

    async def scenario(site: Site) -> None:
        texts = await asyncio.gather(*(site.text() for _ in range(50)))
        assert all("mirage_supervisor_up 1.0" in one for one in texts)
        assert (site.a.count, site.b.count, len(made)) == (1, 1, 1)

    run(tmp_path, scenario)


def test_one_that_is_silent_keeps_its_last_answer_and_nobody_waits(
    tmp_path: Path, asked_always: None
) -> None:
    async def scenario(site: Site) -> None:
        assert await site.running() == {"a": 1, "b": 1}
        site.a.may.clear()
        site.a.asked.clear()
        assert await site.running() == {"a": 1, "b": 2}
        await site.a.asked.wait()
        assert [await site.running() for _ in range(3)] == [{"a": 1, "b": b} for b in (3, 4, 5)]
        assert site.a.count == 2, "it is not asked again while it owes an answer"
        site.a.may.set()
        while (await site.running())["a"] < 3:
            await asyncio.sleep(0.01)

    run(tmp_path, scenario)


def test_one_that_never_answered_keeps_nothing_back(tmp_path: Path, asked_always: None) -> None:
    async def scenario(site: Site) -> None:
        site.a.may.clear()
        assert await site.running() == {"b": 1}
        assert await site.running() == {"b": 2}

    run(tmp_path, scenario)


@pytest.mark.parametrize("state", [LifeState.DOWN, LifeState.STOPPED, LifeState.FAILED])
def test_one_that_has_gone_is_told_no_more(
    tmp_path: Path, asked_always: None, state: LifeState
) -> None:
    async def scenario(site: Site) -> None:
        assert await site.running() == {"a": 1, "b": 1}
        await site.becomes("a", state)
        assert await site.running() == {"b": 2}
        await site.becomes("a", LifeState.SLEEPING)
        assert await site.running() == {"a": 2, "b": 3}

    run(tmp_path, scenario)


def test_one_that_fails_is_left_out(tmp_path: Path, asked_always: None) -> None:
    async def scenario(site: Site) -> None:
        site.a.status = 500
        assert await site.running() == {"b": 1}
        site.a.status = 200
        assert await site.running() == {"a": 2, "b": 2}

    run(tmp_path, scenario)


def test_one_that_never_ends_its_answer_is_left_out_and_cut_off(
    tmp_path: Path, asked_always: None
) -> None:
    sent, cut = 0, asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        part = b"# HELP x More\n# TYPE x gauge\nx 1\n" * 2000
        try:
            while sent < 64 * MOST_BYTES:
                await response.write(part)
                sent += len(part)
        finally:
            cut.set()
        return response

    async def scenario(site: Site) -> None:
        site.a.metrics = endless  # type: ignore[method-assign]
        assert await site.running() == {"b": 1}
        await cut.wait()
        assert sent < 8 * MOST_BYTES
        assert await site.running() == {"b": 2}

    run(tmp_path, scenario)
