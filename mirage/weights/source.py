"""A machine that has weights, asked over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from mirage.errors import CommandFailed
from mirage.problems import one_line
from mirage.units import MIB
from mirage.weights.gathering import ChunkRun
from mirage.weights.manifest import MOST_MANIFEST, ContentFile, WeightsManifest, decoded
from mirage.weights.secret import header
from mirage.weights.sending import ChunksHere, ListedModel, ModelList

CONNECT_S, SILENCE_S = 5.0, 30.0
"""Seconds to connect to a source, and to wait for its next bytes, including its wait for a turn."""
TOLD_S, HEAD_S, CHUNK_S = 30.0, 45.0, 60.0
"""Seconds for an answer without weights, for the head of an answer with weights, and for a
chunk.
"""
MOST_TOLD = 8 * MIB
"""Most bytes of an answer that is neither weights nor a manifest."""
REFUSED = (401, 403)
BUSY, ABSENT = 503, 404
NO_RANGE: Mapping[str, str] = {}
Told = TypeVar("Told")


class SourceFailed(CommandFailed):
    """Error: a source does not send what was requested; the message says why."""


class SourceClosed(SourceFailed):
    """Error: a source does not send what was requested, and will not later either."""


class SourceBusy(SourceFailed):
    """Error: a source is sending to other receivers now."""


class WeightSource:
    """The source at an address, asked through a `session`.

    All methods raise `SourceFailed` if it does not send what was requested, and its subclasses if
    it never will (`SourceClosed`), or is sending to others now (`SourceBusy`).
    """

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self.url = session, url.rstrip("/")

    async def models(self) -> list[ListedModel]:
        """All models that the source has or is bringing."""
        return (await self._told("/weights", ModelList)).models

    async def manifest(self, model: str) -> WeightsManifest:
        """Manifest of a model. Raises `ManifestRefused` if the source sends another or an invalid
        one.
        """
        return decoded(await self._read(f"/weights/{model}", MOST_MANIFEST), model)

    async def have(self, model: str) -> ChunksHere:
        """Chunks of a model that the source has."""
        return await self._told(f"/weights/{model}/have", ChunksHere)

    async def chunks(
        self, manifest: WeightsManifest, model: str, run: ChunkRun
    ) -> AsyncGenerator[bytes, None]:
        """Chunks of a run as they arrive. Each has the right size; its hash is not checked here."""
        file = manifest.contents[run.file]
        begin, end = manifest.span(file, run.begin)[0], manifest.span(file, run.end - 1)[1]
        ranged = {"Range": f"bytes={begin}-{end - 1}"}
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(HEAD_S):
                    getting = self._get(self._file(model, file), ranged)
                    response = await stack.enter_async_context(getting)
                _check(response, (200, 206))
                if response.content_length != end - begin:
                    raise SourceFailed(f"sends {response.content_length} bytes of {end - begin}")
                for chunk in range(run.begin, run.end):
                    first, last = manifest.span(file, chunk)
                    async with asyncio.timeout(CHUNK_S):
                        data = await response.content.readexactly(last - first)
                    yield data
        except EOFError:
            raise SourceFailed("the connection broke") from None
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _failed(error) from None

    def _get(self, url: str, ranged: Mapping[str, str] = NO_RANGE) -> Any:
        return self._session.get(url, headers=ranged, allow_redirects=False)

    def _file(self, model: str, file: ContentFile) -> str:
        return f"{self.url}/weights/{model}/files/{quote(file.path)}"

    async def _told(self, path: str, form: type[Told]) -> Told:
        try:
            return msgspec.json.decode(await self._read(path, MOST_TOLD), type=form)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise SourceClosed(f"is no server of weights ({one_line(str(error))})") from None

    async def _read(self, path: str, most: int) -> bytes:
        try:
            async with asyncio.timeout(TOLD_S), self._get(self.url + path) as response:
                _check(response, (200,))
                data = bytearray()
                async for part in response.content.iter_chunked(MIB):
                    data += part
                    if len(data) > most:
                        raise SourceClosed("answers without an end")
                return bytes(data)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _failed(error) from None


def session(secret: str) -> aiohttp.ClientSession:
    """HTTP session with the secret in its headers; the caller closes it."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENCE_S)
    return aiohttp.ClientSession(
        headers={**header(secret), "Accept-Encoding": "identity"},
        timeout=timeout,
        auto_decompress=False,
        read_bufsize=MIB,
        trust_env=False,
    )


def _check(response: aiohttp.ClientResponse, good: tuple[int, ...]) -> None:
    """Raises `SourceFailed` unless the status is in `good`. Redirects are refused, since they would
    pass the secret on.
    """
    status = response.status
    if status in good:
        return
    if status in REFUSED:
        raise SourceClosed(f"does not take the secret ({status})")
    if status == BUSY:
        raise SourceBusy("sends to others")
    if status == ABSENT:
        raise SourceFailed("has no such model")
    raise SourceFailed(f"HTTP {status} {one_line(response.reason or '')}".rstrip())


def _failed(error: Any) -> SourceFailed:
    words = "no answer" if isinstance(error, TimeoutError) else one_line(str(error))
    return SourceFailed(words or type(error).__name__)
