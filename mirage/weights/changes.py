"""Changes of a store. Each is made as a whole or not at all, whenever a process ends.

Short changes hold the file lock ``lock``. A process that brings a model also holds ``bringing`` all
the time, so models are brought one after the other. A content is removed only if no manifest names
it, so the manifest of a model that is being brought is written first.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from mirage.weights.manifest import WeightsManifest
from mirage.weights.problems import WeightsRefused
from mirage.weights.store import (
    FILES,
    FILLING,
    MANIFESTS,
    MODELS,
    NAMES,
    WeightStore,
    check_name,
    listed,
    marks_of,
    part_of,
)

LOCK, BRINGING, ADDING = "lock", "bringing", "add."


class StoreChanges:
    """Changes of one store. Its folders are made if missing, and remains of processes that have
    ended are removed. Raises `OSError` if the folders cannot be written.
    """

    def __init__(self, store: WeightStore) -> None:
        self.store, self._place = store, store.place
        for name in (FILES, MANIFESTS, NAMES, MODELS, FILLING):
            (self._place / name).mkdir(parents=True, exist_ok=True)
        with self._changing():
            for path in (self._place / FILLING).iterdir():
                _remove_if_left(path)

    @contextmanager
    def filling(self) -> Iterator[Path]:
        """A folder of this process for contents whose hash is not known yet; removed at the end."""
        folder = self._place / FILLING / f"{ADDING}{os.getpid()}"
        with self._changing():
            folder.mkdir()
            held = (folder / LOCK).open("wb")
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            yield folder
        finally:
            shutil.rmtree(folder)
            held.close()

    def bringing(self) -> IO[bytes] | None:
        """Take the lock for bringing a model; it is held until the file is closed. None while
        another process has it.
        """
        file = (self._place / BRINGING).open("ab")
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        file.close()
        return None

    def take_in(self, manifest: WeightsManifest, filled: Mapping[str, Path], name: str) -> Path:
        """Add a new model whose contents are at the paths in `filled`; return its folder."""
        check_name(name)
        with self._changing():
            for sha256, path in filled.items():
                path.replace(self.store.content(sha256))
            sync_folder(self._place / FILES)
            self._write(self._place / MANIFESTS / manifest.id, manifest.encoded)
            folder = self._complete(manifest)
            self._write(self._place / NAMES / name, manifest.id.encode())
            return folder

    def expect(self, manifest: WeightsManifest, name: str | None = None) -> None:
        """Write the manifest of a model that will come, so that its contents are not removed
        meanwhile.

        If a `name` is given, the model can be found by it from now on.
        """
        with self._changing():
            self._write(self._place / MANIFESTS / manifest.id, manifest.encoded)
        if name is not None:
            self.name(name, manifest.id)

    def name(self, name: str, model: str) -> None:
        """Give a model a name. Raises `WeightsRefused` if it is no valid name."""
        check_name(name)
        with self._changing():
            self._write(self._place / NAMES / name, model.encode())

    def complete(self, manifest: WeightsManifest) -> Path:
        """Complete a model whose contents have come; return its folder. Raises `WeightsRefused` if
        one is missing, or if the model was removed meanwhile.
        """
        with self._changing():
            return self._complete(manifest)

    def damaged(self, sha256: str, marks: bytes) -> None:
        """Mark a content as incomplete: chunks without a mark in `marks` must come again. Models
        with it are incomplete until then.
        """
        content = self.store.content(sha256)
        with self._changing():
            for model, manifest in self.store.readable().items():
                if sha256 in manifest.contents:
                    self._take_apart(model)
            marks_of(content).write_bytes(marks)
            with suppress(FileNotFoundError):
                content.rename(part_of(content))

    def remove(self, model: str) -> int:
        """Remove a model, its names, and contents that no other model has; return the bytes freed.

        Raises `WeightsRefused` for a model that is being brought.
        """
        held = self.bringing()
        try:
            if held is None and not self.store.is_whole(model):
                raise WeightsRefused(f"{model}: another process brings it: end that one first")
            with self._changing():
                for name in (name for name, one in self.store.names().items() if one == model):
                    (self._place / NAMES / name).unlink()
                self._take_apart(model)
                (self._place / MANIFESTS / model).unlink()
                return self._sweep()
        finally:
            if held is not None:
                held.close()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with (self._place / LOCK).open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _complete(self, manifest: WeightsManifest) -> Path:
        model = manifest.id
        folder = self.store.folder(model)
        if self.store.is_whole(model):
            return folder
        if not (self._place / MANIFESTS / model).exists():
            raise WeightsRefused(f"{model}: it was removed meanwhile: bring it again")
        made = self._place / FILLING / f"{model}.{os.getpid()}"
        for file in manifest.files:
            if not self.store.content(file.sha256).is_file():
                raise WeightsRefused(f"{model}: {file.path} is not there: bring it again")
            link = made / file.path
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(f"{'../' * (2 + file.path.count('/'))}{FILES}/{file.sha256}")
        made.rename(folder)
        sync_folder(folder.parent)
        return folder

    def _write(self, path: Path, data: bytes) -> None:
        made = self._place / FILLING / f"{path.name}.{os.getpid()}.new"
        with made.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        made.replace(path)
        sync_folder(path.parent)

    def _take_apart(self, model: str) -> None:
        """Remove the folder of a model. It is moved away first, so it disappears as a whole."""
        gone = self._place / FILLING / f"{model}.{os.getpid()}.gone"
        with suppress(FileNotFoundError):
            self.store.folder(model).rename(gone)
            shutil.rmtree(gone)

    def _sweep(self) -> int:
        """Remove contents that no model has; return the bytes freed.

        If a manifest cannot be read, nothing is removed, since it may name any content.
        """
        readable, freed = self.store.readable(), 0
        if len(readable) < len(self.store.ids()):
            return 0
        kept = {sha256 for manifest in readable.values() for sha256 in manifest.contents}
        for name in listed(self._place / FILES):
            if name.partition(".")[0] not in kept:
                path = self._place / FILES / name
                freed += path.stat().st_blocks * 512
                path.unlink()
        return freed


def sync_folder(folder: Path) -> None:
    """Write the entries of a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove_if_left(path: Path) -> None:
    """Remove an entry that a process has left behind. An addition that is under way holds its own
    lock and stays.
    """
    if path.name.startswith(ADDING):
        with suppress(BlockingIOError), (path / LOCK).open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path)
    elif path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
