"""Bytes from strangers at the router's port that are no good requests, over raw sockets."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from routed import routed

from mirage.config import Policy
from mirage.control.roster.states import LifeState
from mirage.serve.api.routes import FORM_ROUTES, JSON_ROUTES, REFUSED_ROUTES
from mirage.serve.http import error_answers
from mirage.serve.registry.registry import Registry, TenantServer
from mirage.serve.routed.resizing import ROUTE, Resize
from mirage.serve.routed.table import RouterTable
from mirage.serve.router.app import Router

pytestmark = pytest.mark.e2e

WAIT_S = 60
SECRET = b"SECRETTOKEN"
"""Text in requests and in failures that must not be repeated in logs, nor in answers to strangers.
"""
HOST = b"Host: localhost\r\nConnection: close\r\n"
GET = b"GET /health HTTP/1.1\r\n" + HOST
POST = b"POST /v1/completions HTTP/1.1\r\n" + HOST
KEY = b"Authorization: Bearer " + SECRET

Ask = Callable[[bytes], Awaitable[bytes]]


def run(scenario: Callable[[Ask, Router], Awaitable[None]], *tenants: TenantServer) -> list[Resize]:
    """Run `scenario` with a router for `tenants`, and with a client that reads until its connection
    is closed. Return the sizes of tiers that were asked for.
    """
    asked: list[Resize] = []

    async def resize(wanted: Resize) -> None:
        asked.append(wanted)

    async def main(folder: Path) -> None:
        registry = Registry(Policy.MIRAGE, 1 << 30, {tenant.name: tenant for tenant in tenants})

        async def ask(url: str, data: bytes) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", url.rsplit(":", 1)[1])
            writer.write(data)
            answer = await reader.read()
            writer.close()
            return answer

        async with routed(folder, registry, resize=resize) as one, asyncio.timeout(WAIT_S):
            await scenario(partial(ask, one.url), one.router)

    with TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
    return asked


def parsed(answer: bytes) -> tuple[int, dict[str, object]]:
    """Status and error of an answer in OpenAI's form."""
    head, _, body = answer.partition(b"\r\n\r\n")
    found = re.match(rb"HTTP/1\.[01] (\d{3}) ", head)
    assert found is not None and b"application/json" in head, answer
    (error,) = json.loads(body).values()
    assert set(error) == {"message", "type", "param", "code"}
    return int(found[1]), error


def answered(router: Router, status: int) -> float:
    """Number of requests without a tenant and with this status, by the router's metrics."""
    labels = f'{{code="{status}",tenant=""}}'
    found = re.search(rf"requests_total{re.escape(labels)} (\S+)", router.metrics.render().decode())
    return float(found[1]) if found else 0.0


BROKEN = {
    "a header's value is too long": (431, GET + KEY + b"a" * 9000 + b"\r\n\r\n"),
    "a header's name is too long": (431, GET + SECRET + b"a" * 9000 + b": x\r\n\r\n"),
    "there are too many headers": (
        431,
        GET + b"".join(b"X-%d: %s\r\n" % (n, SECRET) for n in range(200)) + b"\r\n",
    ),
    "the path is too long": (414, b"GET /" + SECRET * 900 + b" HTTP/1.1\r\n" + HOST + b"\r\n"),
    "the query is too long": (
        414,
        b"POST /v1/completions?k=" + SECRET * 900 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    ),
    "a trailer is too long": (
        431,
        POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + KEY + b"a" * 9000 + b"\r\n\r\n",
    ),
    "HTTP/2": (400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SECRET),
    "TLS": (400, b"\x16\x03\x01\x02\x00\x01\x00" + SECRET),
    "garbage": (400, SECRET + b"\x00\xff\r\n\r\n"),
    "a line of two words": (400, b"GET " + SECRET + b"\r\n\r\n"),
    "another version": (400, b"GET / HTTP/9.9\r\n" + KEY + b"\r\n\r\n"),
    "a blank before the colon": (400, GET + b"Authorization : " + SECRET + b"\r\n\r\n"),
    "a header without a colon": (400, GET + SECRET + b"\r\n\r\n"),
    "a zero byte in a header": (400, GET + KEY + b"\x00\r\n\r\n"),
    "a header that is folded": (400, GET + b"X: a\r\n " + SECRET + b"\r\n\r\n"),
    "lines that end without a return": (400, b"GET / HTTP/1.1\nHost: a\n" + KEY + b"\n\n"),
    "two lengths": (
        400,
        POST + KEY + b"\r\nContent-Length: 3\r\nContent-Length: 5\r\n\r\nabc",
    ),
    "a length and chunks": (
        400,
        POST + KEY + b"\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc",
    ),
    "a length that is no number": (400, POST + b"Content-Length: " + SECRET + b"\r\n\r\n"),
    "a length below zero": (400, POST + KEY + b"\r\nContent-Length: -1\r\n\r\nabc"),
    "a chunk without a size": (
        400,
        POST + b"Transfer-Encoding: chunked\r\n\r\n" + SECRET + b"\r\nabc",
    ),
    "no host": (400, b"GET /health HTTP/1.1\r\n" + KEY + b"\r\n\r\n"),
    "an address that is none": (400, b"GET http://[" + SECRET + b" HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a proxy's request": (400, b"CONNECT " + SECRET + b":99999 HTTP/1.1\r\n" + HOST + b"\r\n"),
    "an expectation that nobody knows": (
        417,
        POST + b"Expect: " + SECRET + b"\r\nContent-Length: 2\r\n\r\n{}",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_cannot_be_read_is_answered_in_openais_form(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    status, data = BROKEN[what]

    async def scenario(ask: Ask, router: Router) -> None:
        answer = await ask(data)
        found, error = parsed(answer)
        assert (found, error["code"]) == (status, status)
        assert b"aiohttp" not in answer
        assert SECRET not in answer
        assert answered(router, status) == 1

    with caplog.at_level(logging.DEBUG):
        run(scenario)
    assert SECRET.decode() not in caplog.text
    assert not [record for record in caplog.records if record.exc_info]


def test_a_request_that_nearly_is_too_large_is_read() -> None:
    async def scenario(ask: Ask, router: Router) -> None:
        value = b"a" * (error_answers.LONGEST_FIELD - len(b"Authorization"))
        headers = b"".join(b"X-%d: y\r\n" % n for n in range(error_answers.MOST_HEADERS - 3))
        answer = await ask(GET + b"Authorization: " + value + b"\r\n" + headers + b"\r\n")
        assert answer.startswith(b"HTTP/1.1 200 ")
        path = b"/" + b"a" * (error_answers.LONGEST_TARGET - 1)
        assert parsed(await ask(b"GET " + path + b" HTTP/1.1\r\n" + HOST + b"\r\n"))[0] == 404

    run(scenario)


def test_many_that_cannot_be_read_are_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(ask: Ask, router: Router) -> None:
        for _ in range(200):
            await ask(b"garbage\r\n\r\n")
        assert answered(router, 400) == 200

    run(scenario)
    lines = [record.getMessage() for record in caplog.records]
    assert 1 <= len(lines) < 100
    assert lines[0] == "requests that could not be read: 1, last answered 400 to 127.0.0.1"


def test_a_fault_of_a_handler_is_a_place_in_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: RouterTable, *, reasons: bool) -> None:
        raise KeyError(SECRET.decode())

    monkeypatch.setattr(RouterTable, "health", fails)

    async def scenario(ask: Ask, router: Router) -> None:
        answer = await ask(GET + KEY + b"\r\n\r\n")
        assert parsed(answer)[0] == 500
        assert SECRET not in answer
        assert answered(router, 500) == 1

    run(scenario)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "KeyError at " in line and f"{__file__}:" in line
    assert SECRET.decode() not in caplog.text


def test_only_one_route_changes_the_server_and_not_for_pages() -> None:
    """Only `POST` on the route of tier sizes changes the server, and not for web pages, proxies or
    other content types. All other routes that are not GET pass requests on to a model or refuse
    them.
    """

    async def scenario(ask: Ask, router: Router) -> None:
        for headers, status in (
            (b"Origin: http://evil.example\r\nContent-Type: application/json\r\n", 403),
            (b"X-Forwarded-For: 10.0.0.7\r\nContent-Type: application/json\r\n", 403),
            (b"Content-Type: text/plain\r\n", 415),
        ):
            start = f"POST {ROUTE} HTTP/1.1\r\n".encode() + HOST + headers
            answer = await ask(start + b"Content-Length: 11\r\n\r\n" + b'{"host": 0}')
            assert parsed(answer)[0] == status
        routes = {(route.method, str(route.path)) for route in router.routes()}
        changing = {path for method, path in routes if method not in ("GET", "HEAD")}
        assert changing - set(REFUSED_ROUTES) == {ROUTE, *JSON_ROUTES, *FORM_ROUTES}

    assert run(scenario) == []


BODY = b'{"model": "a"}'
ASK_A = POST + b"Content-Length: 14\r\n"


@pytest.mark.parametrize(
    ("headers", "version", "told"),
    [
        (b"", b"1.1", True),
        (b"X-Forwarded-For: 10.0.0.7\r\n", b"1.1", False),
        (b"Connection: close\r\n", b"1.0", False),
    ],
)
def test_reasons_are_told_on_this_machine_alone(headers: bytes, version: bytes, told: bool) -> None:
    """The reason of a failed tenant is a line of a log and may contain paths. Only clients on this
    machine, and without a proxy, are told it.
    """
    failed = TenantServer("a", Path("/run/a.sock"), 256)
    failed.fail(f"no model folder at /{SECRET.decode()}")

    async def scenario(ask: Ask, router: Router) -> None:
        state = GET.replace(b"/health", b"/mirage/state")
        for request in (GET + headers + b"\r\n", state + headers + b"\r\n"):
            assert (SECRET in await ask(request.replace(b"HTTP/1.1", b"HTTP/" + version))) is told
        asked = ASK_A.replace(b"HTTP/1.1", b"HTTP/" + version)
        answer = await ask(asked + headers + b"\r\n" + BODY)
        assert parsed(answer)[0] == 503
        assert (SECRET in answer) is told

    run(scenario, failed)


@pytest.mark.usefixtures("unexplained")
def test_no_answer_has_the_path_of_a_socket_or_the_name_of_a_library() -> None:
    gone = TenantServer("a", Path(f"/{SECRET.decode()}/a.sock"), 256, LifeState.READY)

    async def scenario(ask: Ask, router: Router) -> None:
        answer = await ask(ASK_A + b"\r\n" + BODY)
        assert parsed(answer)[0] == 502
        assert SECRET not in answer
        for request in (ASK_A + b"\r\n" + BODY, GET + b"\r\n", b"GET /no HTTP/1.1\r\n" + HOST):
            assert b"Server: mirage\r\n" in await ask(request + b"\r\n")

    run(scenario, gone)
