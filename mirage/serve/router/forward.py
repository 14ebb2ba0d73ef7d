"""A request passed on to its tenant's vLLM server, and the answer back to the client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from mirage.serve.api import anthropic
from mirage.serve.api.answer_name import TYPES, AnswerName
from mirage.serve.api.error_event import has_error
from mirage.serve.api.openai import ApiError
from mirage.serve.clients.stream_pulse import StreamPulse
from mirage.serve.ends.suspects import RequestFacts
from mirage.serve.health.awaited_answers import AwaitedAnswer
from mirage.serve.http.headers import to_client, to_engine
from mirage.serve.http.request_id import HEADER
from mirage.serve.http.whole_events import WholeEvents
from mirage.serve.routed.tenants import RoutedTenant
from mirage.serve.router.broken import BrokenOff
from mirage.serve.router.closing import Closing, ends
from mirage.serve.router.engines import (
    EngineAnswer,
    EngineAway,
    EngineConnections,
    EngineRequest,
)
from mirage.serve.router.gate import Passage
from mirage.serve.router.refusals import engine_away, suspect_refused, turned_away
from mirage.units import KIB

EVENTS = "text/event-stream"
WHOLE_BYTES = 64 * KIB
"""Most bytes of an answer that is passed on in one piece; its length has to be known beforehand."""

HasOthers = Callable[[], bool]
"""Function that is true if another replica may be sent the request."""


def no_others() -> bool:
    """A `HasOthers` where there is only one replica: always false."""
    return False


class Forward:
    """A request on its way to an engine, and its answer on the way back. The request's end is noted
    in `tenant`, as evidence in case the engine ends too.
    """

    def __init__(
        self,
        tenant: RoutedTenant,
        told: RequestFacts,
        request: web.Request,
        engine: EngineConnections,
        closing: Closing,
        passage: Passage,
        known_as: str,
        quiet_s: float | None = None,
        *,
        others: HasOthers = no_others,
    ) -> None:
        """`passage` is told that the request is sent, and the usage and times of its answer.

        `known_as` is the engine's name of the model. A stream that was silent for `quiet_s` seconds
        gets a comment; None: never. `others` is asked whether another replica may get the request,
        when this engine has read nothing of it or turns it away.
        """
        self._others = others
        self._known_as, self._quiet_s = known_as, quiet_s
        self._passage = passage
        self._tenant, self._told, self._request = tenant, told, request
        self._engine, self._closing = engine, closing
        self._number = 0
        self._broken = BrokenOff(tenant, told, engine, closing)
        self._well = False
        self._received = False
        """True once the head of an answer has come."""
        self._name: AnswerName | None = None
        """Replaces the engine's name of the model in the answer; None if the names are equal."""
        self._response: web.StreamResponse | None = None
        self._events: WholeEvents | None = None
        """Events of an answer that is a readable stream; None for other answers."""
        self.left = False
        """True if the client went away before it had the whole answer."""

    async def send(self, body: bytes) -> web.StreamResponse:
        """Send `body` to the engine, and pass its answer on; returns that answer.

        On failure, raises `ApiError` if nothing of an answer has been sent to the client yet; else
        the answer is broken off.
        """
        tenant, mark, now = self._tenant, self._told.body_digest, time.monotonic()
        if (refused := tenant.refuses(mark, now)) is not None:
            raise suspect_refused(self._told.model, refused)
        self._number = tenant.begins(self._told, now)
        try:
            return await self._send_while_running(body)
        finally:
            tenant.ends(self._number, mark, time.monotonic(), well=self._well)

    async def _send_while_running(self, body: bytes) -> web.StreamResponse:
        try:
            return await self._within(body)
        except ApiError as error:
            if self._response is None or not self._response.prepared:
                raise
            await self._break(self._response, error)
            return self._response

    async def _within(self, body: bytes) -> web.StreamResponse:
        """Send the request; break it off when the server ends, or when `AwaitedAnswer` finds that
        its answer will never come.

        Raises `ApiError` if the server ends, or if the engine has lost the request.
        """
        scope = asyncio.timeout(None)
        awaited = AwaitedAnswer(self._tenant.answers, scope)
        self._closing.runs(scope)
        try:
            async with scope:
                return await self._send(body, awaited)
        except TimeoutError:
            if not scope.expired():
                raise
            if not awaited.lost:
                raise ends() from None
            self._well = False
            message = "its API server and its engine core lost this request: send it again"
            raise ApiError(502, f"model {self._told.model!r}: {message}") from None
        finally:
            awaited.over()
            self._closing.over(scope)

    async def _send(self, body: bytes, awaited: AwaitedAnswer) -> web.StreamResponse:
        self._passage.sent = True
        try:
            try:
                return await self._ask(body, awaited)
            except (aiohttp.ClientError, OSError) as error:
                if self._received or not self._engine.never_read(error):
                    raise
            return await self._ask(body, awaited)  # once: no engine has read it
        except (aiohttp.ClientError, OSError) as error:
            self._well = False
            unread = isinstance(error, EngineAway) or self._engine.never_read(error)
            if unread and not self._received and self._others():
                raise engine_away(self._told.model) from None
            raise await self._broken.why(self._number, error, read=not unread) from None

    async def _ask(self, body: bytes, awaited: AwaitedAnswer) -> web.StreamResponse:
        headers = to_engine(self._request.headers)
        headers[HEADER] = self._told.id
        target = self._request.path_qs
        async with EngineRequest(self._engine, "POST", target, headers, body) as answer:
            self._received = True
            if answer.status == 500 and await self._broken.engine_is_dead():
                raise await self._broken.why(self._number, "internal server error")
            if answer.status == 503 and self._others():
                raise turned_away(self._told.model)
            headers = to_client(answer.headers)
            self._well = answer.status < 500
            if answer.status >= 400 and anthropic.speaks(self._request.path):
                return await _translated(answer, headers)
            renamed = self._known_as != self._told.model and answer.kind in TYPES
            if not renamed and 0 < (answer.length or 0) <= WHOLE_BYTES:
                return await self._whole(answer, headers)
            if renamed:
                self._name = AnswerName(self._known_as, self._told.model)
                headers.popall("Content-Length", None)
            response = web.StreamResponse(status=answer.status, headers=headers)
            self._response = response
            try:
                await self._pass_through(answer, response, awaited)
            except BaseException:
                self._well = False
                raise
            return response

    async def _whole(self, answer: EngineAnswer, headers: CIMultiDict[str]) -> web.StreamResponse:
        """Read a short answer to its end, and return it in one piece."""
        self._well = False
        body = await answer.content.read()
        self._well = answer.status < 500
        self._passage.usage.look(body)
        headers.popall("Content-Length")
        return web.Response(body=body, status=answer.status, headers=headers)

    async def _pass_through(
        self,
        answer: EngineAnswer,
        response: web.StreamResponse,
        awaited: AwaitedAnswer,
    ) -> None:
        """Pass the answer on chunk by chunk; one that breaks off is never made to look complete."""
        if answer.kind == EVENTS and "Content-Encoding" not in answer.headers:
            self._events = WholeEvents()
        try:
            awaited.end()
            await response.prepare(self._request)
            with StreamPulse(response, self._events, self._quiet_s) as pulse:
                while True:
                    awaited.again()
                    try:
                        chunk = await answer.content.readany()
                    except (aiohttp.ClientError, OSError) as error:
                        self._well = False
                        await self._break(response, await self._broken.why(self._number, error))
                        return
                    awaited.end()
                    if not chunk:
                        break
                    if self._events is not None and not self._passage.first:
                        self._passage.first = time.monotonic()
                    self._passage.usage.look(chunk)
                    if passed := self._whole_events(
                        self._name.take(chunk) if self._name else chunk
                    ):
                        await pulse.write(passed)
                if self._name and (passed := self._whole_events(self._name.rest())):
                    await pulse.write(passed)
            await response.write_eof(self._judged(self._events.rest()) if self._events else b"")
        except ConnectionError:  # the client went away: nobody to tell
            self._well, self.left = False, True

    def _whole_events(self, chunk: bytes) -> bytes:
        """Bytes that may be passed on now that `chunk` has come: of a stream, only whole events."""
        return self._judged(self._events.take(chunk)) if self._events else chunk

    def _judged(self, events: bytes) -> bytes:
        if has_error(events):
            self._well = False
        return events

    async def _break(self, response: web.StreamResponse, why: ApiError) -> None:
        if self._events is not None:
            begin = b"\n\n" if self._events.is_open else b""
            try:
                await response.write(begin + why.event(self._request.path))
            except ConnectionError:
                self.left = True
        if self._request.transport is not None:
            self._request.transport.close()


async def _translated(answer: EngineAnswer, headers: CIMultiDict[str]) -> web.StreamResponse:
    """An engine's error as an answer in the form of Anthropic's API."""
    body = anthropic.translated(await answer.content.read(), answer.status)
    headers.popall("Content-Length", None)
    return web.Response(body=body, status=answer.status, headers=headers)
