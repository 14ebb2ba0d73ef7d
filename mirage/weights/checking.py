"""Check of a store's contents: they are read again and compared with their hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mirage.weights.changes import StoreChanges
from mirage.weights.manifest import ContentFile, WeightsManifest
from mirage.weights.store import MARK


def wrong_chunks(
    path: Path,
    manifest: WeightsManifest,
    file: ContentFile,
    show: Callable[[int], None] = lambda done: None,
) -> list[int] | None:
    """Numbers of a content's wrong chunks; None if the content is right. `show` is called with the
    number of bytes that have been checked so far.

    Empty if each chunk is right but not the whole: then the content is too long, or the manifest
    contradicts itself.
    """
    whole, wrong, done = hashlib.sha256(), [], 0
    with path.open("rb") as content:
        for number, known in enumerate(file.chunks):
            begin, end = manifest.span(file, number)
            chunk = content.read(end - begin)
            whole.update(chunk)
            if hashlib.sha256(chunk).hexdigest() != known:
                wrong.append(number)
            done += len(chunk)
            show(done)
        longer = bool(content.read(1))
    right = not wrong and not longer and whole.hexdigest() == file.sha256
    return None if right else wrong


def verify(
    changes: StoreChanges, manifest: WeightsManifest, show: Callable[[int], None]
) -> list[str]:
    """Check a model's contents, and mark wrong or missing ones to be fetched again. Returns one
    line for each of these.

    `show` is called with the number of the model's bytes that have been checked so far. Raises
    `OSError` if a content cannot be read.
    """
    told, done = [], 0
    for sha256, file in manifest.contents.items():
        path = changes.store.content(sha256)
        count = len(file.chunks)
        wrong: list[int] | None = list(range(count))
        if path.exists():
            wrong = wrong_chunks(path, manifest, file, partial(_further, show, done))
        done += file.size
        if wrong is not None:
            marks = bytearray(MARK * count if wrong else bytes(count))
            for number in wrong:
                marks[number] = 0
            changes.damaged(sha256, bytes(marks))
            told.append(f"{file.path}: {len(wrong) or count} of {count} chunks are wrong")
    return told


def _further(show: Callable[[int], None], before: int, done: int) -> None:
    show(before + done)
