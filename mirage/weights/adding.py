"""Adding the folder of a model to the store of weights of this machine: its files are copied, and
hashed while they are copied.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

from mirage.weights.changes import StoreChanges
from mirage.weights.manifest import CHUNK_BYTES, ContentFile, WeightsManifest, manifest_of
from mirage.weights.problems import WeightsRefused, check_room, writing

Show = Callable[[int], None]
"""Callback with the number of bytes that are done."""


class FolderFound(NamedTuple):
    """Files that make up a model: all files of a folder except hidden ones."""

    folder: Path
    paths: tuple[Path, ...]
    bytes: int


def looked_at(folder: Path) -> FolderFound:
    """Files of a model's folder.

    Raises `WeightsRefused` without ``config.json``, or if an entry that is not hidden is neither a
    file nor a folder, such as a link to a folder.
    """
    if not (folder / "config.json").is_file():
        raise WeightsRefused(f"{folder}: it has no config.json: name the folder of a model")
    paths = tuple(sorted(_files(folder)))
    return FolderFound(folder, paths, sum(path.stat().st_size for path in paths))


def add(
    changes: StoreChanges,
    found: FolderFound,
    name: str,
    show: Show,
    chunk_bytes: int = CHUNK_BYTES,
) -> WeightsManifest:
    """Copy a folder's files into the store, hashed in chunks of `chunk_bytes`, and name the model
    `name`; return its manifest. Raises `WeightsRefused` for an invalid name or without room on the
    disk, `ManifestRefused` for files that no manifest can list, and `WeightsFailed` for other
    errors of the disk.
    """
    place = changes.store.place
    with writing(place, str(found.folder)), changes.filling() as folder:
        check_room(place, found.bytes, str(found.folder))
        files, filled, done = list[ContentFile](), {}, 0
        for number, path in enumerate(found.paths):
            with path.open("rb") as file, (folder / str(number)).open("xb") as into:
                relative = str(path.relative_to(found.folder))
                one = _copied(file, into, relative, chunk_bytes, partial(_further, show, done))
            done += one.size
            files.append(one)
            filled[one.sha256] = folder / str(number)
        manifest = manifest_of(files, chunk_bytes)
        changes.take_in(manifest, filled, name)
        return manifest


def _copied(
    file: IO[bytes], into: IO[bytes], path: str, chunk_bytes: int, show: Show
) -> ContentFile:
    whole, chunks, size = hashlib.sha256(), [], 0
    while chunk := file.read(chunk_bytes):
        whole.update(chunk)
        chunks.append(hashlib.sha256(chunk).hexdigest())
        into.write(chunk)
        size += len(chunk)
        show(size)
    into.flush()
    os.fsync(into.fileno())
    return ContentFile(path, size, whole.hexdigest(), tuple(chunks))


def _further(show: Show, before: int, done: int) -> None:
    show(before + done)


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _files(path)
        elif path.is_file():
            yield path
        else:
            what = "a link to a folder, or to nothing" if path.is_symlink() else "no file"
            raise WeightsRefused(f"{path}: it is {what}: remove it, or name another folder")
