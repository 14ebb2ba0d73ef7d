"""Refused routes, requests to keep answers, and names of models, at the router."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from aiohttp import web
from aiohttp.hdrs import METH_ANY
from test_router import FakeEngine, Site, never, serving
from test_router_keys import KEYS, bearer, x_api_key
from yarl import URL

from mirage.serve.access.forms import NO_KEYS, AccessKey, AccessTable
from mirage.serve.access.ring import digest
from mirage.serve.api.routes import FORM_ROUTES, JSON_ROUTES, REFUSED_ROUTES, why_refused

pytestmark = pytest.mark.e2e

ALIASES = ("gpt-4o", "llama3:8b", "openai/gpt:4/o")
TABLE = AccessTable(
    (*KEYS.values(), AccessKey("named", digest("named-token"), ("llama3:8b", "gone")))
)


def run(
    folder: Path, scenario: Callable[[Site], Awaitable[None]], table: AccessTable = NO_KEYS
) -> None:
    async def main() -> None:
        async with serving(folder, table) as site:
            site.registry.backends["a"].aliases = ALIASES
            await site.seen()
            await scenario(site)

    asyncio.run(main())


# -- refused routes -------------------------------------------------------------------------


def message(path: str, body: Any) -> str:
    """Message of an error that must have the form of its route's API."""
    if path.startswith("/cohere/"):
        assert set(body) == {"message"}
        return str(body["message"])
    if path.startswith("/v1/messages/"):
        assert (body["type"], body["error"]["type"]) == ("error", "not_found_error")
    else:
        assert body["error"]["code"] == "route_not_served", (path, body)
    return str(body["error"]["message"])


def test_a_refused_route_asks_for_a_key_and_says_why(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        for route in REFUSED_ROUTES:
            path = re.sub(r"\{\w+\}", "x", route)
            for method in ("GET", "POST", "DELETE"):
                for key, status in ({}, 401), (bearer("old"), 401), (x_api_key("user"), 404):
                    url = site.url + path
                    async with site.http.request(method, url, headers=key, data=b"{}") as answer:
                        assert answer.status == status, (method, path)
                        if status == 404:
                            told = message(path, await answer.json())
                            assert told == f"{route} is not served: {why_refused(route)}"
        assert not site.a.seen and not site.b.seen
        async with site.http.get(site.url + "/metrics", headers=bearer("prom")) as answer:
            lines = (await answer.text()).splitlines()
        for route in REFUSED_ROUTES:
            assert f'mirage_refused_routes_total{{route="{route}"}} 3.0' in lines
        requests = 3.0 * len(REFUSED_ROUTES)
        assert f'mirage_http_requests_total{{code="404",tenant=""}} {requests}' in lines
        own = f'mirage_key_requests_total{{key="user",model="",status="404"}} {requests}'
        assert own in lines

    run(tmp_path, scenario, TABLE)


def test_a_websocket_is_refused_before_it_is_one(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
            await site.http.ws_connect(site.url + "/v1/realtime")
        assert refusal.value.status == 404

    run(tmp_path, scenario)


def test_no_refused_route_is_advised(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        for path in ("/v1/v1/realtime", "/sleeep", "/v1/chat/completions/rendered"):
            async with site.http.get(site.url + path) as answer:
                told = (await answer.json())["error"]["message"]
                assert answer.status == 404
                advised = told.partition("use ")[2]
                assert "*" not in advised and not advised.endswith(REFUSED_ROUTES)

    run(tmp_path, scenario)


# -- responses ------------------------------------------------------------------------------


def test_responses_are_not_kept_and_say_so_to_openais_client(tmp_path: Path) -> None:
    async def response(engine: FakeEngine, request: web.Request) -> web.StreamResponse:
        body = {"id": "resp_1", "object": "response", "model": engine.name, "output": []}
        return web.json_response(body | {"created_at": 1, "status": "completed"})

    def ask(url: str) -> None:
        responses = openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0).responses
        assert responses.create(model="a", input="Hello").id == "resp_1"
        assert responses.create(model="gpt-4o", input="Hello", store=False).model == "gpt-4o"
        kept: tuple[dict[str, Any], ...] = (
            {"store": True},
            {"background": True},
            {"previous_response_id": "resp_1"},
        )
        for more in kept:
            with pytest.raises(openai.BadRequestError, match="responses are not kept") as refusal:
                responses.create(model="a", input="Hello", **more)
            assert refusal.value.param == next(iter(more))
        for by_id in (responses.retrieve, responses.cancel):
            with pytest.raises(openai.NotFoundError, match="responses are not kept here"):
                by_id("resp_1")

    async def scenario(site: Site) -> None:
        site.a.answer = response
        await asyncio.to_thread(ask, site.url)
        assert len(site.a.seen) == 2

    run(tmp_path, scenario)


# -- names ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", JSON_ROUTES)
def test_an_alias_is_a_model_of_its_tenant(tmp_path: Path, path: str) -> None:
    async def scenario(site: Site) -> None:
        for alias in ALIASES:
            async with site.post({"model": alias, "prompt": "é"}, path) as answer:
                assert await answer.json() == {"served_by": "a"}
            assert site.a.seen[-1]["body"] == {"model": "a", "prompt": "é"}

    run(tmp_path, scenario)


@pytest.mark.parametrize("path", FORM_ROUTES)
def test_a_form_may_have_an_alias(tmp_path: Path, path: str) -> None:
    async def scenario(site: Site) -> None:
        form = aiohttp.FormData({"model": "llama3:8b"})
        form.add_field("file", b"\r\n\x00\xff", filename="a.wav", content_type="audio/wav")
        async with site.http.post(site.url + path, data=form) as answer:
            assert await answer.json() == {"served_by": "a"}
        sent = site.a.seen[-1]["body"]["form"]  # type: ignore[index]
        assert b'name="model"\r\n\r\na\r\n' in sent and b"llama3" not in sent
        assert b"\r\n\x00\xff" in sent

    run(tmp_path, scenario)


def test_an_answer_has_the_name_that_was_asked_for(tmp_path: Path) -> None:
    told = {"model": "a", "text": 'I am "model":"a"', "choices": [{"model": "a"}, {"model": "b"}]}
    events = [f"data: {json.dumps(told)}\n\n".encode(), b'data: {"model":"a"}\n\n']

    async def stream(engine: FakeEngine, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            await response.write(event)
            await engine.go_on.wait()
        return response

    async def whole(engine: FakeEngine, request: web.Request) -> web.StreamResponse:
        return web.json_response(told)

    async def plain_text(engine: FakeEngine, request: web.Request) -> web.StreamResponse:
        return web.Response(text='"model":"a"')

    def expected(name: str) -> dict[str, Any]:
        return told | {"model": name, "choices": [{"model": name}, {"model": "b"}]}

    async def scenario(site: Site) -> None:
        for name in ("a", *ALIASES):
            site.a.answer, site.a.go_on = stream, asyncio.Event()
            async with site.post({"model": name}) as answer:
                first = await answer.content.readuntil(b"\n\n")  # before there is another one
                assert json.loads(first[6:]) == expected(name)
                site.a.go_on.set()
                rest = await answer.content.read()
                assert json.loads(rest[6:]) == {"model": name}
            site.a.answer = whole
            async with site.post({"model": name}) as answer:
                assert await answer.json() == expected(name)
            site.a.answer = plain_text
            async with site.post({"model": name}) as answer:
                assert await answer.text() == '"model":"a"'

    run(tmp_path, scenario)


def test_every_route_takes_names_with_colons_and_slashes(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        async with site.http.get(site.url + "/v1/models") as answer:
            cards = {card["id"]: card for card in (await answer.json())["data"]}
        assert list(cards) == ["a", *ALIASES, "b/1"]
        for name in ("b/1", *ALIASES):
            for written in (name, name.replace("/", "%2F").replace(":", "%3A")):
                async with site.http.get(
                    URL(f"{site.url}/v1/models/{written}", encoded=True)
                ) as it:
                    assert await it.json() == cards[name]
                async with site.http.get(URL(f"{site.url}/health/{written}", encoded=True)) as it:
                    assert (it.status, await it.json()) == (200, {"status": "ready"})
        for alias in ALIASES:
            assert (cards[alias]["root"], cards[alias]["parent"]) == ("a", "a")
        async with site.http.get(site.url + "/v1/models/llama3:9b") as answer:
            assert answer.status == 404
            assert "'a', 'gpt-4o', 'llama3:8b'" in (await answer.json())["error"]["message"]

    run(tmp_path, scenario)


def test_a_key_may_have_an_alias_alone(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        async with site.http.get(site.url + "/v1/models", headers=bearer("named")) as answer:
            assert [card["id"] for card in (await answer.json())["data"]] == ["llama3:8b"]
        for model, status in ("llama3:8b", 200), ("a", 404), ("gpt-4o", 404), ("gone", 404):
            async with site.post({"model": model}, headers=bearer("named")) as answer:
                assert answer.status == status, model
        async with site.post({"model": "gpt-4o"}, headers=bearer("user")) as answer:
            assert answer.status == 200  # a tenant's key opens all its names
        async with site.http.get(site.url + "/metrics", headers=bearer("prom")) as answer:
            text = await answer.text()
        assert 'mirage_key_requests_total{key="named",model="llama3:8b",status="200"} 1.0' in text

    run(tmp_path, scenario, TABLE)


def test_an_alias_that_goes_is_served_to_its_end(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        site.a.answer = never
        task = asyncio.create_task(site.post({"model": "gpt-4o"}).__aenter__())
        await site.a.begun.wait()
        site.registry.backends["a"].aliases = ()
        await site.seen()
        async with site.post({"model": "gpt-4o"}) as answer:
            assert answer.status == 404
        assert not task.done()
        task.cancel()

    run(tmp_path, scenario)


def test_the_document_has_every_route_that_answers(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        async with site.http.get(site.url + "/openapi.json") as answer:
            told = await answer.json()
        found = {(verb.upper(), path) for path, verbs in told["paths"].items() for verb in verbs}
        routes = {(each.method, each.path) for each in site.router.routes()}
        routes -= {("POST", "/mirage/tiers")}  # for programs of this machine alone
        refused = {(METH_ANY, path) for path in REFUSED_ROUTES}
        assert found == {(verb, path.replace(":.+", "")) for verb, path in routes - refused}

    run(tmp_path, scenario)
