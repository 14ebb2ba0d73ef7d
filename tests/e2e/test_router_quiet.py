"""Streams that are silent for long get comments, and no other answers do."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import anthropic
import openai
import pytest
from aiohttp import web
from clients import limited
from test_router import EVENTS, FakeEngine, Site, broken, run

from mirage.serve.clients.stream_pulse import COMMENT

pytestmark = pytest.mark.e2e
QUIET = limited(stream_quiet_s=0.1)


async def sent(
    engine: FakeEngine, request: web.Request, *parts: bytes, kind: str
) -> web.StreamResponse:
    """Stream of a fake engine: the first of `parts` immediately; the next one, or after the last
    the end, each time `go_on` is set.
    """
    response = web.StreamResponse(headers={"Content-Type": kind})
    await response.prepare(request)
    for part in parts:
        if part:
            await response.write(part)
        engine.begun.set()
        await engine.go_on.wait()
        engine.go_on.clear()
    return response


def engine_of(*parts: bytes, kind: str = "text/event-stream"):  # type: ignore[no-untyped-def]
    return lambda engine, request: sent(engine, request, *parts, kind=kind)


async def until(answer: object, mark: bytes) -> bytes:
    """Bytes of a stream up to and including `mark`."""
    found = b""
    while mark not in found:
        found += await answer.content.readany()  # type: ignore[attr-defined]
    return found


def test_a_silent_stream_gets_comments_also_before_its_first_event(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        site.a.answer = engine_of(b"", *EVENTS)
        async with site.post({"model": "a", "stream": True}) as answer:
            whole = await until(answer, COMMENT * 3)
            assert whole.replace(COMMENT, b"") == b""
            for event in EVENTS:
                site.a.go_on.set()
                whole += await until(answer, event)
            whole += await until(answer, COMMENT)
            site.a.go_on.set()
            whole += await answer.content.read()
        assert whole.replace(COMMENT, b"") == b"".join(EVENTS)

    run(tmp_path, scenario, QUIET)


def test_no_comment_stands_within_an_event(tmp_path: Path) -> None:
    halves = EVENTS[0][:5], EVENTS[0][5:] + EVENTS[1][:7], EVENTS[1][7:]

    async def scenario(site: Site) -> None:
        site.a.answer = engine_of(*halves)
        async with site.post({"model": "a", "stream": True}) as answer:
            whole = await until(answer, COMMENT)
            site.a.go_on.set()
            whole += await until(answer, EVENTS[0] + COMMENT)
            site.a.go_on.set()
            whole += await until(answer, EVENTS[1])
            site.a.go_on.set()
            whole += await answer.content.read()
        assert [part for part in whole.split(COMMENT) if part] == EVENTS[:2]

    run(tmp_path, scenario, QUIET)


def test_an_event_too_long_to_be_held_gets_none_within(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mirage.serve.http.whole_events.MOST_BYTES", 10)

    async def scenario(site: Site) -> None:
        site.a.answer, site.b.answer = engine_of(b"data: 12345678", b"9\n\n"), engine_of(b"", b"")
        async with (
            site.post({"model": "a", "stream": True}) as answer,
            site.post({"model": "b/1", "stream": True}) as other,
        ):
            whole = await until(answer, b"8")
            await until(other, COMMENT * 3)  # so long it was silent
            site.a.go_on.set()
            whole += await until(answer, b"9\n\n")
        assert whole == b"data: 123456789\n\n"

    run(tmp_path, scenario, QUIET)


def test_other_answers_get_none(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        site.a.answer = engine_of(b'{"a"', b": 1}", kind="application/json")
        site.b.answer = engine_of(b"", b"")
        async with (
            site.post({"model": "a"}) as answer,
            site.post({"model": "b/1", "stream": True}) as other,
        ):
            await until(other, COMMENT * 2)
            site.a.go_on.set()
            await asyncio.sleep(0)
            whole = await until(answer, b"}")
        assert json.loads(whole) == {"a": 1}

    run(tmp_path, scenario, QUIET)


def test_a_stream_that_breaks_while_it_is_silent_ends_with_an_error(tmp_path: Path) -> None:
    async def dies(engine: FakeEngine, request: web.Request) -> web.StreamResponse:
        response = await sent(engine, request, EVENTS[0], kind="text/event-stream")
        assert request.transport is not None
        request.transport.abort()
        return response

    async def scenario(site: Site) -> None:
        site.a.answer = dies
        async with site.post({"model": "a", "stream": True}) as answer:
            await until(answer, EVENTS[0] + COMMENT)
            site.a.go_on.set()
            rest = (await broken(answer)).replace(COMMENT, b"")
            assert json.loads(rest.removeprefix(b"data: "))["error"]["code"] == 502

    run(tmp_path, scenario, QUIET)


CHUNK = {
    "id": "x", "object": "chat.completion.chunk", "created": 1, "model": "a",
    "choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": None}],
}  # fmt: skip
DATA = f"data: {json.dumps(CHUNK)}\n\n".encode()
STOP = b'event: message_stop\ndata: {"type": "message_stop"}\n\n'


def test_clients_pass_over_comments(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        site.a.answer = engine_of(b"", DATA, b"data: [DONE]\n\n")
        base = f"{site.url}/v1"
        heard = []
        async with openai.AsyncOpenAI(base_url=base, api_key="x", max_retries=0) as client:
            messages = [{"role": "user", "content": "x"}]
            stream = await client.chat.completions.create(
                model="a",
                messages=messages,  # type: ignore[arg-type]
                stream=True,
            )
            going = asyncio.create_task(goes_on(site))
            heard = [chunk.choices[0].delta.content async for chunk in stream]
            going.cancel()
        assert heard == ["hi"]
        site.a.answer = engine_of(b"", STOP)
        async with anthropic.AsyncAnthropic(base_url=site.url, api_key="x", max_retries=0) as other:
            messages = [{"role": "user", "content": "x"}]
            events = await other.messages.create(
                model="a",
                messages=messages,  # type: ignore[arg-type]
                max_tokens=1,
                stream=True,
            )
            going = asyncio.create_task(goes_on(site))
            assert [event.type async for event in events] == ["message_stop"]
            going.cancel()

    run(tmp_path, scenario, QUIET)


async def goes_on(site: Site) -> None:
    """Set `go_on` of engine `a` every 0.35 s."""
    while True:
        await asyncio.sleep(0.35)
        site.a.go_on.set()
