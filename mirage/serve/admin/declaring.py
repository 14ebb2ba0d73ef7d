"""Routes by which an operator declares tenants: the whole configuration, or one tenant of it."""

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
from mirage.serve.apply.appliers import AppliesConfigs, whole
from mirage.serve.apply.edits import with_keys, without
from mirage.serve.apply.forms import ApplyTold, ConfigTold
from mirage.serve.apply.revision import Revision
from mirage.serve.apply.source import Written, written
from mirage.serve.openai import ApiError, Handler

Edit = Callable[[Written], Written]
FIXED = "with several devices the server above says who is served here: apply it at its socket"


class Declaring:
    """Routes that apply configurations by one `applier`. The last one applied holds."""

    def __init__(self, applier: AppliesConfigs, *, one_of_several: bool = False) -> None:
        """`one_of_several`: a device of a file with more, whose tenants the process above has.

        That one says so by ``?above=1``.
        """
        self._applier, self._is_fixed = applier, one_of_several
        self._under_way: set[asyncio.Future[web.StreamResponse]] = set()
        """Tasks that are not done: the event loop alone would not keep them."""

    @property
    def revision(self) -> Revision:
        """Revision of what operators want."""
        return self._applier.revision

    def routes(self) -> list[web.RouteDef]:
        """All of them."""
        return [
            web.get("/config", self._get),
            web.put("/config", self._to_its_end(self._put)),
            web.patch("/tenants/{name:(?s:.+)}", self._to_its_end(self._patch)),
            web.delete("/tenants/{name:(?s:.+)}", self._to_its_end(self._delete)),
        ]

    def _to_its_end(self, handler: Handler) -> Handler:
        """Have what was sent done and told, also if its client goes away meanwhile."""

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
        """The whole configuration. ``file`` is its name, ``folder`` what its paths begin at."""
        with audited(request, "apply", "-") as result:
            with _refusals():
                wanted = written(await _text(request), *self._place(request))
            return await self._apply(request, whole(wanted), result)

    async def _patch(self, request: web.Request) -> web.Response:
        """Keys of one tenant; null has one as if it was not written."""
        name = request.match_info["name"]
        with audited(request, "set", name) as result:
            keys = _keys(await _text(request))
            return await self._apply(request, partial(_with_keys, name, keys), result)

    async def _delete(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        with audited(request, "remove", name) as result:
            return await self._apply(request, partial(_without, name), result)

    async def _apply(self, request: web.Request, edit: Edit, result: list[str]) -> web.Response:
        """200 with what differs, whether it is done or was only asked about."""
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
    """Answer with one line for what cannot be done."""
    try:
        yield
    except InputRefused as error:
        raise ApiError(400, str(error)) from None
    except CommandFailed as error:
        raise ApiError(409, str(error)) from None


async def _text(request: web.Request) -> str:
    """Raises `ApiError`."""
    try:
        return (await request.read()).decode()
    except web.HTTPRequestEntityTooLarge:
        raise ApiError(413, f"more than {LARGEST_FILE} bytes: send a configuration") from None
    except ConnectionError:
        raise ApiError(400, "the client went away before all was sent") from None
    except UnicodeDecodeError as error:
        raise ApiError(400, f"not UTF-8 text ({error.reason} at {error.start})") from None


def _keys(text: str) -> dict[str, Any]:
    """Raises `ApiError`."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        raise ApiError(400, "write a JSON object of keys with values") from None


def _with_keys(name: str, keys: dict[str, Any], before: Written) -> Written:
    _check_known(name, before)
    return replace(before, raw=with_keys(before.raw, name, keys), sha256="")


def _without(name: str, before: Written) -> Written:
    _check_known(name, before)
    return replace(before, raw=without(before.raw, name), sha256="")


def _check_known(name: str, wanted: Written) -> None:
    """Raises `ApiError`."""
    known(name, [one["name"] for one in wanted.raw["tenants"]])


def _short(told: ApplyTold) -> str:
    return "; ".join(told.lines)
