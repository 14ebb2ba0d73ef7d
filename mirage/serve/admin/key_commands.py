"""``mirage keys``: makes a key, lists a file of keys, or has a server read its keys again."""

from __future__ import annotations

import re
import secrets
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from mirage.config import read_text
from mirage.errors import CommandFailed, InputRefused
from mirage.printed import json_object
from mirage.private_file import replace_private
from mirage.serve.access.forms import AccessKey
from mirage.serve.access.keys_file import check_private, entry, keys_in, read_keys, with_entry
from mirage.serve.access.ring import date_of, digest
from mirage.serve.admin.address import chosen
from mirage.serve.admin.client import AdminClient
from mirage.serve.admin.commands import SocketOption

BEGIN = "mirage-"
"""Beginning of each token, by which people and secret scanners recognise it."""
TOKEN_BYTES = 32
SPAN = re.compile(r"([1-9]\d{0,4})([hdw])")
SPAN_S = {"h": 3600, "d": 86400, "w": 7 * 86400}
NOWHERE = Path("the new key")
"""Name in messages where no file is named."""
TAKEN = "mirage keys reload, or SIGHUP, has a server take it"
HEADINGS = ("NAME", "SHA256", "OPENS", "EXPIRES", "LIMITS")
SCHEMA_VERSION = 1


class KeysVerb(StrEnum):
    """Act of `mirage keys`."""

    NEW = "new"
    LIST = "list"
    RELOAD = "reload"


def keys_command(
    verb: Annotated[KeysVerb, typer.Argument(help="What to do.")],
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|FILE", help="With new: the name of the key. With list: the file."
        ),
    ] = None,
    models: Annotated[
        str | None,
        typer.Option(
            metavar="A,B|all|none",
            help="Tenants that the key may use, with their adapters, or single adapters.",
            show_default="all, or as the other key of that name",
        ),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(
            metavar="30d", help="Time until it expires: hours (12h), days (30d) or weeks (4w)."
        ),
    ] = None,
    admin: Annotated[
        bool, typer.Option("--admin", help="Allow /health, /metrics and /mirage.")
    ] = False,
    metrics: Annotated[bool, typer.Option("--metrics", help="Allow /metrics.")] = False,
    keys: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File to which the key is added.",
            show_default="print the entry to add",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="With list: print one JSON object instead.")
    ] = False,
    socket: SocketOption = None,
) -> None:
    """Make an API key (new NAME), list those of a file, or have a running server reload its own.

    A token is printed once, by new, and kept nowhere: files have its hash. A key of a name that
    is there already opens the same as that one, so that one can follow the other.
    """
    if as_json and verb is not KeysVerb.LIST:
        raise InputRefused(f"--json works only with list: leave it out with {verb}")
    if verb is KeysVerb.RELOAD:
        typer.echo(AdminClient(chosen(socket)).reload_keys())
        return
    if what is None:
        raise InputRefused(f"keys {verb} needs a {'NAME' if verb is KeysVerb.NEW else 'FILE'}")
    if verb is KeysVerb.LIST:
        known = read_keys(Path(what))
        typer.echo(json_object(SCHEMA_VERSION, {"keys": known}) if as_json else _table(known))
        return
    token = BEGIN + secrets.token_urlsafe(TOKEN_BYTES)
    text = "" if keys is None else _text(keys)
    base = _namesake(what, text, keys)
    key = msgspec.structs.replace(
        base,
        sha256=digest(token),
        models=base.models if models is None else _models(models),
        expires=None if expires is None else int(time.time()) + _span_s(expires),
        admin=base.admin or admin,
        metrics=base.metrics or metrics,
    )
    keys_in(f"keys:\n{entry(key)}", keys or NOWHERE)
    if keys is None:
        typer.echo(f"{token}\nkeys:\n{entry(key)}", nl=False)
        return
    _write(keys, with_entry(text, key, keys))
    typer.echo(token)
    typer.echo(f"{what} is added to {keys}: {TAKEN}", err=True)


def _table(known: tuple[AccessKey, ...]) -> str:
    return key_table(known, time.time())


def key_table(keys: tuple[AccessKey, ...], now: float) -> str:
    """Table of keys for the terminal; `now` is in seconds since 1970."""
    rows = [HEADINGS, *(_row(key, now) for key in keys)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _row(key: AccessKey, now: float) -> tuple[str, ...]:
    opens = ["all models"] if key.models is None else list(key.models)
    opens += [right for right in ("admin", "metrics") if getattr(key, right)]
    expires = "never" if key.expires is None else date_of(key.expires)
    expired = " (expired)" if key.expires is not None and key.expires <= now else ""
    limits = [f"{k}={v}" for k, v in msgspec.structs.asdict(key.limits).items() if v is not None]
    return (
        key.name,
        key.sha256[:12],
        ", ".join(opens),
        f"{expires}{expired}",
        " ".join(limits) or "none",
    )


def _namesake(name: str, text: str, path: Path | None) -> AccessKey:
    """Last key of that name in the text of a file; a key that opens all models if the file has no
    key of that name.
    """
    known = keys_in(text, path) if path is not None and text.strip() else ()
    return next((key for key in reversed(known) if key.name == name), AccessKey(name, "", None))


def _models(text: str) -> tuple[str, ...] | None:
    if text in ("all", "none"):
        return None if text == "all" else ()
    return tuple(text.split(","))


def _span_s(text: str) -> int:
    """Seconds of a span such as ``30d``. Raises `InputRefused` for any other text."""
    if (found := SPAN.fullmatch(text)) is None:
        raise InputRefused(f"--expires {text!r}: write hours, days or weeks, as 12h, 30d or 4w")
    return int(found[1]) * SPAN_S[found[2]]


def _text(path: Path) -> str:
    """Text of a file of keys; empty if the file does not exist. Raises `ConfigError` if it cannot
    be read, or its mode lets others read it.
    """
    if not path.exists():
        return ""
    check_private(path)
    return read_text(path)


def _write(path: Path, text: str) -> None:
    try:
        replace_private(path, text.encode())
    except OSError as error:
        raise CommandFailed(f"{path}: it cannot be written ({error.strerror})") from None
