"""Manifest of a model's folder: its files, with the hash of each file and of each of its chunks.
Pure.

The hash of a manifest is the model's content id. With the id one can verify a manifest, and with
the manifest each chunk of each file, from any sender.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec

from mirage.errors import InputRefused
from mirage.problems import one_line
from mirage.units import MIB, ceil_div

CHUNK_BYTES = 16 * MIB
"""Bytes of a chunk; the last one of a file may be shorter."""
MOST_CHUNK_BYTES = 64 * MIB
"""Most bytes of a chunk: one chunk from each source is held in memory until its hash is checked."""
MOST_FILES, MOST_BYTES, MOST_CHUNKS = 10_000, 2**50, 2**17
MOST_MANIFEST = 64 * MIB
"""Most bytes of a manifest."""
LONGEST_PART, MOST_PARTS = 255, 8

Sha256 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class ManifestRefused(InputRefused):
    """Error: a manifest is invalid; the message is one line."""


class ContentFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a model, with the hash of its content."""

    path: str
    """Path relative to the model's folder."""
    size: Annotated[int, msgspec.Meta(ge=0, le=MOST_BYTES)]
    sha256: Sha256
    chunks: tuple[Sha256, ...]
    """Hash of each chunk, in order."""


class WeightsManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All files of a model, sorted by path."""

    version: Literal[1]
    chunk_bytes: Annotated[int, msgspec.Meta(gt=0, le=MOST_CHUNK_BYTES)]
    files: Annotated[tuple[ContentFile, ...], msgspec.Meta(min_length=1, max_length=MOST_FILES)]

    @property
    def id(self) -> str:
        """Content id of the model: the manifest's hash."""
        return hashlib.sha256(self.encoded).hexdigest()

    @property
    def encoded(self) -> bytes:
        """The manifest as JSON, the form in which it is stored and sent."""
        return msgspec.json.encode(self)

    @property
    def contents(self) -> dict[str, ContentFile]:
        """One file for each distinct content, by the content's hash."""
        return {file.sha256: file for file in self.files}

    @property
    def bytes(self) -> int:
        """Bytes of all distinct contents."""
        return sum(file.size for file in self.contents.values())

    def span(self, file: ContentFile, chunk: int) -> tuple[int, int]:
        """Begin and end of a chunk in its file, in bytes."""
        begin = chunk * self.chunk_bytes
        return begin, min(begin + self.chunk_bytes, file.size)


def manifest_of(files: Iterable[ContentFile], chunk_bytes: int = CHUNK_BYTES) -> WeightsManifest:
    """Manifest of a model's files, whose hashes are of chunks of `chunk_bytes`. Raises
    `ManifestRefused` for a path that no model's file may have, for one hash with two contents, and
    for too many chunks."""
    manifest = WeightsManifest(1, chunk_bytes, tuple(sorted(files, key=lambda file: file.path)))
    _check(manifest)
    return manifest


def decoded(data: bytes, wanted: str) -> WeightsManifest:
    """Decode the manifest with the id `wanted`. Raises `ManifestRefused` if it has another id or is
    invalid.
    """
    try:
        manifest = msgspec.json.decode(data, type=WeightsManifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ManifestRefused(f"{wanted}: no manifest ({one_line(str(error))})") from None
    if manifest.id != wanted:
        raise ManifestRefused(
            f"{wanted}: the manifest that came is {manifest.id}: ask another source"
        )
    _check(manifest)
    return manifest


def _check(manifest: WeightsManifest) -> None:
    paths = [file.path for file in manifest.files]
    if odd := [path for path in paths if not _is_path(path)]:
        raise ManifestRefused(f"{one_line(odd[0])!r} is no path of a model's file: rename it")
    if paths != sorted(set(paths)):
        raise ManifestRefused("files are not in the order of their paths, or one is there twice")
    folders = {path[:end] for path in paths for end, c in enumerate(path) if c == "/"}
    if both := folders & set(paths):
        raise ManifestRefused(f"{min(both)!r} is a file and a folder: rename one")
    contents = manifest.contents
    if (chunks := sum(len(file.chunks) for file in contents.values())) > MOST_CHUNKS:
        raise ManifestRefused(f"{chunks:,} chunks, at most {MOST_CHUNKS:,}: make them larger")
    for file in manifest.files:
        if len(file.chunks) != ceil_div(file.size, manifest.chunk_bytes):
            raise ManifestRefused(f"{file.path}: {len(file.chunks)} chunks are not its size")
        same = contents[file.sha256]
        if (file.size, file.chunks) != (same.size, same.chunks):
            raise ManifestRefused(f"{file.path} and {same.path}: one hash, and two contents")


def _is_path(path: str) -> bool:
    """True for a relative path whose parts are printable, not hidden, and not too many or too
    long.
    """
    parts = path.split("/")
    return len(parts) <= MOST_PARTS and all(
        part and part[0] != "." and part.isprintable() and len(part.encode()) <= LONGEST_PART
        for part in parts
    )
