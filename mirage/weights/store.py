"""The store of a machine: contents by their hashes, and models as folders of links to them.

    manifests/ID        each model that is here, or is being brought
    names/NAME          ID of the model that has that name
    files/HASH          a complete content; HASH.part and HASH.have while it is being brought
    models/ID/          links to contents; it exists once all of them are complete
    filling/            files and folders that are being made, before they get their names

This module only reads the store; `mirage.weights.changes` changes it.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from mirage.weights.manifest import ContentFile, ManifestRefused, WeightsManifest, decoded
from mirage.weights.problems import WeightsRefused

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
ID = re.compile(r"[0-9a-f]{64}")
SHORT_ID = re.compile(r"[0-9a-f]{8,64}")
FILES, MANIFESTS, NAMES, MODELS, FILLING = "files", "manifests", "names", "models", "filling"
MARK = b"\1"
"""Mark of a chunk that has arrived."""


class StoredModel(NamedTuple):
    """A model of a store, complete or not."""

    id: str
    names: tuple[str, ...]
    bytes: int
    """Bytes of its contents."""
    here: int
    """Bytes of its contents that have arrived."""
    whole: bool


class WeightStore:
    """The store in the folder `place`. Methods raise `OSError` if it cannot be read."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def content(self, sha256: str) -> Path:
        """Path of a complete content."""
        return self.place / FILES / sha256

    def folder(self, model: str) -> Path:
        """Folder of a model's links; it exists if the model is complete."""
        return self.place / MODELS / model

    def is_whole(self, model: str) -> bool:
        """True if all files of a model are there."""
        return self.folder(model).is_dir()

    def manifest(self, model: str) -> WeightsManifest:
        """Manifest of a model. Raises `WeightsRefused` if there is none, `ManifestRefused` if it is
        damaged.
        """
        try:
            return decoded((self.place / MANIFESTS / model).read_bytes(), model)
        except FileNotFoundError:
            raise WeightsRefused(f"{self.place} has no model {model}") from None

    def ids(self) -> list[str]:
        """Ids of all models, including those that are being brought."""
        return [name for name in listed(self.place / MANIFESTS) if ID.fullmatch(name)]

    def readable(self) -> dict[str, WeightsManifest]:
        """Manifests of all models by id, except damaged ones."""
        found = {}
        for model in self.ids():
            with suppress(WeightsRefused, ManifestRefused):
                found[model] = self.manifest(model)
        return found

    def names(self) -> dict[str, str]:
        """Ids of models by name."""
        found = ((name, self._named(name)) for name in listed(self.place / NAMES))
        return {name: model for name, model in found if model is not None}

    def found(self, wanted: str) -> str | None:
        """Id of the model with the name, the id or the beginning of an id `wanted`; None if there
        is no such model. Raises `WeightsRefused` if several ids begin with it.
        """
        if (model := self._named(wanted)) is not None:
            return model
        fitting = [one for one in self.ids() if one.startswith(wanted)]
        if not SHORT_ID.fullmatch(wanted) or not fitting:
            return None
        if len(fitting) > 1:
            raise WeightsRefused(f"{wanted}: {len(fitting)} models begin so: write more of the id")
        return fitting[0]

    def models(self) -> list[StoredModel]:
        """All models with a readable manifest, sorted by name."""
        names = self.names()
        found = [self._model(*one, names) for one in self.readable().items()]
        return sorted(found, key=lambda one: (one.names or ("~",), one.id))

    def have(self, manifest: WeightsManifest) -> dict[str, list[int]]:
        """Numbers of the chunks that have arrived, by content."""
        return {
            sha256: [n for n, mark in enumerate(marks) if mark == MARK[0]]
            for sha256, file in manifest.contents.items()
            if (marks := self.marks(file))
        }

    def marks(self, file: ContentFile) -> bytes:
        """One byte for each chunk of a content, `MARK` if it has arrived; empty if the content is
        absent.

        A content whose file has the wrong size counts as absent.
        """
        content, chunks = self.content(file.sha256), len(file.chunks)
        with suppress(FileNotFoundError):
            return MARK * chunks if content.stat().st_size == file.size else b""
        with suppress(FileNotFoundError):
            return marks_of(content).read_bytes()[:chunks]
        return b""

    def _model(self, model: str, manifest: WeightsManifest, names: dict[str, str]) -> StoredModel:
        here = sum(
            end - begin
            for sha256, chunks in self.have(manifest).items()
            for begin, end in (manifest.span(manifest.contents[sha256], n) for n in chunks)
        )
        own = tuple(sorted(name for name, one in names.items() if one == model))
        return StoredModel(model, own, manifest.bytes, here, self.is_whole(model))

    def _named(self, name: str) -> str | None:
        if NAME.fullmatch(name):
            with suppress(OSError, UnicodeDecodeError):
                model = (self.place / NAMES / name).read_text()
                return model if ID.fullmatch(model) else None
        return None


def listed(folder: Path) -> list[str]:
    """Names of the entries of a folder, sorted; empty if there is no such folder."""
    with suppress(FileNotFoundError):
        return sorted(path.name for path in folder.iterdir())
    return []


def check_name(name: str) -> None:
    """Raises `WeightsRefused` for an invalid name, or one that could be taken for an id."""
    if not NAME.fullmatch(name) or SHORT_ID.fullmatch(name):
        raise WeightsRefused(
            f"{name!r} is no name of a model in a store: give one of letters, digits and . _ -, "
            "at most 96, that is no hash (--name)"
        )


def part_of(content: Path) -> Path:
    """Path of a content while it is incomplete."""
    return content.with_name(f"{content.name}.part")


def marks_of(content: Path) -> Path:
    """Path of the marks of an incomplete content."""
    return content.with_name(f"{content.name}.have")
