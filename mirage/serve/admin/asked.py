"""Parts of requests at the admin socket, and the form of its answers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import nan
from typing import Any

import msgspec
from aiohttp import web

from mirage.config import TenantSection
from mirage.serve.api.openai import ApiError
from mirage.serve.apply.revision import Revision


def as_json(told: Any, revision: Revision, status: int = 200) -> web.Response:
    """Answer with HTTP status `status` and `told`, a struct of a `forms.py`, as JSON; its ``ETag``
    header is the revision."""
    return web.Response(
        body=msgspec.json.encode(told, enc_hook=str) + b"\n",
        content_type="application/json",
        status=status,
        headers={"ETag": revision.tag},
    )


def known(name: str, names: Collection[str]) -> str:
    """`name`, which has to be one of `names`. Raises `ApiError` if it is not."""
    if name in names:
        return name
    raise ApiError(404, f"no tenant {name!r} here: use one of {', '.join(names)}")


def tenant_named(name: str, sections: Mapping[str, TenantSection]) -> str:
    """Name of the tenant that has `name` as its own or as an alias. Raises `ApiError` if none
    has.
    """
    own = next((tenant.name for tenant in sections.values() if name in tenant.aliases), name)
    return known(own, sections)


def check_fresh(request: web.Request, revision: Revision) -> None:
    """Raise `ApiError` if the request has an ``If-Match`` that does not accept the revision."""
    wanted = request.headers.get("If-Match", "*").strip()
    if not revision.is_meant(wanted):
        raise ApiError(
            412, f"If-Match {wanted[:40]!r}, but the revision is {revision.tag}: look again"
        )


def seconds(request: web.Request) -> float | None:
    """Seconds for running requests to end, from ``?drain_s=``; None if the query has no such key.
    Raises `ApiError` if it is no number from 0 to 1,000,000.
    """
    return number(request, "drain_s", "seconds", 0, 1_000_000)


def number(request: web.Request, name: str, unit: str, least: float, most: float) -> float | None:
    """Number from `least` to `most` in the query's key `name`; None if the query has no such key.
    Raises `ApiError` for any other value; its message calls the number `unit`.
    """
    word = request.query.get(name)
    if word is None:
        return None
    try:
        given = float(word)
    except ValueError:
        given = nan
    if not least <= given <= most:
        raise ApiError(400, f"{name}={word[:40]!r}: write {unit} from {least} to {most}")
    return given


def switched_on(request: web.Request, name: str) -> bool:
    """True if the query's key `name` is ``1``, false if it is ``0`` or missing. Raises `ApiError`
    for any other value.
    """
    word = request.query.get(name, "0")
    if word not in ("0", "1"):
        raise ApiError(400, f"{name}={word[:40]!r}: write 1 or 0")
    return word == "1"
