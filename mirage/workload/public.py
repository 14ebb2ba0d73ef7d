"""Public traces: their description (`traces/public.yaml`), and the folder for fetched ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from mirage.config import Count, Strict, read_yaml, validated
from mirage.paths import cache_folder
from mirage.workload.formats.request import TraceError
from traces import PUBLIC


class PublicFile(Strict):
    """One public file: its addresses, and its checksum."""

    file: str = Field(pattern=r"^[\w.-]+$")
    urls: list[Annotated[str, Field(pattern="^https://")]] = Field(min_length=1)
    bytes: Count | None = None
    sha256: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")
    git: str | None = Field(default=None, pattern="^[0-9a-f]{40}$")
    """Id of its object in the owner's git repository: SHA-1 of a header and the file."""

    @model_validator(mode="after")
    def _can_be_told(self) -> PublicFile:
        if (self.sha256 is None) == (self.git is None):
            raise ValueError("write sha256 or git")
        return self

    @property
    def checksum(self) -> str:
        """Checksum of the file with its kind in front, as ``sha256:...``."""
        return f"sha256:{self.sha256}" if self.sha256 else f"git:{self.git}"


class Public(PublicFile):
    """A public trace: its files, format and terms."""

    about: str
    format: str
    checked: str
    """Source of the checksum."""
    licence: str
    cite: str
    beside: PublicFile | None = None
    """A further file that the trace's format needs in the same folder; None if it needs none."""

    @property
    def files(self) -> list[PublicFile]:
        """All files to fetch. The trace is last, so if it is there the other file is too."""
        return [self] if self.beside is None else [self.beside, self]


def folder() -> Path:
    """Folder of this user's fetched traces: ``mirage/traces`` in the cache folder.

    Raises `InputRefused` if this user has no cache folder.
    """
    return cache_folder() / "mirage" / "traces"


def cached(name: str) -> Path:
    """Path of a fetched trace. Raises `TraceError` if it was not fetched."""
    path = folder() / TRACES[name].file
    if not path.is_file():
        raise TraceError(f"{name}: was not fetched yet ({path}): run `mirage traces fetch {name}`")
    return path


def named(name: str) -> Public:
    """The public trace of that name. Raises `TraceError` if there is none."""
    if name not in TRACES:
        raise TraceError(f"no public trace is named {name!r}: choose from {', '.join(TRACES)}")
    return TRACES[name]


def _read() -> dict[str, Public]:
    known = {str(name): validated(Public, raw, PUBLIC) for name, raw in read_yaml(PUBLIC).items()}
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in known)
    return known


TRACES = _read()
