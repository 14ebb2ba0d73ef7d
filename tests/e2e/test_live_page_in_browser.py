"""The live page of a real router in a real browser: seen, read aloud, and used by keys alone."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from test_router import FakeEngine, Site, serving
from test_router_keys import TABLE

from mirage.config import HttpSection
from mirage.serve.access.forms import NO_KEYS, AccessTable
from mirage.serve.overview.forms import (
    Decision,
    EngineRates,
    Latencies,
    OverviewTenant,
    OverviewTold,
    RoleBytes,
)
from mirage.serve.routed.resizing import Resize

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        find_spec("PyQt6") is None or find_spec("PyQt6.QtWebEngineCore") is None,
        reason="no browser: make pages, or pip install '.[browser]'",
    ),
]

DRIVEN = Path(__file__).with_name("driven_page.py")
SCREEN, PHONE = 1280, 400
"""Widths of the window in CSS pixels."""
LIMIT_S = 60
READABLE = 4.5
"""Least contrast of text by WCAG."""
MIB = 1 << 20
WORDS = ["The capital ", "of France ", "is Paris."]
MARKUP = "<img src=x onerror=alert(1)>"
ENDING = {"garbled": b"{no JSON", "broken": b'{"error": {"message": "too hot"}}'}
"""Events at which a page gives an answer up, by the prompt that makes the fake engine send them."""


class Overviews:
    """Stand-in for the supervisor, whose overview the test sets."""

    def __init__(self) -> None:
        self.names = ["a", "b/1"]
        self.decisions = [Decision(1.79e9, "a", "b/1 lends a 3.0 MiB of layers", "a grows.")]
        self.reason = ""

    async def __call__(self, *, reasons: bool) -> bytes:
        told = OverviewTold(
            t=time.time(),
            policy="mirage",
            device="host:0",
            device_bytes=64 * MIB,
            status="ok",
            reason="",
            tenants=[self._tenant(name) for name in self.names],
            decisions=self.decisions,
        )
        return msgspec.json.encode(told)

    def _tenant(self, name: str) -> OverviewTenant:
        return OverviewTenant(
            name=name,
            state="ready",
            since=1.79e9,
            reason=self.reason if name == "a" else "",
            next="-",
            memory=RoleBytes(12 * MIB, 4 * MIB, 2 * MIB, 2 * MIB),
            share_bytes=32 * MIB,
            layers=8,
            layers_remapped=2 if name == "a" else 0,
            running=3,
            waiting=1,
            rates=EngineRates(1.26, 240.4, 100.0),
            latencies=Latencies(20, 0.0312, 1.5, 0.0098, 0.0451),
        )


async def says(engine: FakeEngine, request: web.Request) -> web.StreamResponse:
    """Answer of the fake engine to a chat: a stream, or an error if the prompt is "fail"."""
    asked = engine.seen[-1]["body"]["messages"][-1]["content"]  # type: ignore[index]
    if asked == "fail":
        error = {"message": "no chat template", "code": 400}
        return web.json_response({"error": error}, status=400)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for word in [MARKUP] if asked == "markup" else WORDS:
        event = {"choices": [{"delta": {"content": word}}]}
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n: keep-alive\n\n")
        if asked == "slow":
            await engine.go_on.wait()
        if asked in ENDING:
            await response.write(b"data: " + ENDING[asked] + b"\n\n")
            await _stays(engine)
    usage = {"choices": [], "usage": {"completion_tokens": 3}}
    await response.write(b"data: " + json.dumps(usage).encode() + b"\n\ndata: [DONE]\n\n")
    return response


async def _stays(engine: FakeEngine) -> None:
    """Wait, as if computing, until the client has gone."""
    try:
        await engine.go_on.wait()
    except asyncio.CancelledError:
        engine.cancelled.set()
        raise


class Page:
    """The live page in a browser; the router's site is served in a thread."""

    def __init__(self, browser: subprocess.Popen[str], site: Site, overviews: Overviews) -> None:
        self._browser, self.site, self.overviews = browser, site, overviews

    def do(self, *words: object) -> Any:
        assert self._browser.stdin is not None and self._browser.stdout is not None
        self._browser.stdin.write(json.dumps(words) + "\n")
        self._browser.stdin.flush()
        return json.loads(self._browser.stdout.readline())

    def js(self, expression: str) -> Any:
        return self.do("js", expression)

    def until(self, expression: str) -> Any:
        deadline = time.monotonic() + LIMIT_S
        while not (found := self.js(expression)):
            assert time.monotonic() < deadline, (expression, self.words(), self.do("said"))
            time.sleep(0.1)
        return found

    def words(self) -> str:
        return str(self.js("document.body.innerText"))

    def focused(self) -> str:
        """Tag and name of the element that has the focus."""
        return str(
            self.js(
                "[document.activeElement.tagName.toLowerCase(), document.activeElement.id || "
                "document.activeElement.getAttribute('aria-label') || "
                "document.activeElement.textContent.trim()].join(' ')"
            )
        )


@contextmanager
def served(folder: Path, table: AccessTable, overviews: Overviews) -> Iterator[Site]:
    """While the block runs, a thread runs a router and two fake engines that answer chats."""
    loop = asyncio.new_event_loop()
    begun: list[Site] = []
    ready, over = threading.Event(), asyncio.Event()

    async def resize(wanted: Resize) -> None: ...

    async def main() -> None:
        async with serving(folder, table, resize, HttpSection(), overviews, limit_s=None) as site:
            site.a.answer = site.b.answer = says
            begun.append(site)
            ready.set()
            await over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()))
    thread.start()
    assert ready.wait(LIMIT_S)
    try:
        yield begun[0]
    finally:
        loop.call_soon_threadsafe(begun[0].a.go_on.set)
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


Opened = Callable[..., Page]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Function that opens the live page in a colour scheme and at a width."""
    with ExitStack() as stack:

        def begin(scheme: str = "light", width: int = SCREEN, table: AccessTable = NO_KEYS) -> Page:
            overviews = Overviews()
            site = stack.enter_context(served(tmp_path, table, overviews))
            words = [sys.executable, str(DRIVEN), scheme, str(width), site.url, "/mirage"]
            browser = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            stack.callback(_closed, browser)
            assert browser.stdout is not None and json.loads(browser.stdout.readline()) is True
            return Page(browser, site, overviews)

        yield begin


def _closed(browser: subprocess.Popen[str]) -> None:
    assert browser.stdin is not None and browser.stdout is not None
    browser.stdin.close()
    try:
        browser.wait(LIMIT_S)
    finally:
        browser.kill()
        browser.wait()
        browser.stdout.close()


DRAWN = (
    "document.querySelectorAll('#cards article').length === 2 && "
    "!document.querySelector('#chat').hidden"
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [SCREEN, PHONE])
def test_it_can_be_seen_and_read(opened: Opened, scheme: str, width: int) -> None:
    page = opened(scheme, width)
    page.until(DRAWN)
    words = page.words()
    for each in ("host:0 · policy mirage · 40.0 MiB of 64.0 MiB held", "2 of 8 layers away"):
        assert each in words
    for each in ("31 ms", "9.8 ms", "1.5 s", "1.3", "240", "b/1 lends a 3.0 MiB of layers"):
        assert each in words
    found = page.do("look")
    assert found["dark"] is (scheme == "dark") and found["width"] == width
    assert found["page_width"] <= width and found["cut"] == 0
    assert min(found["paper"]) > 200 if scheme == "light" else max(found["paper"]) < 60
    assert [text for contrast, text in found["faintest"] if contrast < READABLE] == []
    assert page.do("said") == []
    site = page.site.url
    assert {url.removeprefix(site) for url in page.do("asked")} - {"data:,"} == {
        *("/mirage", "/mirage/overview", "/v1/models"),
    }


def test_bars_have_their_numbers_in_words(opened: Opened) -> None:
    page = opened()
    page.until(DRAWN)
    label = page.js("document.querySelector('article .bar').getAttribute('aria-label')")
    assert label == "weights 12.0 MiB, KV in use 4.0 MiB, KV cached 2.0 MiB, KV free 2.0 MiB"
    widths = page.js(
        "[...document.querySelectorAll('article .bar span')].slice(0, 4)"
        ".map((one) => Math.round(100 * one.offsetWidth / one.parentElement.offsetWidth))"
    )
    assert widths == [60, 20, 10, 10]
    device = "[...document.querySelectorAll('#device-bar span')].map((one) => one.style.width)"
    assert page.js(device) == ["37.5%", "12.5%", "6.25%", "6.25%"]


def test_a_chat_by_the_keyboard_alone(opened: Opened) -> None:
    page = opened()
    page.until(DRAWN)
    order = []
    page.do("key", "Tab")
    assert page.focused() == "a To the chats"
    page.do("key", "Enter")
    assert page.focused() == "h2 chat-title"
    page.do("key", "Tab")
    order.append(page.focused())
    page.do("key", "Enter")
    page.until("document.querySelector('details').open")
    for _ in range(3):
        page.do("key", "Tab")
        order.append(page.focused())
    assert order[0] == "summary aready" and order[1] == "div Conversation with a"
    assert order[2].startswith("textarea") and order[3] == "button Send"
    page.js("document.querySelector('textarea').focus()")
    page.do("type", "What is it?")
    page.do("key", "Enter")
    log = "document.querySelector('.log').innerText"
    page.until(f"{log}.includes('is Paris.')")
    page.until("document.querySelector('[data-field=note]').textContent.includes('First token')")
    assert "3 tokens at" in page.js("document.querySelector('[data-field=note]').textContent")
    assert page.focused().startswith("textarea"), "the focus stays for the next message"
    assert page.js("document.querySelector('.log').getAttribute('role')") == "log"
    assert page.js("document.querySelectorAll('[aria-busy]').length") == 0
    page.do("type", "And then?")
    page.do("key", "Enter")
    page.until(f"{log}.split('is Paris.').length === 3")
    body = page.site.a.seen[-1]["body"]
    assert isinstance(body, dict) and body["stream"] is True
    assert [one["role"] for one in body["messages"]] == ["user", "assistant", "user"]
    assert body["messages"][1]["content"] == "".join(WORDS)
    assert not page.site.b.seen
    assert page.do("said") == []


def test_an_answer_can_be_stopped_and_a_refusal_is_said(opened: Opened) -> None:
    page = opened()
    page.until(DRAWN)
    page.js("document.querySelector('summary').click()")
    note = "document.querySelector('[data-field=note]').textContent"

    def asks(text: str) -> None:
        page.js("document.querySelector('textarea').focus()")
        page.do("type", text)
        page.do("key", "Enter")

    asks("slow")
    page.until(f"{note} === 'It answers.'")
    assert page.js("document.querySelector('[data-act=stop]').disabled") is False
    page.js("document.querySelector('[data-act=stop]').click()")
    page.until(f"{note} === 'Stopped.'")
    asks("fail")
    page.until(f"{note} === 'Not answered: no chat template'")
    assert page.js("document.querySelector('textarea').value") == "fail"
    page.js("document.querySelector('[data-act=anew]').click()")
    assert page.js("document.querySelector('.log').children.length") == 0


@pytest.mark.parametrize("prompt", ENDING)
def test_a_stream_that_is_given_up_is_ended(opened: Opened, prompt: str) -> None:
    """The page gives a stream up after an odd event, and closes it. Otherwise the engine would
    compute the answer to its end in vain.
    """
    page = opened()
    page.until(DRAWN)
    page.js("document.querySelector('summary').click()")
    page.js("document.querySelector('textarea').focus()")
    page.do("type", prompt)
    page.do("key", "Enter")
    page.until("document.querySelector('[data-field=note]').textContent.startsWith('Not answered')")
    deadline = time.monotonic() + LIMIT_S
    while not page.site.a.cancelled.is_set():
        assert time.monotonic() < deadline, "the engine still answers"
        time.sleep(0.1)


def test_what_a_model_says_is_no_markup(opened: Opened) -> None:
    page = opened()
    page.overviews.reason = MARKUP
    page.until(DRAWN)
    page.js("document.querySelector('summary').click()")
    page.js("document.querySelector('textarea').focus()")
    page.do("type", "markup")
    page.do("key", "Enter")
    page.until(f"document.querySelector('.log').innerText.includes({json.dumps(MARKUP)})")
    page.until(f"document.querySelector('#cards').innerText.includes({json.dumps(MARKUP)})")
    assert page.js("document.images.length") == 0


def test_a_key_is_asked_for_and_forgotten_with_the_tab(opened: Opened) -> None:
    page = opened(table=TABLE)
    page.until("document.querySelector('#status').textContent === 'The server asks for a key.'")
    assert page.js("document.querySelector('#status').getAttribute('role')") == "status"
    assert page.js("[...document.querySelectorAll('section')].every((one) => one.hidden)")
    page.do("key", "Tab")
    assert page.focused() == "input key"
    page.do("type", "user-token")
    page.do("key", "Enter")
    page.until("!document.querySelector('#chat').hidden")
    assert "shown to an operator's key" in page.words()
    assert page.js("document.querySelectorAll('details').length") == 1, "it opens one model"
    assert page.js("document.querySelector('#tenants').hidden")
    page.do("reload")
    page.until("!document.querySelector('#chat').hidden")
    assert not page.js("document.querySelector('#key-form').hidden"), "it can be forgotten"
    page.js("document.querySelector('#key').focus()")
    page.do("type", "root-token")
    page.do("key", "Enter")
    page.until(DRAWN)
    page.do("reload")
    page.until(DRAWN)
    assert page.js("localStorage.length === 0 && document.cookie === ''")
    assert "root-token" not in page.js("document.documentElement.outerHTML")
    page.js("document.querySelector('#forget').click()")
    page.until("document.querySelector('#status').textContent === 'The server asks for a key.'")
    assert page.js("sessionStorage.length") == 0
    assert page.js("document.querySelector('#chat').hidden")


def test_tenants_come_and_go_and_a_server_that_is_away_is_told(opened: Opened) -> None:
    page = opened()
    page.until(DRAWN)
    page.overviews.names = ["a"]
    page.until("document.querySelectorAll('#cards article').length === 1")
    page.overviews.names = [f"tenant-{number:02}" for number in range(40)]
    page.until("document.querySelectorAll('#cards article').length === 40")
    router = page.site.router
    asyncio.run_coroutine_threadsafe(router.stop(), page.site.http.loop).result(LIMIT_S)
    page.until("document.querySelector('#status').textContent.includes('does not answer')")
    assert page.js("document.querySelectorAll('#cards article').length") == 40
