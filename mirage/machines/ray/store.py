"""Redis that keeps the tables of Ray's head, in place of the head's own disk."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from mirage.errors import InputRefused

SCHEMES = ("redis", "rediss")
PORT = 6379


class NodeStore(NamedTuple):
    """Address of a Redis server, and user and password for it."""

    scheme: str
    host: str
    port: int
    user: str = ""
    password: str = ""

    @classmethod
    def of(cls, address: str) -> NodeStore:
        """Store at an address, ``redis://[USER:PASSWORD@]HOST[:PORT]``. Raises `InputRefused` for
        any other text.
        """
        try:
            parts = urlsplit(address)
            port = parts.port or PORT
        except ValueError:
            parts, port = urlsplit(""), 0
        if parts.scheme not in SCHEMES or not parts.hostname or parts.path.strip("/"):
            raise InputRefused("--store: name a Redis server, as redis://HOST:PORT")
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        return cls(parts.scheme, parts.hostname, port, user, password)

    @property
    def address(self) -> str:
        """Address without user and password."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    def words(self) -> list[str]:
        """Arguments of Ray's command with user and password for the server."""
        named = (("--redis-username", self.user), ("--redis-password", self.password))
        return [word for name, value in named if value for word in (name, value)]
