"""A content while it is being brought: its chunks at their places, and a mark for each right chunk.

A mark is written after its chunk, so a process may end at any point. After a crash of the machine a
mark may exist without its chunk, so the whole content is hashed before it gets its name. Files are
open only during use, since a model may have more files than a process may open.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mirage.weights.changes import sync_folder
from mirage.weights.checking import wrong_chunks
from mirage.weights.manifest import ContentFile, WeightsManifest
from mirage.weights.problems import WeightsRefused
from mirage.weights.store import MARK, WeightStore, marks_of, part_of


class PartFile:
    """A content that this process brings, while it holds `StoreChanges.bringing`."""

    def __init__(self, store: WeightStore, manifest: WeightsManifest, file: ContentFile) -> None:
        self.file, self._manifest = file, manifest
        self._content = store.content(file.sha256)
        self._part, self._marks = part_of(self._content), marks_of(self._content)
        with _opened(self._part, os.O_CREAT) as data:
            os.ftruncate(data, file.size)
        with _opened(self._marks, os.O_CREAT) as marks:
            os.ftruncate(marks, len(file.chunks))
            there = os.pread(marks, len(file.chunks), 0)
        self.missing = {n for n, mark in enumerate(there) if mark != MARK[0]}
        """Numbers of the chunks that have not arrived."""

    def write(self, chunk: int, data: bytes) -> bool:
        """Write a chunk; False if its hash is wrong. Raises `OSError` if the chunk cannot be
        written.

        If the content is complete already, the chunk is not written.
        """
        if hashlib.sha256(data).hexdigest() != self.file.chunks[chunk]:
            return False
        at, view = chunk * self._manifest.chunk_bytes, memoryview(data)
        with suppress(FileNotFoundError):
            with _opened(self._part) as part:
                while view:
                    written = os.pwrite(part, view, at)
                    at, view = at + written, view[written:]
            with _opened(self._marks) as marks:
                os.pwrite(marks, MARK, chunk)
            self.missing.discard(chunk)
        return True

    def finish(self) -> bool:
        """Check the received content and give it its final name. False if chunks that were marked
        as received are wrong and must be fetched again.

        Raises `WeightsRefused` if the manifest contradicts itself, and `OSError` if a file cannot
        be read, written or renamed.
        """
        wrong = wrong_chunks(self._part, self._manifest, self.file)
        if wrong:
            with _opened(self._marks) as marks:
                for chunk in wrong:
                    os.pwrite(marks, b"\0", chunk)
            self.missing = set(wrong)
            return False
        if wrong is not None:
            raise WeightsRefused(f"{self._manifest.id}: its chunks are not its {self.file.path}")
        with _opened(self._part) as part:
            os.fsync(part)
        self._part.replace(self._content)
        sync_folder(self._content.parent)
        self._marks.unlink(missing_ok=True)
        return True


@contextmanager
def _opened(path: Path, flags: int = 0) -> Iterator[int]:
    handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o644)
    try:
        yield handle
    finally:
        os.close(handle)
