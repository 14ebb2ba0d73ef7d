"""TLS connections: each is counted from its begin, and has to finish its handshake in time.

aiohttp alone would count a connection only after its handshake, for which it waits a minute.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Coroutine
from functools import partial
from typing import Any, cast

from aiohttp import web

from mirage.serve.clients.certificate import TlsCertificate
from mirage.serve.clients.connection import ClientConnection
from mirage.serve.clients.front import ClientFront
from mirage.serve.http.error_answers import AnsweringRunner
from mirage.serve.logs.repeated import Repeated

log = logging.getLogger(__name__)

FAREWELL_S = 2.0
"""Seconds for a client to answer the end of a TLS connection."""
NO_FILE_S = 0.1
"""Seconds until the next attempt to accept a connection, if there was no file descriptor for it."""


class TlsSite(web.SockSite):
    """Site of a listening socket that speaks TLS; `certificate` has been read before."""

    def __init__(
        self,
        runner: AnsweringRunner,
        sock: socket.socket,
        front: ClientFront,
        certificate: TlsCertificate,
    ) -> None:
        super().__init__(runner, sock)
        self._answers = runner.server
        self._front, self._certificate = front, certificate
        self._tasks: set[asyncio.Task[None]] = set()
        """Running tasks: one accepts connections, and each handshake has one."""
        later = asyncio.get_running_loop().call_later
        self._failed = Repeated(
            partial(log.warning, "TLS handshakes that failed: %d, last %s"), later
        )

    async def start(self) -> None:
        """Accept connections, do their handshakes, and let the runner answer their requests."""
        await web.BaseSite.start(self)
        self._sock.setblocking(False)
        self._begin(self._accept())

    async def stop(self) -> None:
        """Stop accepting, and cancel handshakes under way."""
        await super().stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._sock.close()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, address = await loop.sock_accept(self._sock)
            except OSError:
                await asyncio.sleep(NO_FILE_S)
                continue
            connection = cast(ClientConnection, self._answers())
            if connection.comes(address[0]):
                client.close()  # without a handshake it could not read why
            else:
                self._begin(self._shake(client, connection, address[0]))

    async def _shake(self, client: socket.socket, connection: ClientConnection, peer: str) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                client,
                ssl=self._certificate.context,
                ssl_handshake_timeout=self._front.http.head_s,
                ssl_shutdown_timeout=FAREWELL_S,
            )
        except OSError as error:
            connection.goes()
            self._note(error, peer)
        except BaseException:
            connection.goes()
            raise

    def _note(self, error: OSError, peer: str) -> None:
        """Count a failed handshake, and log it unless the client just closed the connection."""
        why, words = _why(error)
        self._front.metrics.unshaken[why] += 1
        if words:
            self._failed.note(f"of {peer}: {words}")


def _why(error: OSError) -> tuple[str, str]:
    """Kind of a handshake's failure, and words for the log that contain nothing of the client's."""
    if isinstance(error, ssl.SSLError):
        if error.reason == "HTTP_REQUEST":
            return "plain", "plain HTTP where TLS is spoken, use https"
        return "refused", error.reason or "no TLS"
    if isinstance(error, ConnectionAbortedError | TimeoutError):
        return "late", "it took longer than http.head_s"
    return "gone", ""
