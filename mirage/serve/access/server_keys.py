"""The keys of one server: where they come from, and what holds now."""

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
from mirage.serve.near import loopback

VARIABLE = "MIRAGE_API_KEY"
FOLDER = "CREDENTIALS_DIRECTORY"
"""Variable by which systemd names the folder of a service's credentials."""
CREDENTIAL = "mirage-keys"
SHORTEST = 16
"""Characters of a key that a person thought of."""


@dataclass(frozen=True)
class KeySource:
    """A file, and a key from the environment, or one of them, or neither."""

    file: Path | None = None
    private: bool = True
    """True if the file's mode has to keep others out; systemd's folder does that itself."""
    plain: AccessKey | None = None

    def read(self) -> tuple[AccessKey, ...] | None:
        """All keys as they are now; None where there is no source. Raises `ConfigError`."""
        if self.file is None:
            return None if self.plain is None else (self.plain,)
        found = read_keys(self.file, private=self.private)
        return found if self.plain is None else (*found, self.plain)

    @property
    def told(self) -> str:
        """The file and the environment's variable in words, as far as they are used."""
        named = () if self.file is None else (str(self.file),)
        return " and ".join((*named, *(() if self.plain is None else (VARIABLE,))))


def key_source(file: Path | None, environment: MutableMapping[str, str]) -> KeySource:
    """Source of keys: a `file` that was named, or else systemd's credential, and a variable.

    The variable is taken out of `environment`, which engines inherit. Raises `ConfigError`.
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


class ServerKeys:
    """The table of keys that holds."""

    def __init__(self, source: KeySource, *, open_to_all: bool = False) -> None:
        """`open_to_all`: no key shall be asked for. Raises `InputRefused`."""
        if open_to_all and source.told:
            raise InputRefused(f"--no-keys, and there are keys ({source.told}): leave one out")
        self.source, self._open_to_all = source, open_to_all
        self.table = AccessTable(source.read())

    def check_listening(self, host: str) -> None:
        """Raises `InputRefused` if strangers could reach `host`, and no key is asked for."""
        if self.table.keys is None and not self._open_to_all and not _is_near(host):
            raise InputRefused(
                f"--host {host} lets other machines in, and no key is asked for: give --keys FILE "
                "(mirage keys new makes one), or --no-keys"
            )

    async def again(self) -> str:
        """Read them again; a line that says what holds. Raises `ConfigError`: the old ones hold."""
        if self.table.keys is None:
            raise ConfigError("this server asks for no keys: start it with --keys FILE")
        keys = await asyncio.to_thread(self.source.read)
        self.table = AccessTable(keys, self.table.revision + 1)
        return self.told(time.time())

    def told(self, now: float) -> str:
        """A line about the keys that hold; empty where none is asked for."""
        keys = self.table.keys
        if keys is None:
            return ""
        gone = [key.name for key in keys if key.expires is not None and key.expires <= now]
        expired = f", {len(gone)} of them expired ({', '.join(gone)})" if gone else ""
        return f"keys: {len(keys)} of {self.source.told}{expired}"


def _is_near(host: str) -> bool:
    return host == "localhost" or loopback(host)


def key_lines(keys: ServerKeys, models: Iterable[str], now: float) -> list[str]:
    """Lines of `mirage check` about keys, where a server has these `models`."""
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
