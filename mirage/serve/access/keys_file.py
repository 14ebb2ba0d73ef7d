"""File of keys: read and checked here, and written by `mirage keys new`."""

from __future__ import annotations

import json
import re
import stat
from contextlib import suppress
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
from pydantic import BeforeValidator, Field, model_validator

from mirage.config import ConfigError, LimitsSection, Strict, parsed, read_text, validated
from mirage.problems import shown
from mirage.serve.access.forms import AccessKey
from mirage.serve.access.rates import rate_limits
from mirage.serve.access.ring import date_of

HASH = re.compile(r"[0-9a-f]{64}")
OTHERS_MAY = stat.S_IRWXG | stat.S_IRWXO


def parse_date(value: Any) -> datetime:
    """Date and time with a zone, from YAML's value or RFC 3339 text. Raises `ValueError` for any
    other value, and for a time without a zone.
    """
    if isinstance(value, str):
        with suppress(ValueError):
            value = datetime.fromisoformat(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value
    written = value.isoformat() if isinstance(value, date) else value
    raise ValueError(f"{shown(written)} is no time: write one with its zone, 2027-01-31T12:00:00Z")


def parse_models(value: Any) -> Any:
    """Value of `models` of a key, None for the word ``all``."""
    return None if value == "all" else value


def parse_hash(value: Any) -> Any:
    """Hash of a key. Raises `ValueError` without repeating the text, which may be a token."""
    if not isinstance(value, str) or not HASH.fullmatch(value):
        raise ValueError("it is no SHA-256 in quotes: mirage keys new makes a token and its hash")
    return value


KeyName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._@-]{1,80}$")]


class KeySection(Strict):
    """Key in a file of keys. It opens only what it names."""

    name: KeyName
    sha256: Annotated[str, BeforeValidator(parse_hash)]
    models: Annotated[list[str] | None, BeforeValidator(parse_models)] = Field(default_factory=list)
    expires: Annotated[datetime | None, BeforeValidator(parse_date)] = None
    admin: bool = False
    metrics: bool = False
    limits: LimitsSection = LimitsSection()

    @model_validator(mode="after")
    def _opens_something(self) -> KeySection:
        if self.models == [] and not self.admin and not self.metrics:
            raise ValueError(f"{self.name} opens nothing: give it models, admin or metrics")
        return self

    @property
    def key(self) -> AccessKey:
        """This key as plain data."""
        return AccessKey(
            self.name,
            self.sha256,
            None if self.models is None else tuple(self.models),
            None if self.expires is None else self.expires.timestamp(),
            self.admin,
            self.metrics,
            rate_limits(self.limits),
        )


class KeysFile(Strict):
    """Form of a file of keys."""

    keys: list[KeySection] = Field(min_length=1)

    @model_validator(mode="after")
    def _fit_together(self) -> KeysFile:
        hashes: set[str] = set()
        limits: dict[str, LimitsSection] = {}
        for one in self.keys:
            if one.sha256 in hashes:
                raise ValueError(f"{one.name} has a sha256 that another key has: leave one out")
            if limits.setdefault(one.name, one.limits) != one.limits:
                raise ValueError(f"keys {one.name} have different limits: write the same for both")
            hashes.add(one.sha256)
        return self


def read_keys(path: Path, *, private: bool = True) -> tuple[AccessKey, ...]:
    """Keys in a file. With `private`, other users must have no rights to the file.

    Raises `ConfigError` if they have, and if the file cannot be read or is invalid.
    """
    if private:
        check_private(path)
    return keys_in(read_text(path), path)


def keys_in(text: str, path: Path) -> tuple[AccessKey, ...]:
    """Keys in the text of the file at `path`. Raises `ConfigError` if the text is no valid file of
    keys.
    """
    return tuple(one.key for one in validated(KeysFile, parsed(text, path), path).keys)


def check_private(path: Path) -> None:
    """Raise `ConfigError` if a file's mode gives rights to others than its owner, or cannot be
    read.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be read ({why})") from None
    if mode & OTHERS_MAY:
        raise ConfigError(
            f"{path}: its mode {stat.S_IMODE(mode):04o} lets others read or change it: "
            f"chmod 600 {path}"
        )


def with_entry(text: str, key: AccessKey, path: Path) -> str:
    """Text of the file at `path` with one more key at its end, and otherwise unchanged.

    Raises `ConfigError` if the key cannot be added by appending lines.
    """
    before = keys_in(text, path) if text.strip() else ()
    item = re.search(r"^( *)- ", text, re.MULTILINE)
    lines = entry(key, item[1] if item is not None else "  ")
    longer = f"{text.rstrip()}\n{lines}" if before else f"keys:\n{lines}"
    try:
        after = keys_in(longer, path)
    except ConfigError:
        after = ()
    if after != (*before, key):
        raise ConfigError(
            f"{path}: its list is not one of lines that begin with '- ', at its end: add the entry "
            "by hand, which mirage keys new prints without --keys"
        )
    return longer


def entry(key: AccessKey, indent: str = "  ") -> str:
    """Lines of a key as an item of the file's list, each after `indent`."""
    lines = [f"name: {key.name}", f'sha256: "{key.sha256}"']
    if key.models is None:
        lines.append("models: all")
    elif key.models:
        lines.append(f"models: {_flow(list(key.models))}")
    if key.expires is not None:
        lines.append(f"expires: {date_of(key.expires)}")
    lines += [f"{right}: true" for right in ("admin", "metrics") if getattr(key, right)]
    limits = {name: most for name, most in msgspec.structs.asdict(key.limits).items() if most}
    if limits:
        lines.append(f"limits: {_flow(limits)}")
    return "".join(f"{indent}{'  ' if n else '- '}{line}\n" for n, line in enumerate(lines))


def _flow(value: Any) -> str:
    """Value as JSON, which YAML reads as well."""
    return json.dumps(value, ensure_ascii=False)
