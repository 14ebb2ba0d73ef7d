"""Keys and limits at the router's port: every route, with every kind of key."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import anthropic as anthropic_sdk
import openai
import pytest
from aiohttp import web
from test_router import EVENTS, FakeEngine, Site, plain, refuses, serving, slow_stream

from mirage.control.roster.states import LifeState
from mirage.serve.access.forms import AccessKey, AccessTable
from mirage.serve.access.rates import BodyBounds, RateLimits
from mirage.serve.access.ring import digest
from mirage.serve.api import anthropic
from mirage.serve.api.routes import FORM_ROUTES, JSON_ROUTES, REFUSED_ROUTES
from mirage.serve.ends.ending import Ending
from mirage.serve.routed.resizing import Resize

pytestmark = pytest.mark.e2e

GONE = time.time() - 1
KEYS = {
    "user": AccessKey("user", digest("user-token"), ("a",)),
    "other": AccessKey("other", digest("other-token"), ("b/1",)),
    "old": AccessKey("old", digest("old-token"), None, GONE, admin=True),
    "root": AccessKey("root", digest("root-token"), None, time.time() + 3600, admin=True),
    "prom": AccessKey("prom", digest("prom-token"), metrics=True),
}
TABLE = AccessTable(tuple(KEYS.values()))


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}-token"}


def x_api_key(name: str) -> dict[str, str]:
    return {"x-api-key": f"{name}-token"}


def run(
    folder: Path, scenario: Callable[[Site], Awaitable[None]], table: AccessTable = TABLE
) -> None:
    async def resize(wanted: Resize) -> None: ...

    async def main() -> None:
        async with serving(folder, table, resize) as site:
            await scenario(site)

    asyncio.run(main())


class Asked(NamedTuple):
    """A route, and the kinds of keys that may use it."""

    method: str
    path: str
    right: str
    """Key that opens it; empty if it asks for none."""
    others: int
    """Status for a key of another tenant."""


BARE = [Asked("GET", path, "", 200) for path in ("/live", "/ready", "/mirage")]
OF_MODELS = [Asked("POST", path, "user", 404) for path in (*JSON_ROUTES, *FORM_ROUTES)]
READ = [
    Asked("GET", "/openapi.json", "user", 200),
    Asked("GET", "/v1/models", "user", 200),
    Asked("GET", "/v1/models/a", "user", 404),
    *(Asked("GET", p, "user", 200) for p in ("/api/version", "/api/tags", "/api/ps", "/running")),
]
ADMIN = [
    Asked("GET", "/health", "root", 403),
    Asked("GET", "/health/a", "root", 403),
    Asked("GET", "/mirage/state", "root", 403),
    Asked("GET", "/mirage/timeline", "root", 403),
    Asked("GET", "/mirage/overview", "root", 403),
    Asked("POST", "/mirage/tiers", "root", 403),
]
METRICS = [Asked("GET", "/metrics", "prom", 403)]
NOWHERE = [Asked("GET", "/nowhere", "user", 404), Asked("GET", "/v1/completions", "user", 405)]
ROUTES = [*BARE, *OF_MODELS, *READ, *ADMIN, *METRICS]


def test_the_table_has_every_route(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        routes = site.router.routes()
        found = {(route.method, route.path.replace("{model:.+}", "a")) for route in routes}
        refused = {("*", path) for path in REFUSED_ROUTES}
        assert found == {(one.method, one.path) for one in ROUTES} | refused

    run(tmp_path, scenario)


async def status(site: Site, asked: Asked, headers: dict[str, str]) -> int:
    """Status of an answer. Its error must have the form of the route's API, and no answer contains
    a token.
    """
    data: Any = b"{}" if asked.path == "/mirage/tiers" else b'{"model": "a"}'
    sent = {"Content-Type": "application/json", **headers}
    if asked.path in FORM_ROUTES:
        data, sent = aiohttp.FormData({"model": "a", "file": b"x"}), headers
    more: Any = {"data": data} if asked.method == "POST" else {}
    url = site.url + asked.path
    async with site.http.request(asked.method, url, headers=sent, **more) as answer:
        text = await answer.text()
        assert not re.search("|".join(f"{name}-token" for name in KEYS), text)
        assert ("WWW-Authenticate" in answer.headers) is (answer.status == 401)
        if answer.status >= 400:
            error = json.loads(text)
            if anthropic.speaks(asked.path):
                assert error["type"] == "error" and error["error"]["type"] != "api_error"
            else:
                assert set(error["error"]) == {"message", "type", "param", "code"}
        return answer.status


@pytest.mark.parametrize("asked", [*ROUTES, *NOWHERE], ids=lambda one: f"{one.method} {one.path}")
def test_every_route_asks_for_a_key_that_opens_it(tmp_path: Path, asked: Asked) -> None:
    right = asked.right or "user"
    refused = 401 if asked.right else 200
    passes = asked.others if asked in NOWHERE else 200
    table: list[tuple[dict[str, str], int]] = [
        ({}, refused),
        ({"Authorization": "Bearer wrong"}, refused),
        ({"x-api-key": KEYS[right].sha256}, refused),
        (bearer("old"), refused),
        (bearer("other"), asked.others),
        (bearer(right) | x_api_key("other"), refused),
        (bearer("other") | x_api_key(right), refused),
    ]

    async def scenario(site: Site) -> None:
        for headers, expected in table:
            assert await status(site, asked, headers) == expected, headers
        assert not site.a.seen and not site.b.seen
        for headers in (bearer(right), x_api_key(right), bearer(right) | x_api_key(right)):
            assert await status(site, asked, headers) == passes, headers
        assert len(site.a.seen) == (3 if asked in OF_MODELS else 0)
        assert "token" not in str([seen["headers"] for seen in site.a.seen]).lower()

    run(tmp_path, scenario)


@pytest.mark.parametrize("asked", [*ADMIN, *METRICS], ids=lambda one: one.path)
def test_a_users_key_opens_nothing_of_the_servers_own(tmp_path: Path, asked: Asked) -> None:
    async def scenario(site: Site) -> None:
        assert await status(site, asked, bearer("user")) == 403
        expected = 200 if asked in METRICS else 403
        assert await status(site, asked, bearer("prom")) == expected
        assert await status(site, asked, bearer("root")) == 200

    run(tmp_path, scenario)


def test_nobody_is_asked_where_there_are_no_keys(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        for asked in ROUTES:
            assert await status(site, asked, {}) == 200, asked
            assert await status(site, asked, {"Authorization": "Bearer of somebody else"}) == 200

    run(tmp_path, scenario, AccessTable())


def test_a_body_is_not_waited_for_without_a_key(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        port = int(site.url.rsplit(":", 1)[1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 60000000\r\n\r\n"
        )
        assert b" 401 " in await reader.readline()
        writer.close()

    run(tmp_path, scenario)


def test_clients_of_both_kinds_take_refusals_for_what_they_are(tmp_path: Path) -> None:
    def openais(url: str, key: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)

    def ask_openai(url: str) -> None:
        say: Any = {"messages": [{"role": "user", "content": "Hello"}]}
        assert [model.id for model in openais(url, "user-token").models.list()] == ["a"]
        with pytest.raises(openai.AuthenticationError, match="not known here"):
            openais(url, "wrong").chat.completions.create(model="a", **say)
        with pytest.raises(openai.NotFoundError, match="use one of 'a'"):
            openais(url, "user-token").chat.completions.create(model="b/1", **say)
        with pytest.raises(openai.RateLimitError) as refusal:
            openais(url, "user-token").chat.completions.create(model="a", **say)
        assert refusal.value.code == "rate_limit_exceeded"
        assert 1 <= int(refusal.value.response.headers["Retry-After"]) <= 60

    def ask_anthropic(url: str) -> None:
        say: Any = {"max_tokens": 5, "messages": [{"role": "user", "content": "Hello"}]}
        refusals: Any = (
            ({"api_key": "wrong"}, anthropic_sdk.AuthenticationError),
            ({"api_key": "other-token"}, anthropic_sdk.NotFoundError),
            ({"auth_token": "user-token"}, anthropic_sdk.RateLimitError),
        )
        for keys, error in refusals:
            client = anthropic_sdk.Anthropic(base_url=url, max_retries=0, **keys)
            with pytest.raises(error):
                client.messages.create(model="a", **say)

    async def scenario(site: Site) -> None:
        site.registry.backends["a"].limits = RateLimits(requests_per_minute=1)
        await site.seen()
        assert (await asks(site)).status == 200
        await asyncio.to_thread(ask_openai, site.url)
        await asyncio.to_thread(ask_anthropic, site.url)

    run(tmp_path, scenario)


def test_a_key_that_ends_engines_is_refused_there(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        backend = site.router.tenants["a"]

        async def ends(engine: FakeEngine, request: web.Request) -> web.StreamResponse:
            backend.ended(Ending(status=-11), time.monotonic())
            assert request.transport is not None
            request.transport.abort()
            return web.Response()

        site.a.answer = ends
        for seed in range(3):  # each time another body
            answer = await asks(site, seed=seed)
            assert answer.status == 502
            assert (await answer.json())["error"]["code"] == "request_ended_engine"
        site.a.answer = plain
        answer = await asks(site, seed=3)
        assert 590 < int(answer.headers["Retry-After"]) <= 600
        error = (await answer.json())["error"]
        assert (answer.status, error["code"]) == (422, "key_ended_engines")
        assert "requests of key 'user' ended its engine 3 times" in error["message"]
        assert (await asks(site, "root", seed=3)).status == 200
        assert len(site.a.seen) == 4

    run(tmp_path, scenario)


# -- what is seen ---------------------------------------------------------------------------


def test_a_key_sees_its_models_alone(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        site.registry.backends["b/1"].adapters = {"x": "/lora/x", "y": "/lora/y"}
        await site.seen()
        site.b.adapters = ("x", "y")
        await site.routed.holds(
            AccessTable((*KEYS.values(), AccessKey("lora", digest("lora-token"), ("x", "gone"))))
        )

        async def listed(name: str) -> list[str]:
            async with site.http.get(site.url + "/v1/models", headers=bearer(name)) as answer:
                return [card["id"] for card in (await answer.json())["data"]]

        assert await listed("user") == ["a"]
        assert await listed("other") == ["b/1", "x", "y"]
        assert await listed("lora") == ["x"]
        assert await listed("prom") == []
        assert await listed("root") == ["a", "b/1", "x", "y"]
        for model, expected in (("x", 200), ("y", 404), ("b/1", 404), ("a", 404)):
            async with site.post({"model": model}, headers=bearer("lora")) as answer:
                assert answer.status == expected, model

    run(tmp_path, scenario)


def test_a_key_for_an_alias_alone_is_not_told_whose_it_is(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        site.registry.backends["b/1"].aliases = ("gpt",)
        site.registry.backends["b/1"].adapters = {"x": "/lora/x"}
        site.registry.backends["b/1"].limits = RateLimits(requests_per_minute=1)
        await site.seen()
        keys = AccessKey("some", digest("some-token"), ("gpt", "x"))
        await site.routed.holds(AccessTable((*KEYS.values(), keys)))
        for route in ("/v1/models", "/v1/models/gpt", "/v1/models/x", "/api/tags", "/api/ps"):
            async with site.http.get(site.url + route, headers=bearer("some")) as answer:
                text = await answer.text()
                assert answer.status == 200 and "b/1" not in text, text
        for status in (200, 429):
            async with site.post({"model": "gpt"}, headers=bearer("some")) as answer:
                text = await answer.text()
                assert answer.status == status, text
        assert "model 'gpt' has its limit" in text and "b/1" not in text, text
        async with site.http.get(site.url + "/v1/models", headers=bearer("other")) as answer:
            cards = {card["id"]: card for card in (await answer.json())["data"]}
        assert cards["gpt"]["root"] == cards["gpt"]["parent"] == cards["x"]["parent"] == "b/1"

    run(tmp_path, scenario)


@pytest.mark.parametrize("model", ["b/1", "nowhere"])
def test_a_model_of_others_is_refused_as_one_that_is_none(tmp_path: Path, model: str) -> None:
    async def scenario(site: Site) -> None:
        async with site.post({"model": model}, headers=bearer("user")) as answer:
            error = (await answer.json())["error"]
        assert error["message"] == f"no model {model!r} here: use one of 'a'"
        async with site.post({"model": model}, headers=bearer("prom")) as answer:
            assert (await answer.json())["error"]["message"].endswith("use one of none")
        assert not site.b.seen

    run(tmp_path, scenario)


def test_reasons_are_told_to_an_operator_through_a_proxy(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        site.registry.backends["a"].fail("it is in /srv/models")
        await site.seen()
        passed_on = bearer("root") | {"X-Forwarded-For": "10.0.0.7"}
        async with site.http.get(site.url + "/health", headers=passed_on) as answer:
            assert (await answer.json())["reasons"] == {"a": "it is in /srv/models"}
        passed_on = bearer("user") | {"X-Forwarded-For": "10.0.0.7"}
        async with site.post({"model": "a"}, headers=passed_on) as answer:
            assert "/srv" not in await answer.text()

    run(tmp_path, scenario)


def test_ready_says_whether_and_not_why(tmp_path: Path) -> None:
    async def told(site: Site, path: str) -> tuple[int, object]:
        async with site.http.get(site.url + path) as answer:
            return answer.status, await answer.json()

    async def scenario(site: Site) -> None:
        ok, down = {"status": "ok"}, {"status": "down"}
        site.registry.backends["a"].fail("it is in /srv/models")
        await site.seen()
        assert await told(site, "/ready") == (200, ok)
        await site.becomes("b/1", LifeState.DOWN)
        assert await told(site, "/ready") == (503, down)
        assert await told(site, "/live") == (200, ok)
        await site.becomes("b/1", LifeState.READY)
        await site.router.drain()
        assert await told(site, "/ready") == (503, down)
        assert await told(site, "/live") == (200, ok)

    run(tmp_path, scenario)


# -- limits ---------------------------------------------------------------------------------


def limited(**limits: int) -> AccessTable:
    """Table with the key "user" that has these limits, and the key "free" for the same models
    without limits.
    """
    free = AccessKey("free", digest("free-token"), None)
    return AccessTable(
        (AccessKey("user", digest("user-token"), None, limits=RateLimits(**limits)), free)
    )


async def asks(
    site: Site, name: str = "user", path: str = "/v1/completions", **body: object
) -> aiohttp.ClientResponse:
    """Send a request with a key, and read its answer."""
    answer = await site.post({"model": "a", **body}, path, headers=bearer(name))
    await answer.read()
    return answer


async def assert_limited(answer: aiohttp.ClientResponse, most_s: int, words: str) -> None:
    assert answer.status == 429
    assert 1 <= int(answer.headers["Retry-After"]) <= most_s
    error = (await answer.json())["error"]
    assert error["code"] == "rate_limit_exceeded"
    assert words in error["message"]


def test_requests_a_minute_are_counted_for_each_key(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        for _ in range(2):
            assert (await asks(site)).status == 200
        await assert_limited(
            await asks(site), 60, "key 'user' has its limit of 2 requests a minute"
        )
        answer = await asks(site, path="/v1/messages")
        error = await answer.json()
        assert (answer.status, error["error"]["type"]) == (429, "rate_limit_error")
        assert (await asks(site, "free")).status == 200
        assert len(site.a.seen) == 3

    run(tmp_path, scenario, limited(requests_per_minute=2))


def test_a_tenants_limits_hold_for_all_keys_and_without_keys(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        site.registry.backends["a"].limits = RateLimits(requests_per_minute=2)
        await site.seen()
        assert (await asks(site)).status == 200
        assert (await asks(site, "free")).status == 200
        await assert_limited(await asks(site), 60, "model 'a' has its limit of 2 requests a minute")
        async with site.post({"model": "b/1"}, headers=bearer("user")) as answer:
            assert answer.status == 200

    for table in (limited(), AccessTable()):
        run(tmp_path, scenario, table)


@pytest.mark.parametrize("leaves", [True, False])
def test_requests_at_one_time_are_counted_until_they_end(tmp_path: Path, leaves: bool) -> None:
    async def scenario(site: Site) -> None:
        site.a.answer = slow_stream
        stream = await site.post({"model": "a", "stream": True}, headers=bearer("user"))
        assert await stream.content.readany() == EVENTS[0]
        await assert_limited(await asks(site), 1, "key 'user' has its limit of 1 requests at one")
        site.a.go_on.set()
        if leaves:
            stream.close()
            while (answer := await asks(site)).status == 429:
                await asyncio.sleep(0.05)
        else:
            await stream.read()
            answer = await asks(site)
        assert answer.status == 200

    run(tmp_path, scenario, limited(in_flight=1))


def test_a_request_that_reaches_no_engine_gives_its_place_back(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        await site.becomes("a", LifeState.DOWN)
        for _ in range(3):
            assert (await asks(site, prompt="x" * 800)).status == 503
        await site.becomes("a", LifeState.READY)
        assert (await asks(site)).status == 200

    run(tmp_path, scenario, limited(in_flight=1, tokens_per_minute=300))


async def tells_usage(engine: FakeEngine, request: web.Request) -> web.StreamResponse:
    usage = {"prompt_tokens": 30, "completion_tokens": 70, "total_tokens": 100}
    return web.json_response({"usage": usage})


def test_tokens_count_as_the_engine_says(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        site.a.answer = tells_usage
        assert (await asks(site, max_tokens=200)).status == 200  # 100 of 250 are taken
        await assert_limited(
            await asks(site, max_tokens=200), 60, "key 'user' has its limit of 250 tokens a minute"
        )
        assert (await asks(site)).status == 200  # it says no bound, and takes 100 as well
        assert (await asks(site)).status == 200  # there was room for its prompt
        await assert_limited(await asks(site), 60, "tokens a minute")
        assert len(site.a.seen) == 3

    run(tmp_path, scenario, limited(tokens_per_minute=250))


def test_an_error_of_an_engine_takes_no_tokens(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        site.a.answer = refuses
        for _ in range(5):
            assert (await asks(site, prompt="x" * 800)).status == 400

    run(tmp_path, scenario, limited(tokens_per_minute=250))


def test_a_body_is_within_the_bounds_of_its_tenant(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        bounds = BodyBounds(max_tokens=100, n=2, defaults={"temperature": 0.5})
        site.registry.backends["a"].bounds = bounds
        await site.seen()
        answer = await asks(site, n=3)
        error = (await answer.json())["error"]
        assert (answer.status, error["param"], error["code"]) == (400, "n", "beyond_bound")
        answer = await asks(site, path="/v1/messages", max_tokens=101)
        assert (await answer.json())["error"]["type"] == "invalid_request_error"
        assert not site.a.seen
        site.a.answer = slow_stream
        body, path = {"model": "a", "n": 2}, "/v1/chat/completions"
        stream = await site.post(body, path, headers=bearer("user"))
        (seen,) = site.a.seen
        added = {"max_tokens": 100, "temperature": 0.5}
        assert seen["body"] == {"model": "a", "n": 2} | added
        # what was added is booked as well: 2 answers of 100 tokens
        await assert_limited(await asks(site, max_tokens=100), 60, "tokens a minute")
        stream.close()

    run(tmp_path, scenario, limited(tokens_per_minute=300, requests_per_minute=100))


# -- metrics --------------------------------------------------------------------------------


async def metrics(site: Site, of: str = "mirage_key_") -> dict[str, float]:
    async with site.http.get(site.url + "/metrics", headers=bearer("prom")) as answer:
        lines = (await answer.text()).splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line.startswith(of))
    return {name.removeprefix(of): float(value) for name, value in pairs if "_created" not in name}


def test_requests_and_tokens_are_counted_by_key(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        site.a.answer = tells_usage
        await asks(site)
        await asks(site, max_tokens="no number")
        site.a.answer = slow_stream
        site.a.go_on.set()
        await asks(site, stream=True)  # 3 events, and a body of 30 bytes
        await asks(site, "wrong")
        await asks(site, "other")
        async with site.post({"model": "b/1"}, headers=bearer("user")):
            pass
        assert await metrics(site) == {
            'requests_total{key="user",model="a",status="200"}': 3,
            'requests_total{key="",model="",status="401"}': 1,
            'requests_total{key="other",model="",status="404"}': 1,
            'requests_total{key="user",model="",status="404"}': 1,
            'tokens_total{key="user",kind="prompt",model="a"}': 60,
            'tokens_total{key="user",kind="completion",model="a"}': 140,
            'tokens_total{key="user",kind="estimated",model="a"}': 8 + 3,
        }
        refused = await metrics(site, 'mirage_http_requests_total{code="401",tenant="')
        assert refused == {'"}': 1}

    run(tmp_path, scenario)


def test_keys_and_models_that_are_gone_have_no_lines(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        await asks(site)
        async with site.post({"model": "b/1"}, headers=bearer("other")):
            pass
        assert len(await metrics(site)) == 4
        await site.routed.holds(AccessTable((KEYS["prom"], KEYS["other"])))
        assert all('key="other"' in name for name in await metrics(site))
        del site.registry.backends["b/1"]
        await site.seen()
        assert await metrics(site) == {}

    run(tmp_path, scenario)


def test_another_table_holds_from_the_next_request_on(tmp_path: Path) -> None:
    """A table with two keys of one name is replaced by one with only the second. The first key is
    refused from then on; the counts of both, which are one client's, continue.
    """

    async def scenario(site: Site) -> None:
        limits = RateLimits(requests_per_minute=2)
        first = AccessKey("user", digest("user-token"), None, limits=limits)
        second = AccessKey("user", digest("next-token"), None, limits=limits)
        await site.routed.holds(AccessTable((first, second)))
        assert (await asks(site)).status == 200
        assert (await asks(site, "next")).status == 200
        assert (await asks(site, "next")).status == 429, "they are counted together"
        await site.routed.holds(AccessTable((second,)))
        assert (await asks(site)).status == 401
        assert (await asks(site, "next")).status == 429, "what was counted stays"

    run(tmp_path, scenario)


def test_a_key_that_expires_while_its_stream_runs_lets_it_end(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        site.a.answer = slow_stream
        async with site.post({"model": "a", "stream": True}, headers=bearer("user")) as stream:
            assert await stream.content.readany() == EVENTS[0]
            await site.routed.holds(AccessTable((KEYS["other"],)))
            site.a.answer = plain
            assert (await asks(site)).status == 401
            site.a.go_on.set()
            assert await stream.content.read() == b"".join(EVENTS[1:])

    run(tmp_path, scenario)
