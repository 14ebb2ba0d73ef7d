"""Connections to engines, kept for the next request."""

from __future__ import annotations

import aiohttp

from mirage.serve.routed.tenants import RoutedTenant, RoutedTenants


class EngineSessions:
    """One session for each engine. `close` has to follow."""

    def __init__(self, tenants: RoutedTenants) -> None:
        self._tenants = tenants
        self._sessions: dict[str, aiohttp.ClientSession] = {}
        """Sessions by the engines' sockets."""

    def to(self, tenant: RoutedTenant) -> aiohttp.ClientSession:
        """Session with a tenant's engine."""
        socket = tenant.row.socket
        if (session := self._sessions.get(socket)) is None:
            session = self._sessions[socket] = _session(socket)
        return session

    async def forget(self) -> None:
        """Close those of tenants that are there no more."""
        for socket in self._sessions.keys() - {one.row.socket for one in self._tenants}:
            await self._sessions.pop(socket).close()

    async def close(self) -> None:
        """Idempotent."""
        while self._sessions:
            await self._sessions.popitem()[1].close()


def _session(socket: str) -> aiohttp.ClientSession:
    # One connection per request: the engine closes idle ones, and a request sent on
    # a connection that is just being closed could not be told from a failed one.
    return aiohttp.ClientSession(
        connector=aiohttp.UnixConnector(socket, limit=0, force_close=True),
        cookie_jar=aiohttp.DummyCookieJar(),  # clients share the session
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
    )
