"""Lost requests are given up, and the router's count of requests that wait for an engine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiohttp import web
from clients import connected
from test_router import EVENTS, FakeEngine, Site, run, slow_stream

from mirage.serve.health.awaited_answers import AwaitedAnswers

pytestmark = pytest.mark.e2e

BODY = {"model": "a"}
LOST = b"lost this request: send it again"


def answers(site: Site) -> AwaitedAnswers:
    return site.router.tenants["a"].answers


async def waits(site: Site, count: int) -> list[int]:
    while len(answers(site).waits) != count:
        await asyncio.sleep(0.01)
    return list(answers(site).waits)


async def never(engine: FakeEngine, request: web.Request) -> web.StreamResponse:
    engine.begun.set()
    try:
        await asyncio.Event().wait()
    finally:
        engine.cancelled.set()
    raise AssertionError


async def endless(engine: FakeEngine, request: web.Request) -> web.StreamResponse:
    """Answer of a fake engine without an end, so longer than all buffers on its way."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(bytes(1 << 20))


def test_one_that_is_given_up_is_a_502_and_the_engine_hears_of_it(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        site.a.answer = never
        asked = asyncio.create_task(site.http.post(f"{site.url}/v1/completions", json=BODY))
        await site.a.begun.wait()
        answers(site).give_up(await waits(site, 1))
        answer = await asked
        assert answer.status == 502 and LOST in await answer.read()
        await site.a.cancelled.wait()
        assert not answers(site).waits

    run(tmp_path, scenario)


def test_a_stream_that_is_given_up_ends_with_an_error_event(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        site.a.answer = slow_stream
        async with site.post({**BODY, "stream": True}) as answer:
            assert await answer.content.readuntil(b"\n\n") == EVENTS[0]
            answers(site).give_up(await waits(site, 1))
            assert LOST in await answer.content.readuntil(b"\n\n")

    run(tmp_path, scenario)


def test_each_part_of_an_answer_is_waited_for_anew(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        site.a.answer = slow_stream
        async with site.post({**BODY, "stream": True}) as answer:
            await answer.content.readuntil(b"\n\n")
            first = await waits(site, 1)
            await asyncio.sleep(0.05)
            assert await waits(site, 1) == first, "nothing came"
            site.a.go_on.set()
            await answer.read()
        await waits(site, 0)

    run(tmp_path, scenario)


def test_a_client_that_does_not_read_waits_for_no_engine(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        site.a.answer = endless
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 14\r\n\r\n"
        _, writer = await connected(site.url, head + b'{"model": "a"}')
        still = 0
        while still < 20:  # buffers fill up meanwhile
            await asyncio.sleep(0.05)
            still = 0 if answers(site).waits or not site.a.seen else still + 1
        writer.transport.abort()

    run(tmp_path, scenario)


def test_the_supervisor_hears_of_long_waits_and_gives_them_up(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        site.a.answer = never
        asked = asyncio.create_task(site.http.post(f"{site.url}/v1/completions", json=BODY))
        owed = site.registry.backends["a"].answers
        while not owed.waits:
            await asyncio.sleep(0.01)
        assert [wait.number for wait in owed.waits] == await waits(site, 1)
        owed.give_up(owed.waits)
        answer = await asked
        assert answer.status == 502 and LOST in await answer.read()
        assert (owed.lost, list(owed.waits)) == (1, [])

    run(tmp_path, scenario)
