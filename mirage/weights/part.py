"""A content while it comes: right chunks at their places, and a mark for each of them.

A mark is written behind its chunk, so a process may end at any point. After a crash of the machine
a mark may stand for a chunk that is not there; so the whole is hashed before it gets its name.
"""

from __future__ import annotations

import hashlib
import os
import threading
from contextlib import suppress

from mirage.weights.changes import sync_folder
from mirage.weights.checking import wrong_chunks
from mirage.weights.manifest import ContentFile, WeightsManifest
from mirage.weights.problems import WeightsRefused
from mirage.weights.store import MARK, WeightStore, marks_of, part_of


class PartFile:
    """A content that is being brought by this process, which holds `StoreChanges.bringing`."""

    def __init__(self, store: WeightStore, manifest: WeightsManifest, file: ContentFile) -> None:
        self.file, self._manifest = file, manifest
        self._content = store.content(file.sha256)
        self._data = os.open(part_of(self._content), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._marks = os.open(marks_of(self._content), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.ftruncate(self._data, file.size)
        os.ftruncate(self._marks, len(file.chunks))
        marks = os.pread(self._marks, len(file.chunks), 0)
        self.missing = {n for n, mark in enumerate(marks) if mark != MARK[0]}
        """Numbers of chunks that have not come."""
        self._using = threading.Lock()
        """Held by the thread that uses the descriptors: none is closed under it."""
        self._closed = False

    def write(self, chunk: int, data: bytes) -> bool:
        """Keep a chunk; False if it is not the right one, or too late. Raises `OSError`."""
        if hashlib.sha256(data).hexdigest() != self.file.chunks[chunk]:
            return False
        at, view = chunk * self._manifest.chunk_bytes, memoryview(data)
        with self._using:
            if self._closed:
                return False
            while view:
                written = os.pwrite(self._data, view, at)
                at, view = at + written, view[written:]
            os.pwrite(self._marks, MARK, chunk)
        self.missing.discard(chunk)
        return True

    def finish(self) -> bool:
        """Give the content its name; False if marked chunks were wrong and have to come again.

        Raises `WeightsRefused` if a manifest contradicts itself, and `OSError`.
        """
        with self._using:
            return self._finish()

    def close(self) -> None:
        """Leave it as far as it is."""
        with self._using:
            if not self._closed:
                os.close(self._data)
                os.close(self._marks)
            self._closed = True

    def _finish(self) -> bool:
        wrong = wrong_chunks(part_of(self._content), self._manifest, self.file)
        if wrong:
            for chunk in wrong:
                os.pwrite(self._marks, b"\0", chunk)
            self.missing = set(wrong)
            return False
        if wrong is not None:
            raise WeightsRefused(f"{self._manifest.id}: its chunks are not its {self.file.path}")
        os.fsync(self._data)
        part_of(self._content).replace(self._content)
        sync_folder(self._content.parent)
        with suppress(FileNotFoundError):
            marks_of(self._content).unlink()
        return True
