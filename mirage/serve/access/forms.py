"""Keys as plain data, which one process can send to another. Pure."""

from __future__ import annotations

import msgspec

from mirage.serve.rates import NO_LIMITS, RateLimits


class AccessKey(msgspec.Struct, frozen=True):
    """A key, without its token."""

    name: str
    """Keys of one name are one client's: they have the same limits and are counted as one."""
    sha256: str
    """Hash of the token, 64 hexadecimal digits."""
    models: tuple[str, ...] | None = ()
    """Tenants, with their aliases and adapters, and single ones of these; None is all."""
    expires: float | None = None
    """Seconds since 1970."""
    admin: bool = False
    """True if it opens what tells of the server itself."""
    metrics: bool = False
    """True if it opens ``/metrics``."""
    limits: RateLimits = NO_LIMITS


class AccessTable(msgspec.Struct, frozen=True):
    """All keys that hold. `revision` grows with each table of one server."""

    keys: tuple[AccessKey, ...] | None = None
    """None: no key is asked for."""
    revision: int = 0


NO_KEYS = AccessTable()
"""A table without keys: nobody is asked."""
