"""Connections of TLS: each is one of the crowd from its begin, and shakes hands in time.

aiohttp would hear of a connection when its handshake has ended, and wait for that for a minute.
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
from mirage.serve.counted import Repeated
from mirage.serve.unread import AnsweringRunner

log = logging.getLogger(__name__)

FAREWELL_S = 2.0
"""Seconds for a client to answer the end of a connection."""
NO_FILE_S = 0.1
"""Seconds after which a connection for which no file could be opened is accepted again."""


class TlsSite(web.SockSite):
    """A listening socket; `certificate` has been read."""

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
        """Tasks: one that accepts, and one for each handshake."""
        later = asyncio.get_running_loop().call_later
        self._failed = Repeated(
            partial(log.warning, "TLS handshakes that failed: %d, last %s"), later
        )

    async def start(self) -> None:
        """Shake hands with who connects, and have the runner answer."""
        await web.BaseSite.start(self)
        self._sock.setblocking(False)
        self._begin(self._accept())

    async def stop(self) -> None:
        """Listen no more, and end handshakes."""
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
        """Count it; who has just gone, as what looks whether a port is open, is worth no line."""
        why, words = _why(error)
        self._front.metrics.unshaken[why] += 1
        if words:
            self._failed.note(f"of {peer}: {words}")


def _why(error: OSError) -> tuple[str, str]:
    """Kind of a failure, and it in words in which nothing is of the client."""
    if isinstance(error, ssl.SSLError):
        if error.reason == "HTTP_REQUEST":
            return "plain", "plain HTTP where TLS is spoken, use https"
        return "refused", error.reason or "no TLS"
    if isinstance(error, ConnectionAbortedError | TimeoutError):
        return "late", "it took longer than http.head_s"
    return "gone", ""
