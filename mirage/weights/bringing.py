"""Bringing a model into a store, from all sources that have parts of it.

Each source has a task of its own, which receives one run (consecutive chunks of a file) at a time;
`Gathering` chooses the runs. Chunks that have arrived are kept even if the bringing ends early.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import IO

from mirage.hub.shown import bar
from mirage.units import size
from mirage.weights.changes import StoreChanges
from mirage.weights.finding import found_at
from mirage.weights.gathering import ChunkRun, Gathering
from mirage.weights.manifest import ManifestRefused, WeightsManifest
from mirage.weights.part import PartFile
from mirage.weights.problems import (
    PATIENCE_S,
    WeightsFailed,
    WeightsRefused,
    check_room,
    writing,
)
from mirage.weights.source import SourceBusy, SourceClosed, SourceFailed, WeightSource, session
from mirage.weights.store import ID, WeightStore

TICK_S = 0.5
STALL_S = 5.0
"""Seconds without a chunk after which another idle source may send the same run."""
BUSY_TIMES = 10
"""Number of further patiences that are waited, at most, while sources are busy with other
receivers.
"""
Say = Callable[[str], None]
Progress = Callable[[int, int], None]
"""Callback with the bytes that have arrived, and the bytes that were missing at first."""


async def bring(
    store: WeightStore,
    wanted: str,
    sources: Sequence[str],
    secret: str | None,
    say: Say,
    progress: Progress = lambda here, missing: None,
    *,
    patience_s: float = PATIENCE_S,
    newest: bool = False,
) -> Path:
    """Bring the model with the name or id `wanted` into the store; return its folder.

    `sources` are addresses of machines that may have it, which know `secret`. `say` gets lines
    about sources, `progress` the bytes that have come. It fails if no chunk has come for
    `patience_s` seconds; while sources are busy with other receivers it waits longer, at most
    eleven times that. A name that the store knows is not looked up again, unless with `newest`.
    Raises `WeightsRefused` for reasons that the user can remove, else `WeightsFailed`.
    """
    with writing(store.place, wanted):
        model = await asyncio.to_thread(store.found, wanted)
        newest = newest and bool(sources) and not ID.fullmatch(wanted)
        if model is not None and store.is_whole(model) and not newest:
            return store.folder(model)
        if not sources or secret is None:
            raise WeightsRefused(
                f"{wanted}: it is not whole in {store.place}, and there is nobody to ask: add it "
                "(mirage weights add FOLDER), or name sources and the secret of the cluster"
            )
        changes = await asyncio.to_thread(StoreChanges, store)
        async with session(secret) as http:
            lines = [WeightSource(http, url) for url in dict.fromkeys(sources)]
            held = await _bringing(changes, wanted, say)
            try:
                known = model if model in store.readable() and not newest else None
                manifest, name = await found_at(store, wanted, known, lines, patience_s)
                folder = store.folder(manifest.id)
                if not store.is_whole(manifest.id):
                    new = name if name not in store.names() else None
                    await asyncio.to_thread(changes.expect, manifest, new)
                    await _Bringing(store, wanted, manifest, lines, patience_s).run(say, progress)
                    folder = await asyncio.to_thread(changes.complete, manifest)
                if name is not None:
                    await asyncio.to_thread(changes.name, name, manifest.id)
                return folder
            finally:
                held.close()


async def _bringing(changes: StoreChanges, wanted: str, say: Say) -> IO[bytes]:
    told = False
    while (held := changes.bringing()) is None:
        if not told:
            say(f"{wanted}: another process brings a model into this store: waiting for it")
        told = True
        await asyncio.sleep(TICK_S)
    return held


class _Bringing:
    """Transfer of one model into a store, from all its sources at the same time."""

    def __init__(
        self,
        store: WeightStore,
        wanted: str,
        manifest: WeightsManifest,
        sources: Sequence[WeightSource],
        patience_s: float,
    ) -> None:
        self._store, self._wanted, self._manifest = store, wanted, manifest
        self._id, self._sources, self._patience_s = manifest.id, sources, patience_s
        self._parts = {
            sha256: PartFile(store, manifest, file)
            for sha256, file in manifest.contents.items()
            if not store.content(sha256).exists()
        }
        missing = {sha256: set(part.missing) for sha256, part in self._parts.items()}
        urls = [source.url for source in sources]
        self._gathering = Gathering(missing, urls, secrets.token_hex())
        self._came = self._busy = time.monotonic()
        """Monotonic times at which a chunk last arrived, and a source was last busy with others."""
        self._coming: dict[str, tuple[ChunkRun, float]] = {}
        """Run that each source sends, and the monotonic time of its last chunk."""
        self._finishing: set[str] = set()
        self._repeated: set[str] = set()
        """Contents that were brought again, because chunks with a mark were wrong on the disk."""
        self._over = asyncio.Event()
        self._show: Callable[[int], None] = lambda done: None

    async def run(self, say: Say, progress: Progress) -> None:
        """Bring all contents. Raises `WeightsFailed` if sources fail, `WeightsRefused` if the disk
        has no room or the manifest contradicts itself, and `OSError` if a file cannot be written.
        """
        total, began = self._left, time.monotonic()
        check_room(self._store.place, total, self._wanted)
        say(f"{self._wanted}: bringing {size(total)} of {size(self._manifest.bytes)}")
        with bar(self._wanted, total) as show:

            def shown(left: int) -> None:
                show(total - left)
                progress(total - left, total)

            self._show = shown
            for sha256 in [name for name, part in self._parts.items() if not part.missing]:
                await self._finish(sha256)
            if self._parts:
                await self._gather()
        took = max(time.monotonic() - began, 1e-9)
        say(f"{self._wanted}: {size(total)} in {took:.1f} s, {size(total / took)}/s")

    @property
    def _left(self) -> int:
        """Bytes that are still missing."""
        spans = (
            self._manifest.span(part.file, chunk)
            for part in self._parts.values()
            for chunk in part.missing
        )
        return sum(end - begin for begin, end in spans)

    async def _gather(self) -> None:
        lines = {asyncio.create_task(self._line(source)) for source in self._sources}
        over = asyncio.create_task(self._over.wait())
        try:
            while not over.done():
                ended, _ = await asyncio.wait(
                    {over, *lines}, timeout=TICK_S, return_when=asyncio.FIRST_COMPLETED
                )
                for line in ended & lines:
                    line.result()
                lines -= ended
                self._show(self._left)
                self._free_stalled()
                if not over.done() and (self._is_late or not self._gathering.open):
                    raise WeightsFailed(
                        f"{self._wanted}: no source sends the {size(self._left)} that are missing "
                        f"({self._gathering.told}): bring it again once one does, what has come is "
                        "kept"
                    )
        finally:
            over.cancel()
            for line in lines:
                line.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*lines, return_exceptions=True)

    @property
    def _is_late(self) -> bool:
        """True if no chunk has come for too long. Waiting for a busy source is allowed longer, but
        not for ever.
        """
        hope = min(self._busy, self._came + BUSY_TIMES * self._patience_s)
        return time.monotonic() - max(self._came, hope) > self._patience_s

    def _free_stalled(self) -> None:
        """Let other sources take runs that their source sends too slowly; that source may still
        finish them.
        """
        for run, since in self._coming.values():
            if time.monotonic() - since > STALL_S:
                self._gathering.left(run)

    async def _line(self, source: WeightSource) -> None:
        """Ask one source for chunks and receive them, until all contents are complete or
        `_gathering` has closed this source. A source that only failed is asked again.
        """
        gathering, url = self._gathering, source.url
        while self._parts and url in gathering.open:
            await self._ask(source)
            if (run := gathering.take(url)) is None:
                await asyncio.sleep(gathering.pause_s(url))
                continue
            self._coming[url] = run, time.monotonic()
            try:
                await self._receive(source, run)
            except SourceBusy:
                gathering.failed(url, "")
                self._busy = time.monotonic()
            except SourceFailed as error:
                gathering.failed(url, str(error), closed=isinstance(error, SourceClosed))
                await asyncio.sleep(gathering.pause_s(url))
            finally:
                del self._coming[url]
                gathering.left(run)

    async def _ask(self, source: WeightSource) -> None:
        gathering, url = self._gathering, source.url
        try:
            told = await source.have(self._id)
        except (SourceFailed, ManifestRefused) as error:
            gathering.failed(url, str(error), closed=isinstance(error, SourceClosed))
            return
        gathering.heard(url, told.chunks)

    async def _receive(self, source: WeightSource, run: ChunkRun) -> None:
        chunks, number = source.chunks(self._manifest, self._id, run), run.begin
        async with aclosing(chunks) as coming:
            async for data in coming:
                part = self._parts.get(run.file)
                if part is None:  # another source has sent it meanwhile
                    return
                if not await asyncio.to_thread(part.write, number, data):
                    self._gathering.wrong(source.url, run.file, number)
                    return
                self._gathering.got(source.url, run.file, number)
                self._came = time.monotonic()
                self._coming[source.url] = run, self._came
                if not part.missing:
                    await self._finish(run.file)
                number += 1

    async def _finish(self, sha256: str) -> None:
        """Complete a content, or let its wrong chunks come again. Raises `WeightsFailed` if they
        were wrong twice.
        """
        part = self._parts.get(sha256)
        if part is None or sha256 in self._finishing:
            return
        self._finishing.add(sha256)
        if await asyncio.to_thread(part.finish):
            del self._parts[sha256]
            if not self._parts:
                self._over.set()
        else:
            if sha256 in self._repeated:
                raise WeightsFailed(
                    f"{self._store.content(sha256)}: it reads otherwise than it was written: look "
                    "at its disk"
                )
            self._repeated.add(sha256)
            self._gathering.again(sha256, part.missing)
        self._finishing.discard(sha256)
