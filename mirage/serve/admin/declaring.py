"""Routes by which operators declare tenants: a whole configuration, or one tenant."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from mirage.config import LARGEST_FILE
from mirage.errors import CommandFailed, InputRefused
from mirage.serve.admin.asked import as_json, check_fresh, known, seconds, switched_on
from mirage.serve.admin.audit import audited
from mirage.serve.api.openai import ApiError, Handler
from mirage.serve.apply.appliers import AppliesConfigs, whole
from mirage.serve.apply.edits import check_keys, with_keys, without
from mirage.serve.apply.forms import ApplyTold, ConfigTold
from mirage.serve.apply.revision import Revision
from mirage.serve.apply.source import Written, written

Edit = Callable[[Written], Written]
FIXED = "with several devices the server above says who is served here: apply it at its socket"


class Declaring:
    """Routes that apply configurations by an `applier`; the last one applied is in use."""

    def __init__(self, applier: AppliesConfigs, *, one_of_several: bool = False) -> None:
        """`one_of_several` is true for one of several devices, whose tenants the server above
        declares.

        Only requests with ``?above=1``, which that server sends, may change tenants then.
        """
        self._applier, self._is_fixed = applier, one_of_several
        self._under_way: set[asyncio.Future[web.StreamResponse]] = set()
        """Tasks under way, kept here because the event loop holds no strong reference to them."""

    @property
    def revision(self) -> Revision:
        """Number that each accepted act or apply of an operator raises."""
        return self._applier.revision

    def routes(self) -> list[web.RouteDef]:
        """All routes of this class."""
        return [
            web.get("/config", self._get),
            web.put("/config", self._to_its_end(self._put)),
            web.patch("/tenants/{name:(?s:.+)}", self._to_its_end(self._patch)),
            web.delete("/tenants/{name:(?s:.+)}", self._to_its_end(self._delete)),
        ]

    def _to_its_end(self, handler: Handler) -> Handler:
        """Handler that goes on to its end, with its audit line, when its client leaves
        meanwhile.
        """

        async def handle(request: web.Request) -> web.StreamResponse:
            doing = asyncio.ensure_future(handler(request))
            self._under_way.add(doing)
            doing.add_done_callback(self._under_way.discard)
            return await asyncio.shield(doing)

        return handle

    async def _get(self, request: web.Request) -> web.Response:
        wanted = self._applier.wanted
        told = ConfigTold(
            revision=self.revision.number,
            folder=str(wanted.folder),
            configuration=wanted.raw,
        )
        return as_json(told, self.revision)

    async def _put(self, request: web.Request) -> web.Response:
        """Apply a whole configuration.

        The query's ``file`` is its name in messages, ``folder`` the one that its paths are relative
        to.
        """
        with audited(request, "apply", "-") as result:
            with _refusals():
                wanted = written(await _text(request), *self._place(request))
            return await self._apply(request, whole(wanted), result)

    async def _patch(self, request: web.Request) -> web.Response:
        """Change keys of one tenant; null removes a key."""
        name = request.match_info["name"]
        with audited(request, "set", name) as result:
            keys = _keys(await _text(request))
            return await self._apply(request, partial(_with_keys, name, keys), result)

    async def _delete(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        with audited(request, "remove", name) as result:
            return await self._apply(request, partial(_without, name), result)

    async def _apply(self, request: web.Request, edit: Edit, result: list[str]) -> web.Response:
        """Apply an edit, or let a dry run tell its effects; answer 200 with the difference."""
        if self._is_fixed and not switched_on(request, "above"):
            raise ApiError(409, FIXED)
        with _refusals():
            told = await self._applier.apply(
                edit,
                fresh=partial(check_fresh, request, self.revision),
                drain_s=seconds(request),
                dry_run=switched_on(request, "dry_run"),
                facts=switched_on(request, "what_if"),
            )
        result.append(f"200 {_short(told)}")
        return as_json(told, self.revision)

    def _place(self, request: web.Request) -> tuple[Path, Path]:
        folder = Path(request.query.get("folder", self._applier.wanted.folder))
        if not folder.is_absolute():
            raise ApiError(400, f"folder={str(folder)[:40]!r}: write an absolute path")
        return Path(request.query.get("file", "the configuration")), folder


@contextmanager
def _refusals() -> Iterator[None]:
    """Context that turns an `InputRefused` into an `ApiError` with status 400, and a
    `CommandFailed` into one with 409.
    """
    try:
        yield
    except InputRefused as error:
        raise ApiError(400, str(error)) from None
    except CommandFailed as error:
        raise ApiError(409, str(error)) from None


async def _text(request: web.Request) -> str:
    """Body of a request as text. Raises `ApiError` for a body that is too long, incomplete or not
    UTF-8.
    """
    try:
        return (await request.read()).decode()
    except web.HTTPRequestEntityTooLarge:
        raise ApiError(413, f"more than {LARGEST_FILE} bytes: send a configuration") from None
    except ConnectionError:
        raise ApiError(400, "the client went away before all was sent") from None
    except UnicodeDecodeError as error:
        raise ApiError(400, f"not UTF-8 text ({error.reason} at {error.start})") from None


def _keys(text: str) -> dict[str, Any]:
    """JSON object in a text. Raises `ApiError` for other text."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        raise ApiError(400, "write a JSON object of keys with values") from None


def _with_keys(name: str, keys: dict[str, Any], before: Written) -> Written:
    _check_known(name, before)
    edited = with_keys(before.raw, name, keys)
    check_keys(edited, name)
    return replace(before, raw=edited, sha256="")


def _without(name: str, before: Written) -> Written:
    _check_known(name, before)
    return replace(before, raw=without(before.raw, name), sha256="")


def _check_known(name: str, wanted: Written) -> None:
    """Raise `ApiError` if the configuration has no tenant `name`."""
    known(name, [one["name"] for one in wanted.raw["tenants"]])


def _short(told: ApplyTold) -> str:
    return "; ".join(told.lines)
