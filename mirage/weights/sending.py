"""A machine's server of weights: manifests, lists of its chunks, and ranges of files.

    GET /weights                    models, with their names
    GET /weights/ID                 the manifest
    GET /weights/ID/have            numbers of the chunks that are here, by their contents
    GET /weights/ID/files/PATH      a file, or a range of it, if all its chunks are here

It sends to one receiver at a time; the next one waits for its turn, at most `TURN_S`. A receiver
that takes less than `BLOCK` bytes in `STALL_S` seconds loses its turn. While others wait, a turn
lasts `held_s`, extended to the end of the present chunk by at most another `held_s`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any

import msgspec
from aiohttp import web

from mirage.units import MIB
from mirage.weights.manifest import ContentFile, ManifestRefused, WeightsManifest
from mirage.weights.problems import WeightsRefused
from mirage.weights.secret import is_told
from mirage.weights.store import ID, MARK, WeightStore, part_of
from mirage.weights.strangers import Strangers

BLOCK = MIB
"""Bytes that are read and sent at a time."""
TURN_S = 15.0
STALL_S, HELD_S = 10.0, 30.0
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ListedModel(msgspec.Struct):
    """A model in the answer of ``GET /weights``: `bytes` of contents, of which `here` have
    arrived.
    """

    id: str
    names: tuple[str, ...]
    bytes: int
    here: int


class ModelList(msgspec.Struct):
    """Answer of ``GET /weights``."""

    models: list[ListedModel]


class ChunksHere(msgspec.Struct):
    """Answer of ``GET /weights/ID/have``: numbers of the chunks that have arrived, by
    the hash of their file's content.
    """

    chunks: dict[str, list[int]]


class WeightSender:
    """Server of one store, which sends to one receiver at a time.

    `bytes_per_s` limits its speed; None does not. While other receivers wait, a receiver's turn
    lasts `held_s` seconds, or up to twice that if a chunk is not complete by then.
    """

    def __init__(
        self,
        store: WeightStore,
        secret: str,
        bytes_per_s: float | None = None,
        held_s: float = HELD_S,
    ) -> None:
        self._store, self._secret, self._rate = store, secret, bytes_per_s
        self._held_s = held_s
        self.strangers = Strangers()
        """Connections that have not shown the secret; the code that listens must add each new
        one.
        """
        self._turn = asyncio.Lock()
        """Held by the answer that sends; others wait in order of arrival."""
        self._waiting = 0
        """Number of answers that wait for their turn."""
        self._manifest = lru_cache(maxsize=64)(store.manifest)

    def app(self) -> web.Application:
        """The aiohttp application of this server."""
        app = web.Application(middlewares=[self._known])
        app.add_routes(
            [
                web.get("/weights", self._models),
                web.get("/weights/{id}", self._one),
                web.get("/weights/{id}/have", self._have),
                web.get("/weights/{id}/files/{path:.+}", self._file),
            ]
        )
        return app

    @web.middleware
    async def _known(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not is_told(request.headers.get("Authorization"), self._secret):
            refused = web.HTTPUnauthorized(text="the secret of this cluster is asked for")
            refused.force_close()
            raise refused
        self.strangers.is_known(request.protocol)
        try:
            return await handler(request)
        except (WeightsRefused, ManifestRefused) as error:
            raise web.HTTPNotFound(text=str(error)) from None

    async def _models(self, request: web.Request) -> web.Response:
        found = await asyncio.to_thread(self._store.models)
        return _json(ModelList([ListedModel(m.id, m.names, m.bytes, m.here) for m in found]))

    async def _one(self, request: web.Request) -> web.Response:
        manifest = await asyncio.to_thread(self._asked, request)
        return web.Response(body=manifest.encoded, content_type="application/json")

    async def _have(self, request: web.Request) -> web.Response:
        manifest = await asyncio.to_thread(self._asked, request)
        chunks = await asyncio.to_thread(self._store.have, manifest)
        return _json(ChunksHere(chunks))

    async def _file(self, request: web.Request) -> web.StreamResponse:
        manifest = await asyncio.to_thread(self._asked, request)
        file = next((one for one in manifest.files if one.path == request.match_info["path"]), None)
        if file is None:
            raise web.HTTPNotFound(text="the model has no such file")
        begin, end = _range(request, file)
        self._waiting += 1
        try:
            async with asyncio.timeout(TURN_S):
                await self._turn.acquire()
        except TimeoutError:
            raise web.HTTPServiceUnavailable(
                headers={"Retry-After": "1"}, text="it sends to others"
            ) from None
        finally:
            self._waiting -= 1
        try:
            return await self._send(request, manifest, file, begin, end)
        finally:
            self._turn.release()

    async def _send(
        self,
        request: web.Request,
        manifest: WeightsManifest,
        file: ContentFile,
        begin: int,
        end: int,
    ) -> web.StreamResponse:
        handle = await asyncio.to_thread(self._opened, manifest, file, begin, end)
        try:
            whole = end - begin == file.size
            headers = {"Content-Length": str(end - begin), "Accept-Ranges": "bytes"}
            if not whole:
                headers["Content-Range"] = f"bytes {begin}-{end - 1}/{file.size}"
            response = web.StreamResponse(status=200 if whole else 206, headers=headers)
            await response.prepare(request)
            started, at = time.monotonic(), begin
            while at < end:
                block = await asyncio.to_thread(os.pread, handle, min(BLOCK, end - at), at)
                if not block:
                    # Cut short on the disk: the receiver sees that bytes are missing.
                    _close(request)
                    break
                async with asyncio.timeout(STALL_S):
                    await response.write(block)
                at += len(block)
                if self._rate is not None:
                    await asyncio.sleep(started + (at - begin) / self._rate - time.monotonic())
                if self._is_over(time.monotonic() - started, at % manifest.chunk_bytes):
                    if request.transport is not None:
                        request.transport.close()  # once what was written has gone
                    break
            return response
        except TimeoutError:
            _close(request)
            raise
        finally:
            os.close(handle)

    def _is_over(self, held_s: float, of_a_chunk: int) -> bool:
        """True if others wait, and the turn, which has lasted `held_s` seconds, has lasted longer
        than `_held_s`, or than twice `_held_s` if `of_a_chunk` is a block or more. `of_a_chunk` is
        the number of bytes of the present chunk that were sent.
        """
        long = held_s > (2 * self._held_s if of_a_chunk >= BLOCK else self._held_s)
        return long and self._waiting > 0

    def _asked(self, request: web.Request) -> WeightsManifest:
        if not ID.fullmatch(model := request.match_info["id"]):
            raise WeightsRefused("no id of a model")
        return self._manifest(model)

    def _opened(self, manifest: WeightsManifest, file: ContentFile, begin: int, end: int) -> int:
        """Open descriptor of a content, complete or not, that has all chunks of the range."""
        size = manifest.chunk_bytes
        wanted = range(begin // size, -(-end // size))
        marks = self._store.marks(file)
        if any(marks[n : n + 1] != MARK for n in wanted):
            raise web.HTTPRequestRangeNotSatisfiable(text="not all of it is here")
        content = self._store.content(file.sha256)
        for path in (content, part_of(content), content):  # it may get its name meanwhile
            try:
                return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
        raise web.HTTPNotFound(text="it is not here any more")


def _range(request: web.Request, file: ContentFile) -> tuple[int, int]:
    """Begin and end in bytes of the range that a request asks for."""
    try:
        begin, end, _ = request.http_range.indices(file.size)
    except ValueError:
        raise web.HTTPRequestRangeNotSatisfiable(text="no range of bytes") from None
    if begin >= end and file.size:
        raise web.HTTPRequestRangeNotSatisfiable(text=f"the file has {file.size} bytes")
    return begin, end


def _close(request: web.Request) -> None:
    """Abort a connection immediately, dropping unsent bytes."""
    if request.transport is not None:
        request.transport.abort()


def _json(told: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(told), content_type="application/json")
