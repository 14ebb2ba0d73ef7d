"""Parts of requests at the admin socket, and the form of its answers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
from aiohttp import web

from mirage.serve.apply.revision import Revision
from mirage.serve.openai import ApiError


def as_json(told: Any, revision: Revision, status: int = 200) -> web.Response:
    """An answer of one of the forms, with the revision as its ``ETag``."""
    return web.Response(
        body=msgspec.json.encode(told, enc_hook=str) + b"\n",
        content_type="application/json",
        status=status,
        headers={"ETag": revision.tag},
    )


def known(name: str, names: Collection[str]) -> str:
    """Name of a tenant. Raises `ApiError` if there is none."""
    if name in names:
        return name
    raise ApiError(404, f"no tenant {name!r} here: use one of {', '.join(names)}")


def check_fresh(request: web.Request, revision: Revision) -> None:
    """Raises `ApiError` unless ``If-Match``, if there is one, is the revision."""
    wanted = request.headers.get("If-Match", "*").strip()
    if not revision.is_meant(wanted):
        raise ApiError(
            412, f"If-Match {wanted[:40]!r}, but the revision is {revision.tag}: look again"
        )


def seconds(request: web.Request) -> float | None:
    """``?drain_s=``: what running requests get to end. Raises `ApiError`."""
    word = request.query.get("drain_s")
    if word is None:
        return None
    try:
        given = float(word)
    except ValueError:
        given = -1.0
    if not 0 <= given <= 1e6:
        raise ApiError(400, f"drain_s={word[:40]!r}: write seconds from 0 to 1000000")
    return given


def switched_on(request: web.Request, name: str) -> bool:
    """``?name=1``. Raises `ApiError`."""
    word = request.query.get(name, "0")
    if word not in ("0", "1"):
        raise ApiError(400, f"{name}={word[:40]!r}: write 1 or 0")
    return word == "1"
