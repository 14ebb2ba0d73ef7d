"""Connection of a client: it counts for the limits, and heads of requests have to come in time.

aiohttp itself closes a connection that is idle between two requests.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from aiohttp import StreamReader, web

from mirage.serve.api.openai import ApiError
from mirage.serve.clients.bare_answer import bare
from mirage.serve.clients.framing import framing_fault
from mirage.serve.clients.front import ClientFront
from mirage.serve.clients.patience import late_head
from mirage.serve.ends.comeback import LOOK_AGAIN_S
from mirage.serve.http.error_answers import NAME, AnsweringRunner, Protocol
from mirage.serve.http.request_id import new_id

GRACE_S = 1.0
"""Seconds beyond `http.head_s` for this process, which may be busy, to read a head that has come in
time.
"""

LINGER_S = 1.0
"""Seconds for a client that still sends to read its answer. If the connection were closed
immediately, it would be reset, and the answer lost.
"""
MOST_LINGERING = 32
"""Most refused connections that are open at a time, beyond the limits; more are closed immediately.
"""


class ClientConnection(Protocol):
    """Connection of a client. `begins` is called when a request's head has been read."""

    __slots__ = ("_content", "_front", "_heard", "_late", "_lingers", "_peer", "_serves")

    def __init__(
        self, front: ClientFront, manager: web.Server, runner: AnsweringRunner, **options: Any
    ) -> None:
        super().__init__(manager, runner, keepalive_timeout=front.http.idle_s, **options)
        self._front = front
        self._peer: str | None = None
        """Address of the other end while the connection is counted, else None."""
        self._late: asyncio.TimerHandle | None = None
        """Timer for a head that is late; None while none is awaited."""
        self._heard = False
        """True if part of the next head has come."""
        self._serves = False
        self._lingers = False
        """True once the connection was refused, until its client has read why."""
        self._content: StreamReader | None = None
        """Body of the last request; None before the first."""

    def comes(self, peer: str) -> str:
        """Count this connection and return an empty text, or return the name of the limit that
        refuses it.
        """
        if limit := self._front.crowd.refuses(peer):
            self._front.metrics.kept_out[limit] += 1
            return limit
        self._front.crowd.comes(peer)
        self._peer = peer
        return ""

    def goes(self) -> None:
        """Take this connection out of the counts of open connections. Idempotent."""
        self._front.lingering -= self._lingers
        self._lingers = False
        if self._peer is not None:
            self._front.crowd.goes(self._peer)
            self._peer = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        name = transport.get_extra_info("peername")
        peer = name[0] if isinstance(name, tuple) else ""
        if self._peer is None and (limit := self.comes(peer)):
            self._keep_out(cast(asyncio.Transport, transport), limit, peer)
            return
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_clock()
        self.goes()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._lingers:
            return
        awaited = bool(data) and self._awaits_head()
        super().data_received(data)
        if awaited:
            self._heard = True
            if self._messages:  # the head is whole
                self._stop_clock()
            elif self._late is None:
                self._await_head()

    def begins(self, request: web.Request) -> None:
        """Note that the head of a request has been read, which ends its time-out."""
        self._stop_clock()
        self._serves, self._heard, self._content = True, False, request.content

    def refusal(self, request: web.Request) -> web.Response | None:
        """Answer to a request that another parser may read differently; None for all others.

        The connection is closed after it, so that nothing behind the request is read.
        """
        codings = request.headers.getall("Transfer-Encoding", ())
        if not (words := framing_fault(request.version, codings)):
            return None
        error = ApiError(400, words)
        self._refused_before(error, self._peer)
        response = error.response(request.path)
        response.force_close()
        return response

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send the answer; the next bytes are a new request's head."""
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._serves = False

    def _awaits_head(self) -> bool:
        """True unless a request runs, or the body of an answered request is still coming."""
        return not self._serves and (self._content is None or self._content.is_eof())

    def _await_head(self) -> None:
        self._late = self._loop.call_later(self._front.http.head_s, self._look_again)

    def _look_again(self) -> None:
        self._late = self._loop.call_later(GRACE_S, self._head_is_late)

    def _head_is_late(self) -> None:
        """Answer with 408 if part of a head has come, else close the connection without an
        answer.
        """
        self._late = None
        self._front.metrics.slow["head"] += 1
        if self.transport is None or not self._heard:
            self.force_close()
            return
        error = ApiError(408, late_head(self._front.http))
        self._refused_before(error, self._peer)
        self.transport.write(bare(error, NAME, new_id()))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.close()  # what still comes is thrown away
        self._late = self._loop.call_later(LINGER_S, self.force_close)

    def _keep_out(self, transport: asyncio.Transport, limit: str, peer: str) -> None:
        whose = "of your address " if limit == "peer" else ""
        message = f"too many connections {whose}are open: close some, or try again later"
        error = ApiError(503, message, code="too_many_connections", wait_s=LOOK_AGAIN_S)
        self._refused_before(error, peer)
        transport.write(bare(error, NAME, new_id()))
        if self._front.lingering >= MOST_LINGERING:
            transport.close()
            return
        self._front.lingering += 1
        self._lingers = True
        if transport.can_write_eof():
            transport.write_eof()
        self._late = self._loop.call_later(LINGER_S, transport.close)

    def _refused_before(self, error: ApiError, peer: str | None) -> None:
        """Count and log an answer to bytes that were no valid request."""
        self._refused.note(f"{error.status} to {peer}")
        self._answered(error.status)

    def _stop_clock(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def head_refusal(request: web.Request) -> web.Response | None:
    """Refusal of a request whose head can be read in two ways; None for all others.

    The call also tells the connection that the head has come, so that its time-out ends.
    """
    if not isinstance(request.protocol, ClientConnection):
        return None
    request.protocol.begins(request)
    return request.protocol.refusal(request)
