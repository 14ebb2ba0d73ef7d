"""Connections to engines, kept for the next request."""

from __future__ import annotations

import errno
from collections.abc import Iterable

import aiohttp
from multidict import CIMultiDict

from mirage.serve.routed.tenants import RoutedTenant, RoutedTenants

KEPT_S = 60.0
"""Seconds for which an idle connection is kept: less than an engine keeps it (`launcher`), which so
never closes one that a request is just being sent on."""
UNREAD = {errno.EPIPE, errno.ECONNRESET}
"""Errors by which a Unix socket says that its other end has not read all that was sent."""


class PlainRequest(aiohttp.ClientRequest):
    """A request that gets no header that its client has not sent."""

    _skip_auto_headers = CIMultiDict[None]([("Content-Type", None)])  # nor the body's

    def update_auto_headers(self, skip_auto_headers: Iterable[str] | None) -> None:
        """Add none."""


class EngineSessions:
    """One session for each engine. `close` has to follow."""

    def __init__(self, tenants: RoutedTenants) -> None:
        self._tenants = tenants
        self._sessions: dict[str, aiohttp.ClientSession] = {}
        """Sessions by the engines' sockets."""

    async def to(self, tenant: RoutedTenant) -> aiohttp.ClientSession:
        """Session with a tenant's engine; a new one ends those of tenants that have gone."""
        socket = tenant.row.socket
        if (session := self._sessions.get(socket)) is None:
            session = self._sessions[socket] = _session(socket)
            for gone in self._sessions.keys() - {one.row.socket for one in self._tenants}:
                await self._sessions.pop(gone).close()
        return session

    async def close(self) -> None:
        """Idempotent."""
        while self._sessions:
            await self._sessions.popitem()[1].close()


def never_read(error: BaseException) -> bool:
    """True if the engine closed a connection before it had read the whole request.

    A connection that it closed once it had read that ends without an error: what it did with the
    request is not known then.
    """
    if isinstance(error, aiohttp.ClientConnectorError):
        return False  # nobody is there
    closing = isinstance(error, aiohttp.ClientConnectionResetError)
    return closing or getattr(error, "errno", None) in UNREAD


def _session(socket: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.UnixConnector(socket, limit=0, keepalive_timeout=KEPT_S),
        cookie_jar=aiohttp.DummyCookieJar(),  # clients share the session
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
        request_class=PlainRequest,
    )
