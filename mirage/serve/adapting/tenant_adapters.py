"""Adapters of one tenant's engine, loaded and unloaded to match those that are declared."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from mirage.problems import one_line
from mirage.serve.adapting.copies import AdapterCopies
from mirage.serve.adapting.desired import AdapterBook, EngineAdapter, parsed
from mirage.serve.adapting.engine_routes import AdaptersUnknown, EngineAdapterRoutes

FOUND_S = 2.0
"""Seconds in which an adopted engine has to tell its adapters."""
AGAIN_S = 5.0
"""Seconds until an engine that did not answer is asked again."""
ON_THEIR_WAY_S = 1.0
"""Seconds for requests that the router has already passed on to reach the engine, before their
adapter is unloaded.
"""


class TenantAdapters:
    """Loads and unloads adapters as `book` declares. `keep` has to run while an engine serves."""

    def __init__(
        self,
        book: AdapterBook,
        routes: EngineAdapterRoutes,
        copies: AdapterCopies,
        seen: Callable[[], Awaitable[None]],
        say: Callable[[str], None],
    ) -> None:
        """`seen` returns once the router knows the adapters that `book` has."""
        self._book, self._routes, self._copies = book, routes, copies
        self._seen, self._say = seen, say
        self._news = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()

    def changed(self) -> None:
        """Note that other adapters are declared, which `keep` then loads into a running engine."""
        if self._book.has is not None:
            self._settled.clear()
        self._news.set()

    async def settled(self) -> None:
        """Return when a running engine has the declared adapters, but for those that cannot be
        loaded. Returns also if the engine does not answer, and immediately if there is no engine.
        """
        await self._settled.wait()

    # -- an engine ----------------------------------------------------------------------

    async def begins(self) -> None:
        """Load all declared adapters into an engine that has just started."""
        book, has = self._book, dict[EngineAdapter, Path]()
        book.failed = {}
        if book.declared:
            await self._read_all()
            await asyncio.to_thread(self._copies.keep, set(book.digests.values()))
            try:
                await self._load_missing(has)
            except AdaptersUnknown:  # it ends, or is asked again when it serves
                self._news.set()
        book.has = has

    async def found(self) -> None:
        """Ask an adopted engine, which another server started, for its adapters; `keep` then loads
        those that it lacks.
        """
        book = self._book
        book.has = {}
        if not book.declared:
            return
        self._news.set()
        with suppress(AdaptersUnknown, TimeoutError):
            async with asyncio.timeout(FOUND_S):
                book.has = await self._look()
        for name, folder in book.declared.items():
            if len(ours := [one for one in book.has if one.name == name]) == 1:
                book.digests[name], book.has[ours[0]] = ours[0].digest, folder

    def over(self) -> None:
        """Note that the engine has gone. Idempotent."""
        self._book.has = None
        self._settled.set()

    async def keep(self) -> None:
        """Load and unload adapters whenever the declaration changes. An engine that does not answer
        is asked again after `AGAIN_S`. Never returns.
        """
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await self._have()
                self._have_settled()
                await self._let_go()
            except AdaptersUnknown as error:
                self._have_settled()
                self._say(f"its adapters are not known ({error}): it is asked again")
                await asyncio.sleep(AGAIN_S)
                self._news.set()

    def _have_settled(self) -> None:
        if not self._news.is_set():
            self._settled.set()

    async def _have(self) -> None:
        """Load the adapters that the engine lacks, and wait until the router knows them. Raises
        `AdaptersUnknown` if the engine does not answer.
        """
        self._book.has = has = await self._look()
        await self._read_all()
        await self._load_missing(has)
        await self._seen()

    async def _let_go(self) -> None:
        """Unload adapters that requests can no longer name. Raises `AdaptersUnknown` if the engine
        does not answer.
        """
        if surplus := self._book.surplus():
            await asyncio.sleep(ON_THEIR_WAY_S)
            for one in surplus:
                if one in self._book.surplus():
                    await self._unload(one)

    # -- one step -----------------------------------------------------------------------

    async def _look(self) -> dict[EngineAdapter, Path]:
        """Adapters that the engine has loaded from our copies, each with the folder that it was
        copied from, or that of the copy if that is not known. Raises `AdaptersUnknown` if the
        engine does not answer.
        """
        before, listed = self._book.has or {}, await self._routes.listed()
        return {
            one: before.get(one, Path(folder))
            for known_as, folder in listed.items()
            if (one := parsed(known_as)) and folder == str(self._copies.at(one.digest))
        }

    async def _read_all(self) -> None:
        """Copy the declared adapters that have no copy yet, and note their digests."""
        book = self._book
        for name, folder in list(book.declared.items()):
            known = name in book.digests and self._copies.at(book.digests[name]).is_dir()
            if known or name in book.failed:
                continue
            try:
                digest = await asyncio.to_thread(self._copies.take, folder)
            except (OSError, ValueError) as error:
                self._fails(name, folder, one_line(str(error)))
                continue
            if book.declared.get(name) == folder:
                book.digests[name] = digest

    async def _load_missing(self, has: dict[EngineAdapter, Path]) -> None:
        """Load the declared adapters that the engine lacks, and add them to `has`, the adapters in
        the engine.

        Raises `AdaptersUnknown` if the engine does not answer.
        """
        book = self._book
        for one in book.missing():
            if one.name in book.failed or book.digests.get(one.name) != one.digest:
                continue
            folder = book.declared[one.name]
            reason = await self._routes.load(one.known_as, self._copies.at(one.digest))
            if reason:
                self._fails(one.name, folder, reason)
            else:
                has[one] = folder
                book.loads += 1
                self._say(f"adapter {one.name!r} loaded from {folder}")

    async def _unload(self, one: EngineAdapter) -> None:
        """Ask the engine to unload an adapter, which no longer counts as loaded, even if the engine
        refuses. Raises `AdaptersUnknown` if the engine does not answer.
        """
        reason = await self._routes.unload(one.known_as)
        if self._book.has is not None:
            self._book.has.pop(one, None)
        stays = f"adapter {one.known_as!r} stays in its engine: {reason}"
        self._say(stays if reason else f"adapter {one.name!r} let go")

    def _fails(self, name: str, folder: Path, reason: str) -> None:
        if self._book.declared.get(name) == folder:
            self._book.fails(name, reason)
            self._say(f"adapter {name!r} is not loaded: {reason}")
