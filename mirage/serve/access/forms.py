"""API keys as plain data, which one process can send to another. Pure."""

from __future__ import annotations

import msgspec

from mirage.serve.access.rates import NO_LIMITS, RateLimits


class AccessKey(msgspec.Struct, frozen=True):
    """API key, without its token."""

    name: str
    """Name of the client. Keys of the same name have the same limits and are counted as one."""
    sha256: str
    """SHA-256 of the token, 64 hexadecimal digits."""
    models: tuple[str, ...] | None = ()
    """Names that the key opens: tenants, each with all its aliases and adapters, or single aliases
    and adapters. None is all.
    """
    expires: float | None = None
    """Time at which the key expires, in seconds since 1970; None if it does not."""
    admin: bool = False
    """True if it opens the routes that tell about the server itself."""
    metrics: bool = False
    """True if it opens ``/metrics``."""
    limits: RateLimits = NO_LIMITS


class AccessTable(msgspec.Struct, frozen=True):
    """All keys in use. `revision` grows with each table of one server."""

    keys: tuple[AccessKey, ...] | None = None
    """Keys; None if requests need no key."""
    revision: int = 0


NO_KEYS = AccessTable()
"""Table of a server that asks for no key."""
