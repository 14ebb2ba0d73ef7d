"""The router between real sockets: clients on one side, strict fake engines on the other."""

import asyncio
import contextlib
import json
import threading
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from multidict import CIMultiDict
from routed import Routed, no_overview, no_resize, routed
from yarl import URL

from mirage.config import HttpSection, Policy
from mirage.control.roster.states import LifeState
from mirage.protocol import ModelShape, Report
from mirage.serve.access.forms import NO_KEYS, AccessTable
from mirage.serve.api.routes import FORM_ROUTES, JSON_ROUTES
from mirage.serve.registry.registry import Registry, TenantServer
from mirage.serve.routed.resizing import Resize
from mirage.serve.router.app import Router
from mirage.serve.routing.inner import Overview

pytestmark = pytest.mark.e2e

EVENTS = [b'data: {"n": 1}\n\n', b'data: {"n": 2}\n\n', b"data: [DONE]\n\n"]
SENT = {"X-Request-Id": "one", "Keep-Alive": "timeout=5", "TE": "trailers"}
WAIT_S = 60


@dataclass
class FakeEngine:
    """Fake of one tenant's vLLM server. `violations` collects what a router must not send to it."""

    name: str
    socket: Path
    seen: list[dict[str, object]] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    adapters: tuple[str, ...] = ()
    answer: Callable[["FakeEngine", web.Request], Awaitable[web.StreamResponse]] | None = None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        content = await request.read()
        is_form = request.content_type == "multipart/form-data"
        try:
            body = {"form": content} if is_form else json.loads(content)
        except RecursionError:  # as vLLM, which begins with another stack than the router
            return await refuses(self, request)
        if not is_form and body.get("model") not in (self.name, *self.adapters):
            self.violations.append(f"{self.name} was sent a request for {body.get('model')}")
        for header in ("Upgrade", "Keep-Alive", "Proxy-Authorization", "TE"):
            if header in request.headers:
                self.violations.append(f"hop-by-hop header {header} came through")
        self.seen.append({"path": request.path, "body": body, "headers": dict(request.headers)})
        assert self.answer is not None
        return await self.answer(self, request)


async def plain(engine: FakeEngine, request: web.Request) -> web.StreamResponse:
    return web.json_response({"served_by": engine.name}, headers={"X-Engine": engine.name})


async def slow_stream(engine: FakeEngine, request: web.Request) -> web.StreamResponse:
    """Answer of a fake engine: its first event, and the others once `go_on` is set."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    await response.write(EVENTS[0])
    engine.begun.set()
    try:
        await engine.go_on.wait()
    except asyncio.CancelledError:
        engine.cancelled.set()
        raise
    for event in EVENTS[1:]:
        await response.write(event)
    await response.write_eof()
    return response


async def never(engine: FakeEngine, request: web.Request) -> web.StreamResponse:
    """Answer of a fake engine that accepts a request and never sends anything."""
    engine.begun.set()
    try:
        await asyncio.Event().wait()
    finally:
        engine.cancelled.set()
    return web.Response()


async def dies_in_mid_stream(engine: FakeEngine, request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(EVENTS[0])
    await engine.go_on.wait()
    assert request.transport is not None
    request.transport.abort()
    return response


async def dies_at_once(engine: FakeEngine, request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def refuses(engine: FakeEngine, request: web.Request) -> web.StreamResponse:
    return web.json_response({"error": {"message": "too long", "code": 400}}, status=400)


@dataclass
class Site:
    """A running router and two fake engines, `a` and `b/1`."""

    http: aiohttp.ClientSession
    registry: Registry
    routed: Routed
    a: FakeEngine
    b: FakeEngine

    @property
    def url(self) -> str:
        return self.routed.url

    @property
    def router(self) -> Router:
        return self.routed.router

    async def becomes(self, name: str, state: LifeState) -> None:
        """Set a tenant's state, and wait until the router has seen it."""
        self.registry.backends[name].state = state
        await self.seen()

    async def seen(self) -> None:
        """Wait until the router has the registry's present table."""
        await self.routed.desk.seen()

    def post(self, body: object, path: str = "/v1/completions", **kwargs: object):  # type: ignore[no-untyped-def]
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **kwargs.pop("headers", {})}  # type: ignore[dict-item]
        return self.http.post(self.url + path, data=data, headers=headers, **kwargs)


@contextlib.asynccontextmanager
async def serving(
    folder: Path,
    access: AccessTable = NO_KEYS,
    resize: Callable[[Resize], Awaitable[None]] = no_resize,
    http: HttpSection | None = None,
    overview: Overview = no_overview,
    limit_s: float | None = WAIT_S,
) -> AsyncIterator[Site]:
    engines = [FakeEngine("a", folder / "0.sock"), FakeEngine("b/1", folder / "1.sock")]
    registry = Registry(
        Policy.MIRAGE,
        1 << 30,
        {e.name: TenantServer(e.name, e.socket, 256, LifeState.READY) for e in engines},
    )
    async with contextlib.AsyncExitStack() as stack:
        for engine in engines:
            engine.answer = plain
            app = web.Application()
            app.router.add_post("/{rest:.*}", engine.handle)
            runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.UnixSite(runner, str(engine.socket)).start()
        one = await stack.enter_async_context(
            routed(folder, registry, access=access, resize=resize, http=http, overview=overview)
        )
        session = await stack.enter_async_context(aiohttp.ClientSession())
        async with asyncio.timeout(limit_s):
            yield Site(session, registry, one, *engines)
    assert [e.violations for e in engines] == [[], []]


def run(
    folder: Path,
    scenario: Callable[[Site], Awaitable[None]],
    http: HttpSection | None = None,
) -> None:
    async def main() -> None:
        async with serving(folder, http=http) as site:
            await scenario(site)

    asyncio.run(main())


@pytest.mark.parametrize("path", JSON_ROUTES)
def test_requests_go_where_the_model_says(tmp_path: Path, path: str) -> None:
    async def scenario(site: Site) -> None:
        for engine in (site.a, site.b):
            body = {"model": engine.name, "prompt": "é", "stream": False}
            async with site.post(body, path, headers=SENT) as answer:
                assert answer.status == 200
                assert answer.headers["X-Engine"] == engine.name
                assert await answer.json() == {"served_by": engine.name}
            (seen,) = engine.seen
            assert (seen["path"], seen["body"]) == (path, body)
            assert CIMultiDict(seen["headers"])["X-Request-Id"] == "one"  # type: ignore[arg-type]

    run(tmp_path, scenario)


OF_CLIENTS = {
    "Authorization": "Bearer x",
    "X-Api-Key": "x",
    "Api-Key": "x",
    "Cookie": "session=x",
    "X-Forwarded-For": "10.0.0.7",
    "X-Forwarded-Host": "evil.example",
    "Forwarded": "for=10.0.0.7",
    "X-Real-IP": "10.0.0.7",
    "Via": "1.1 proxy",
    "Origin": "http://evil.example",
    "Referer": "http://evil.example/",
    "X-data-parallel-rank": "3",
    "X-Nobody-Knows": "x",
    "Proxy-Authorization": "Basic x",
    "Proxy-Connection": "keep-alive",
    "Traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "Connection": "close, traceparent",
}
GOES_ON = {
    "Accept": "text/event-stream",
    "Anthropic-Version": "2023-06-01",
    "Anthropic-Beta": "tools",
    "Tracestate": "a=b",
    "User-Agent": "me/1",
    "X-Request-Id": "one",
    "X-Session-Id": "two",
    "X-Vllm-Priority": "3",
    "Endpoint-Load-Metrics-Format": "json",
    "Content-Type": "application/json",
}


def test_only_wanted_headers_go_on_to_an_engine(tmp_path: Path) -> None:
    """Keys, cookies, headers of proxies, and headers that `Connection` names do not reach the
    engine.
    """

    async def scenario(site: Site) -> None:
        async with site.post({"model": "a"}, headers=OF_CLIENTS | GOES_ON) as answer:
            assert answer.status == 200
        (seen,) = site.a.seen
        headers = {name.title(): value for name, value in seen["headers"].items()}  # type: ignore[attr-defined]
        own = {"Host": "engine", "Content-Length": "14"}
        assert headers == GOES_ON | own

    run(tmp_path, scenario)


async def tells_much(engine: FakeEngine, request: web.Request) -> web.StreamResponse:
    headers = CIMultiDict({"X-Engine": "a", "X-Hop": "x", "Keep-Alive": "timeout=5"})
    headers.extend(
        {"Connection": "close, X-Hop", "Proxy-Authenticate": "Basic", "Set-Cookie": "k=v"}
    )
    return web.json_response({}, headers=headers)


async def sends_elsewhere(engine: FakeEngine, request: web.Request) -> web.StreamResponse:
    return web.json_response({}, status=307, headers={"Location": "/v1/elsewhere"})


def test_an_engines_headers_of_its_connection_stay_here(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        site.a.answer = tells_much
        async with site.post({"model": "a"}) as answer:
            assert answer.headers["X-Engine"] == "a"
            for name in ("X-Hop", "Keep-Alive", "Proxy-Authenticate"):
                assert name not in answer.headers
            assert "X-Hop" not in answer.headers.get("Connection", "")

    run(tmp_path, scenario)


def test_an_engines_cookies_and_redirects_are_its_clients_affair(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        site.a.answer = tells_much
        for _ in range(2):
            async with site.post({"model": "a"}):
                pass
        assert not any("Cookie" in seen["headers"] for seen in site.a.seen)  # type: ignore[operator]
        site.a.answer = sends_elsewhere
        async with site.post({"model": "a"}, allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (307, "/v1/elsewhere")
        assert [seen["path"] for seen in site.a.seen] == ["/v1/completions"] * 3

    run(tmp_path, scenario)


@pytest.mark.parametrize("path", FORM_ROUTES)
def test_forms_go_where_their_model_says(tmp_path: Path, path: str) -> None:
    async def scenario(site: Site) -> None:
        form = aiohttp.FormData({"model": "b/1"})
        form.add_field("file", b"\r\n\x00\xff", filename="a.wav", content_type="audio/wav")
        async with site.http.post(site.url + path, data=form) as answer:
            assert await answer.json() == {"served_by": "b/1"}
        (seen,) = site.b.seen
        assert seen["path"] == path
        assert b"\r\n\x00\xff" in seen["body"]["form"]  # type: ignore[index]

    run(tmp_path, scenario)


def test_adapters_are_models_of_their_tenant(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        site.registry.backends["b/1"].adapters = {"x": "/lora/x", "team/y": "/lora/y"}
        await site.seen()
        site.b.adapters = ("x", "team/y")
        for model in ("b/1", "x", "team/y"):
            async with site.post({"model": model}) as answer:
                assert await answer.json() == {"served_by": "b/1"}
        async with site.http.get(site.url + "/v1/models") as answer:
            cards = {card["id"]: card for card in (await answer.json())["data"]}
        assert list(cards) == ["a", "b/1", "x", "team/y"]
        assert (cards["x"]["parent"], cards["x"]["root"]) == ("b/1", "/lora/x")
        assert "parent" not in cards["b/1"]
        async with site.http.get(site.url + "/v1/models/team/y") as answer:
            assert await answer.json() == cards["team/y"]
        async with site.post({"model": "z"}) as answer:
            assert answer.status == 404
            assert "'a', 'b/1', 'x', 'team/y'" in (await answer.json())["error"]["message"]

    run(tmp_path, scenario)


def test_a_stream_passes_chunk_by_chunk(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        site.a.answer = slow_stream
        async with site.post({"model": "a", "stream": True}) as answer:
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            # The engine is still waiting: had the router buffered, nothing would arrive.
            assert await answer.content.readany() == EVENTS[0]
            site.a.go_on.set()
            assert await answer.content.read() == b"".join(EVENTS[1:])

    run(tmp_path, scenario)


def test_a_client_that_leaves_cancels_the_engines_request(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        site.a.answer = slow_stream
        answer = await site.post({"model": "a", "stream": True})
        await site.a.begun.wait()
        answer.close()
        await site.a.cancelled.wait()
        async with site.post({"model": "b/1"}) as other:
            assert other.status == 200

    run(tmp_path, scenario)


def counting(site: Site) -> asyncio.Queue[tuple[str, int]]:
    """Queue of tenant and status of each request, filled at the moment when the
    router counts it.
    """
    counted: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
    count = site.router.metrics.answered

    def answered(tenant: str, status: int) -> None:
        count(tenant, status)
        counted.put_nowait((tenant, status))

    site.router.metrics.answered = answered  # type: ignore[method-assign]
    return counted


@pytest.mark.parametrize("answer", [slow_stream, never])
def test_a_request_whose_client_leaves_is_counted(
    tmp_path: Path, answer: Callable[[FakeEngine, web.Request], Awaitable[web.StreamResponse]]
) -> None:
    async def scenario(site: Site) -> None:
        counted = counting(site)
        site.a.answer = answer
        asking = asyncio.create_task(site.post({"model": "a", "stream": True}).__aenter__())
        await site.a.begun.wait()
        if answer is slow_stream:
            (await asking).close()
        asking.cancel()
        await site.a.cancelled.wait()
        assert await counted.get() == ("a", 499)
        async with site.http.get(site.url + "/metrics") as told:
            lines = (await told.text()).splitlines()
        assert 'mirage_http_requests_total{code="499",tenant="a"} 1.0' in lines
        assert counted.empty()

    run(tmp_path, scenario)


def test_one_whose_client_leaves_before_its_body_is_there_is_counted(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        counted = counting(site)
        _, writer = await uploading(site)
        writer.close()
        assert await counted.get() == ("", 499)

    run(tmp_path, scenario)


async def uploading(site: Site) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connection over which half of a body was sent, so that the router is still reading it."""
    address = URL(site.url)
    reader, writer = await asyncio.open_connection(address.host, address.port)
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"
    writer.write(f"{head}Expect: 100-continue\r\n\r\n{{".encode())
    assert b"100" in await reader.readline()  # it waits for the body
    return reader, writer


def test_a_stop_is_told_to_all_that_run_or_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mirage.serve.router.app.SHUTDOWN_S", 0.2)

    async def scenario(site: Site) -> None:
        site.a.answer, site.b.answer = slow_stream, never
        stream = await site.post({"model": "a", "stream": True})
        assert await stream.content.readany() == EVENTS[0]
        waiting = asyncio.create_task(site.post({"model": "b/1"}).__aenter__())
        await site.b.begun.wait()
        upload, writer = await uploading(site)
        counted = counting(site)
        stopping = asyncio.create_task(site.router.drain())
        async with site.post({"model": "a"}) as answer:
            assert_stopping(answer.status, await answer.json())
        async with site.http.get(site.url + "/health") as answer:
            assert (answer.status, (await answer.json())["status"]) == (503, "stopping")
        assert b"503" in (await upload.readuntil(b"HTTP/1.1 503"))
        answer = await waiting
        assert_stopping(answer.status, await answer.json())
        rest = await broken(stream)
        assert_stopping(503, json.loads(rest.removeprefix(b"data: ")))
        await stopping
        writer.close()
        assert counted.qsize() == 4
        assert len(site.a.seen) == 1, "what comes late reaches no engine"

    run(tmp_path, scenario)


def assert_stopping(status: int, body: Any) -> None:
    assert status == 503
    assert body["error"]["type"] == "server_error"
    assert body["error"]["message"].startswith("the server is stopping: ")


def test_what_ends_by_itself_while_the_server_stops_is_whole(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        site.a.answer = slow_stream
        async with site.post({"model": "a", "stream": True}) as answer:
            assert await answer.content.readany() == EVENTS[0]
            stopping = asyncio.create_task(site.router.drain())
            site.a.go_on.set()
            assert await answer.content.read() == b"".join(EVENTS[1:])
            await stopping

    run(tmp_path, scenario)


@pytest.mark.usefixtures("unexplained")
def test_a_stream_that_breaks_never_looks_complete(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        site.a.answer = dies_in_mid_stream
        async with site.post({"model": "a", "stream": True}) as answer:
            assert await answer.content.readany() == EVENTS[0]
            site.a.go_on.set()
            rest = await broken(answer)
            event = json.loads(rest.removeprefix(b"data: "))
            assert event["error"]["type"] == "server_error"
            assert b"[DONE]" not in rest

    run(tmp_path, scenario)


async def dies_in_mid_event(engine: FakeEngine, request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(EVENTS[0] + EVENTS[1][:9])
    await engine.go_on.wait()
    assert request.transport is not None
    request.transport.abort()
    return response


async def broken(answer: aiohttp.ClientResponse) -> bytes:
    """All bytes of an answer, which must break off."""
    rest = b""
    with pytest.raises(aiohttp.ClientPayloadError):
        while chunk := await answer.content.readany():
            rest += chunk
    return rest


@pytest.mark.usefixtures("unexplained")
def test_half_an_event_is_not_passed_on(tmp_path: Path) -> None:
    """An engine dies after half an event of a stream. The client gets an error event and not that
    half, which it would join with it.
    """

    async def scenario(site: Site) -> None:
        site.a.answer = dies_in_mid_event
        async with site.post({"model": "a", "stream": True}) as answer:
            assert await answer.content.readany() == EVENTS[0]
            site.a.go_on.set()
            event = await broken(answer)
            assert json.loads(event.removeprefix(b"data: "))["error"]["code"] == 502

    run(tmp_path, scenario)


MESSAGES = "/v1/messages"


@pytest.mark.usefixtures("unexplained")
def test_errors_of_messages_have_anthropics_form(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        async def told(body: object, path: str = MESSAGES) -> tuple[int, str, str]:
            async with site.post(body, path) as answer:
                error = await answer.json()
                assert (set(error), error["type"]) == ({"type", "error"}, "error")
                return answer.status, error["error"]["type"], error["error"]["message"]

        status, kind, message = await told({"model": "c"})
        assert (status, kind) == (404, "not_found_error") and "'a', 'b/1'" in message
        assert (await told(b"{", f"{MESSAGES}/count_tokens"))[:2] == (400, "invalid_request_error")
        site.a.answer = refuses  # in OpenAI's form
        assert await told({"model": "a"}) == (400, "invalid_request_error", "too long")
        await site.becomes("b/1", LifeState.DOWN)
        assert (await told({"model": "b/1"}))[:2] == (503, "overloaded_error")
        async with site.http.get(site.url + MESSAGES) as answer:
            assert (await answer.json())["type"] == "error"

        site.a.answer = dies_in_mid_stream
        async with site.post({"model": "a", "stream": True}, MESSAGES) as stream:
            assert await stream.content.readany() == EVENTS[0]
            site.a.go_on.set()
            name, data = (await broken(stream)).split(b"\n", 1)
            assert name == b"event: error"
            error = json.loads(data.removeprefix(b"data: "))
            assert (error["type"], error["error"]["type"]) == ("error", "api_error")

    run(tmp_path, scenario)


@pytest.mark.usefixtures("unexplained")
def test_an_engine_that_breaks_off_is_a_502(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        site.a.answer = dies_at_once
        async with site.post({"model": "a"}) as answer:
            assert answer.status == 502
            assert "'a'" in (await answer.json())["error"]["message"]
        site.registry.backends["b/1"].socket.unlink()
        async with site.post({"model": "b/1"}) as answer:
            assert answer.status == 502

    run(tmp_path, scenario)


def test_the_engines_own_refusals_come_through(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        site.a.answer = refuses
        async with site.post({"model": "a"}) as answer:
            assert answer.status == 400
            assert (await answer.json())["error"]["message"] == "too long"

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{", 400, "not JSON"),
        (b"[" * 200_000, 400, "not a JSON object"),
        (b'{"a":' * 200_000, 400, "not JSON"),
        (b'{"model": [' + b"[]," * 200_000 + b"0]}", 400, "found a value of 600,003 bytes"),
        (b"\xff\xfe{}", 400, "not JSON"),
        (b"[1]", 400, "not a JSON object"),
        ({}, 400, "'model' must name a model, found None"),
        ({"model": 3}, 400, "found 3"),
        ({"model": ""}, 400, "found ''"),
        ({"model": "c"}, 404, "no model 'c' here: use one of 'a', 'b/1'"),
    ],
)
def test_bad_requests_reach_no_engine(
    tmp_path: Path, body: object, status: int, words: str
) -> None:
    async def scenario(site: Site) -> None:
        async with site.post(body) as answer:
            assert answer.status == status
            error = (await answer.json())["error"]
            assert words in error["message"]
            assert error["type"] == "invalid_request_error"
        assert not site.a.seen and not site.b.seen

    run(tmp_path, scenario)


@pytest.mark.parametrize("state", [LifeState.STARTING, LifeState.DOWN, LifeState.FAILED])
def test_a_tenant_that_is_down_is_a_503_and_others_go_on(tmp_path: Path, state: LifeState) -> None:
    async def scenario(site: Site) -> None:
        site.registry.backends["a"].comeback.pauses(time.monotonic(), 600.0)
        await site.becomes("a", state)
        async with site.post({"model": "a"}) as answer:
            assert answer.status == 503
            assert 590 < int(answer.headers["Retry-After"]) <= 600
            assert state.value in (await answer.json())["error"]["message"]
        async with site.post({"model": "b/1"}) as answer:
            assert answer.status == 200
        async with site.http.get(site.url + "/metrics") as answer:
            lines = (await answer.text()).splitlines()
        assert 'mirage_http_requests_total{code="503",tenant="a"} 1.0' in lines
        async with site.http.get(site.url + "/health") as answer:
            assert (answer.status, (await answer.json())["status"]) == (200, "degraded")
        await site.becomes("b/1", state)
        async with site.http.get(site.url + "/health") as answer:
            assert (answer.status, (await answer.json())["status"]) == (503, "down")

    run(tmp_path, scenario)


def test_a_body_that_is_too_large_is_a_413(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirage.serve.router.tenant_routes.MAX_BODY_BYTES", 1000)

    async def scenario(site: Site) -> None:
        async with site.post({"model": "a", "prompt": "x" * 1000}) as answer:
            assert answer.status == 413
            error = (await answer.json())["error"]
            assert error["type"] == "invalid_request_error"
            assert error["message"].startswith("the body is larger than ")
        async with site.http.get(site.url + "/metrics") as answer:
            lines = (await answer.text()).splitlines()
        assert 'mirage_http_requests_total{code="413",tenant=""} 1.0' in lines
        assert not site.a.seen

    run(tmp_path, scenario)


def test_a_body_that_is_not_what_its_header_says_is_a_400(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        headers = {"Content-Encoding": "gzip"}
        url = site.url + "/v1/completions"
        async with site.http.post(url, data=b'{"model": "a"}', headers=headers) as answer:
            assert answer.status == 400
            assert "cannot be read" in (await answer.json())["error"]["message"]
        assert not site.a.seen

    run(tmp_path, scenario)


def squeezed(encoding: str, body: bytes) -> bytes:
    bits = {"gzip": 31, "deflate": 15, "bare deflate": -15}[encoding]
    stream = zlib.compressobj(9, wbits=bits)
    return stream.compress(body) + stream.flush()


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "bare deflate"])
def test_a_compressed_body_is_read_and_goes_on_as_it_was(tmp_path: Path, encoding: str) -> None:
    async def scenario(site: Site) -> None:
        data = squeezed(encoding, b'{"model": "a", "prompt": "\xc3\xa9"}')
        async with site.post(data, headers={"Content-Encoding": encoding.split()[-1]}) as answer:
            assert answer.status == 200
        (seen,) = site.a.seen
        assert seen["body"] == {"model": "a", "prompt": "é"}
        assert "Content-Encoding" not in seen["headers"]  # type: ignore[operator]

    run(tmp_path, scenario)


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip"])
def test_another_encoding_is_a_415(tmp_path: Path, encoding: str) -> None:
    async def scenario(site: Site) -> None:
        async with site.post(b"\x28\xb5\x2f\xfd", headers={"Content-Encoding": encoding}) as answer:
            assert answer.status == 415
            assert "use gzip, deflate or none" in (await answer.json())["error"]["message"]

    run(tmp_path, scenario)


class LongestPause:
    """Most processor seconds that this process spent between two turns of `watch`, which come every
    5 ms if nothing else keeps the event loop.

    It does not use the clock, which other processes on a busy machine would advance too.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    async def watch(self) -> None:
        while True:
            since = time.process_time()
            await asyncio.sleep(0.005)
            self.seconds = max(self.seconds, time.process_time() - since)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_half_a_gigabyte_in_half_a_megabyte_stops_nobody(tmp_path: Path, encoding: str) -> None:
    stream = zlib.compressobj(9, wbits=31 if encoding == "gzip" else 15)
    pieces = [stream.compress(bytes(2**20)) for _ in range(512)]
    bomb = b"".join(pieces) + stream.flush()

    async def scenario(site: Site) -> None:
        pause = LongestPause()
        watching = asyncio.create_task(pause.watch())
        async with site.post(bomb, headers={"Content-Encoding": encoding}) as answer:
            assert answer.status == 413
            message = (await answer.json())["error"]["message"]
            assert message == "the body is larger than 64.0 MiB: send less"
        watching.cancel()
        assert pause.seconds < 0.5
        assert not site.a.seen

    run(tmp_path, scenario)


def test_ten_million_lists_stop_nobody(tmp_path: Path) -> None:
    """A body of ten million lists is answered with 404, and the event loop is stopped for less than
    a second. To decode it into Python objects would take several.
    """
    data = squeezed("gzip", b'{"model": "c", "prompt": [' + b"[]," * 10_000_000 + b"0]}")

    async def scenario(site: Site) -> None:
        pause = LongestPause()
        watching = asyncio.create_task(pause.watch())
        async with site.post(data, headers={"Content-Encoding": "gzip"}) as answer:
            assert answer.status == 404
        watching.cancel()
        assert pause.seconds < 1

    run(tmp_path, scenario)


def test_models_are_listed_in_openais_form(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        async with site.http.get(site.url + "/v1/models") as answer:
            listed = await answer.json()
        assert listed["object"] == "list"
        assert [m["id"] for m in listed["data"]] == ["a", "b/1"]
        assert all(m["object"] == "model" and m["created"] > 0 for m in listed["data"])
        async with site.http.get(site.url + "/v1/models/b/1") as answer:
            assert (await answer.json())["id"] == "b/1"
        async with site.http.get(site.url + "/v1/models/c") as answer:
            assert answer.status == 404

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("GET", "/nowhere", 404, "Not Found"),
        ("GET", "/v1/completions", 405, "Method Not Allowed: use POST"),
        ("POST", "/metrics", 405, "Method Not Allowed: use GET"),
        ("POST", "/v1/v1/messages", 404, "Not Found: use POST /v1/messages (the client's base URL"),
        ("GET", "/models/b/1", 404, "Not Found: use GET /v1/models/"),
    ],
)
def test_other_paths_are_refused_in_json(
    tmp_path: Path, method: str, path: str, status: int, words: str
) -> None:
    async def scenario(site: Site) -> None:
        async with site.http.request(method, site.url + path) as answer:
            assert answer.status == status
            assert ("Allow" in answer.headers) is (status == 405)
            told = (await answer.json())["error"]["message"]
            assert told.startswith(f"{method} {path}: {words}")

    run(tmp_path, scenario)


def test_a_timeline_is_made_beside_the_loop_that_beats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def held(told: dict[str, object]) -> bytes:
        begun.set()
        assert go_on.wait(WAIT_S)
        return msgspec.json.encode(told)

    monkeypatch.setattr("mirage.serve.registry.history.encoded", held)

    async def scenario(site: Site) -> None:
        asking = asyncio.create_task(site.http.get(site.url + "/mirage/timeline"))
        await asyncio.to_thread(begun.wait)
        async with site.http.get(site.url + "/health") as answer:
            assert answer.status == 200, "the loop is free while the timeline is being made"
        go_on.set()
        async with await asking as answer:
            assert (await answer.json())["samples"] == []

    run(tmp_path, scenario)


def test_a_timeline_is_asked_for_page_by_page(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        for t in (0.0, 0.1, 0.2):
            site.registry.timeline.record(t, {})
        url = site.url + "/mirage/timeline"
        async with site.http.get(url, params={"since": "0.0", "limit": "1"}) as answer:
            page = await answer.json()
        assert ([sample["t"] for sample in page["samples"]], page["next_since"]) == ([0.1], 0.1)
        async with site.http.get(url, params={"limit": "none"}) as answer:
            assert answer.status == 400
            assert (await answer.json())["error"]["param"] == "limit"

    run(tmp_path, scenario)


def test_state_timeline_and_metrics_show_the_registry(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        registry = site.registry
        registry.shapes["a"] = ModelShape(8, 4096, 100, 8192, 2, 16, 9, 3, 8)
        registry.reports["a"] = Report(
            1, True, 77, 3, 2, 4, 1, running=5, kv_used_blocks=6, kv_blocks=7, preemptions=2
        )
        registry.timeline.record(0.5, registry.reports)
        async with site.http.get(site.url + "/mirage/state") as answer:
            state = await answer.json()
        assert state["policy"] == "mirage"
        assert state["tenants"]["a"]["layers_remapped"] == 3
        assert (state["t"], list(state["tenants"])) == (0.5, ["a"])
        assert state["engines"]["b/1"] == {"state": "ready", "restarts": 0, "moves": []}
        async with site.http.get(site.url + "/mirage/timeline") as answer:
            history = await answer.json()
        assert (history["schema_version"], history["next_since"]) == (3, None)
        assert history["device_bytes"] == 1 << 30
        assert history["tenants"]["a"] == {
            "layers": 8, "layer_bytes": 4096, "extent_bytes": 8192, "extent_blocks": 2
        }  # fmt: skip
        (sample,) = history["samples"]
        assert sample["t"] == 0.5
        assert sample["tenants"]["a"]["kv_blocks"] == 7
        async with site.post({"model": "a"}):
            pass
        async with site.post({"model": "c"}):
            pass
        async with site.http.get(site.url + "/metrics") as answer:
            lines = (await answer.text()).splitlines()
        assert 'mirage_kv_blocks{tenant="a"} 7.0' in lines
        assert 'mirage_preemptions_total{tenant="a"} 2.0' in lines
        assert 'mirage_tenant_up{tenant="b/1"} 1.0' in lines
        assert 'mirage_http_requests_total{code="200",tenant="a"} 1.0' in lines
        assert 'mirage_http_requests_total{code="404",tenant=""} 1.0' in lines

    run(tmp_path, scenario)
