"""A model in huggingface_hub's cache, with its layout: ``refs``, ``blobs``, ``snapshots``."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from mirage.hub.listing import HubFile
from mirage.hub_name import is_commit


class CachedModel:
    """One repository under `cache`. Methods raise `OSError` if the cache cannot be read or
    written.
    """

    def __init__(self, cache: Path, repository: str) -> None:
        self.folder = cache / "--".join(("models", *repository.split("/")))

    def snapshot(self, commit: str) -> Path:
        """Folder of a commit's files."""
        return self.folder / "snapshots" / commit

    def blob(self, file: HubFile) -> Path:
        """Path of a file's content in the cache."""
        return self.folder / "blobs" / file.etag

    def commit(self, revision: str) -> str | None:
        """Commit that `revision` named when it was last fetched; None if it never was.

        A `revision` that is a commit itself is returned if the cache has its folder.
        """
        if is_commit(revision):
            return revision if self.snapshot(revision).is_dir() else None
        with suppress(OSError, UnicodeDecodeError):
            commit = (self.folder / "refs" / revision).read_text().strip()
            return commit if is_commit(commit) else None
        return None

    def has(self, commit: str, file: HubFile) -> bool:
        """True if a commit's folder has the file in its full size."""
        return _has(self.snapshot(commit) / file.path, file.size)

    def holds(self, file: HubFile) -> bool:
        """True if the cache has the file's content in its full size."""
        return _has(self.blob(file), file.size)

    def link(self, commit: str, file: HubFile) -> None:
        """Link the content of a file into the folder of a commit."""
        place = self.snapshot(commit) / file.path
        place.parent.mkdir(parents=True, exist_ok=True)
        unfinished = place.with_name(f".{place.name}.{os.getpid()}")
        unfinished.unlink(missing_ok=True)
        unfinished.symlink_to(os.path.relpath(self.blob(file), place.parent))
        unfinished.replace(place)

    def note(self, revision: str, commit: str) -> None:
        """Record that `revision` names `commit`; nothing happens if it is a commit itself."""
        if is_commit(revision):
            return
        place = self.folder / "refs" / revision
        place.parent.mkdir(parents=True, exist_ok=True)
        unfinished = place.with_name(f"{place.name}.{os.getpid()}.tmp")
        unfinished.write_text(commit)
        unfinished.replace(place)


def _has(path: Path, nbytes: int) -> bool:
    try:
        return path.stat().st_size == nbytes
    except OSError:
        return False
