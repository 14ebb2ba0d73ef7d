"""Keys of one server: their sources, and the table in use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from mirage.config import ConfigError
from mirage.errors import InputRefused
from mirage.serve.access.forms import AccessKey, AccessTable
from mirage.serve.access.keys_file import read_keys
from mirage.serve.access.ring import date_of, digest
from mirage.serve.http.local_request import loopback

VARIABLE = "MIRAGE_API_KEY"
FOLDER = "CREDENTIALS_DIRECTORY"
"""Environment variable by which systemd names the folder of a service's credentials."""
CREDENTIAL = "mirage-keys"
SHORTEST = 16
"""Least characters of a key in the environment, which a person may have made up."""


@dataclass(frozen=True)
class KeySource:
    """Sources of keys: a file, a key from the environment, both, or neither."""

    file: Path | None = None
    private: bool = True
    """True if the file's mode has to exclude other users; systemd protects its folder itself."""
    plain: AccessKey | None = None

    def read(self) -> tuple[AccessKey, ...] | None:
        """All keys as they are now; None if there is no source. Raises `ConfigError` for a file
        that cannot be read or is invalid, or whose mode lets others read it.
        """
        if self.file is None:
            return None if self.plain is None else (self.plain,)
        found = read_keys(self.file, private=self.private)
        return found if self.plain is None else (*found, self.plain)

    @property
    def told(self) -> str:
        """Names of the sources, for messages; empty if there is none."""
        named = () if self.file is None else (str(self.file),)
        return " and ".join((*named, *(() if self.plain is None else (VARIABLE,))))


def key_source(file: Path | None, environment: MutableMapping[str, str]) -> KeySource:
    """Source of keys: `file`, or else systemd's credential; and the environment's variable.

    The variable is removed from `environment`, which engines inherit. Raises `ConfigError` if its
    key is too short, or has blanks around it.
    """
    private = True
    if file is None and (folder := environment.get(FOLDER)):
        credential = Path(folder) / CREDENTIAL
        file, private = (credential, False) if credential.exists() else (None, True)
    return KeySource(file, private, _plain(environment.pop(VARIABLE, "")))


def _plain(token: str) -> AccessKey | None:
    if not token:
        return None
    if len(token) < SHORTEST or token != token.strip():
        raise ConfigError(
            f"{VARIABLE} has {len(token)} characters, or blanks around it: use {SHORTEST} or "
            "more, as mirage keys new prints"
        )
    return AccessKey(VARIABLE, digest(token), None, admin=True, metrics=True)


@dataclass(frozen=True)
class OrderedKeys(KeySource):
    """Keys that another process sends, as with several machines, instead of a file of keys."""

    keys: tuple[AccessKey, ...] = ()

    def read(self) -> tuple[AccessKey, ...]:
        """Return all keys that were sent last."""
        return self.keys

    @property
    def told(self) -> str:
        """Name of this source, for messages."""
        return "the order"


class ServerKeys:
    """Table of keys in use, and its source."""

    def __init__(self, source: KeySource, *, open_to_all: bool = False) -> None:
        """With `open_to_all` no key is asked for. Raises `InputRefused` if there is a source all
        the same, and `ConfigError` if the keys cannot be read.
        """
        if open_to_all and source.told:
            raise InputRefused(f"--no-keys, and there are keys ({source.told}): leave one out")
        self.source, self._open_to_all = source, open_to_all
        self.table = AccessTable(source.read())

    def check_listening(self, host: str) -> None:
        """Raise `InputRefused` if other machines could reach `host` and no key is asked for, unless
        the server is meant to be `open_to_all`.
        """
        if self.table.keys is None and not self._open_to_all and not _is_near(host):
            raise InputRefused(
                f"--host {host} lets other machines in, and no key is asked for: give --keys FILE "
                "(mirage keys new makes one), or --no-keys"
            )

    async def again(self) -> str:
        """Read the keys from their source again; return a line about them.

        Raises `ConfigError` if they cannot be read, or this server asks for no keys; the table is
        unchanged then.
        """
        if self.table.keys is None:
            raise ConfigError("this server asks for no keys: start it with --keys FILE")
        keys = await asyncio.to_thread(self.source.read)
        self.table = AccessTable(keys, self.table.revision + 1)
        return self.told(time.time())

    def ordered(self, keys: tuple[AccessKey, ...]) -> None:
        """Replace the keys by `keys`, which another process sent.

        Raises `ConfigError` if this server's keys come from a file or from the environment.
        """
        if not isinstance(self.source, OrderedKeys):
            raise ConfigError("this server has its keys from elsewhere: mirage keys reload")
        self.source = OrderedKeys(keys=keys)
        self.table = AccessTable(keys, self.table.revision + 1)

    def told(self, now: float) -> str:
        """Line about the keys in use at `now`, seconds since 1970; empty if no key is asked for."""
        keys = self.table.keys
        if keys is None:
            return ""
        gone = [key.name for key in keys if key.expires is not None and key.expires <= now]
        expired = f", {len(gone)} of them expired ({', '.join(gone)})" if gone else ""
        return f"keys: {len(keys)} of {self.source.told}{expired}"


def _is_near(host: str) -> bool:
    return host == "localhost" or loopback(host)


def key_lines(keys: ServerKeys, models: Iterable[str], now: float) -> list[str]:
    """Lines of `mirage check` about keys at `now`, seconds since 1970, for a server with these
    `models`."""
    if keys.table.keys is None:
        return []
    known = set(models)
    lines = [keys.told(now)]
    for key in keys.table.keys:
        opens = "all models" if key.models is None else ", ".join(key.models) or "no model"
        rights = [word for word in ("admin", "metrics") if getattr(key, word)]
        until = f"; until {date_of(key.expires)}" if key.expires is not None else ""
        absent = [name for name in key.models or () if name not in known]
        why = f"; not here: {', '.join(absent)}" if absent else ""
        lines.append(f"key {key.name}: {' and '.join([opens, *rights])}{until}{why}")
    return lines
