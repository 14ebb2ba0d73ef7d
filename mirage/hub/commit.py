"""One commit of a model: its files are fetched into the cache, each completely or not at all."""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from mirage.errors import CommandFailed
from mirage.fetching import Progress, UnreachableError, WantedFile, fetch
from mirage.hub.cache import CachedModel
from mirage.hub.listing import HubFile, failure
from mirage.hub.place import HubPlace, HubRefused
from mirage.hub_name import HubName
from mirage.units import sizes

TRIES = 5
"""Attempts in a row to continue a file without receiving any byte."""
FULL = (errno.ENOSPC, errno.EDQUOT)
ROOM = "make room there, or let HF_HOME name another folder"


class HubCommit(NamedTuple):
    """The commit that `name` referred to when the hub was asked."""

    name: HubName
    hub: HubPlace
    cached: CachedModel
    id: str

    @property
    def folder(self) -> Path:
        """Folder of its files, which may not exist yet."""
        return self.cached.snapshot(self.id)

    def has(self, file: HubFile) -> bool:
        """True if the commit's folder in the cache has the file in its full size."""
        return self.cached.has(self.id, file)

    def url(self, file: HubFile) -> str:
        """Address of a file at the hub."""
        return self.hub.file(self.name.repository, self.id, file.path)

    def bring(self, files: Sequence[HubFile], show: Callable[[int], None]) -> None:
        """Fetch those of `files` that the cache lacks; `show` is called with the number of bytes of
        `files` that are there so far.

        Raises `HubRefused` for reasons that the user can remove, else `CommandFailed`.
        """
        done = 0
        with self._writing():
            for file in files:

                def told(have: int, total: int | None, before: int = done) -> None:
                    show(before + have)

                self._bring(file, told)
                done += file.size

    def check_room(self, files: Sequence[HubFile]) -> None:
        """Raises `HubRefused` if the cache's disk has no room for the bytes of `files` that it
        lacks. Another commit may have brought the content of a file.
        """
        with self._writing():
            free = shutil.disk_usage(self.cached.folder).free
        lacking = [file for file in files if not self.cached.holds(file)]
        needed = sum(file.size - _bytes(_part(self.cached.blob(file))) for file in lacking)
        if needed > free:
            wanted, there = sizes(needed, free)
            raise HubRefused(
                f"{self.name}: {wanted} are to be fetched, the disk of {self.hub.cache} has "
                f"{there} left: {ROOM}"
            )

    def _bring(self, file: HubFile, told: Progress) -> None:
        if self.has(file):
            return
        if not self.cached.holds(file):
            self._fetch(file, told)
        self.cached.link(self.id, file)

    def _fetch(self, file: HubFile, told: Progress) -> None:
        """Fetch the content of a file; continue it when a connection breaks."""
        path, hub = self.cached.blob(file), self.hub
        wanted = WantedFile(f"{self.name}: {file.path}", file.checksum, file.size)
        tries = TRIES
        while True:
            before = _bytes(_part(path))
            try:
                return fetch(wanted, path, [self.url(file)], told, hub.timeout_s, hub.headers)
            except UnreachableError as error:
                why = failure(self.name, hub, error.__cause__ or error)
                if isinstance(why, HubRefused):
                    raise why from None
                tries = TRIES if _bytes(_part(path)) > before else tries - 1
                if not tries:
                    raise CommandFailed(
                        f"{wanted.name}: {why}: run it again once the hub answers, what has come "
                        "is kept"
                    ) from None
            time.sleep(hub.pause_s)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn an `OSError` inside into `HubRefused` with one line about the cache."""
        try:
            yield
        except OSError as error:
            what = ROOM if error.errno in FULL else "let HF_HOME name one that this user may write"
            raise HubRefused(
                f"{self.name}: the cache {self.hub.cache} cannot be written ({error.strerror}): "
                f"{what}"
            ) from None


def _part(path: Path) -> Path:
    """Path of a file's beginning while it is being fetched."""
    return path.with_name(f"{path.name}.part")


def _bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
