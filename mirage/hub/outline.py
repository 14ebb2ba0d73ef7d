"""A folder with a model's files before its weights are fetched: weight files have headers and
holes.

vLLM reads no more of a model until an engine loads it, so it can be asked for the model's sizes
before anything large is fetched.
"""

from __future__ import annotations

import struct
from pathlib import Path

from mirage.fetching import UNREACHABLE, opened
from mirage.hub.commit import HubCommit
from mirage.hub.fetched import HubModel
from mirage.hub.listing import HubFile, HubUnreachable, failure
from mirage.hub.place import HubRefused
from mirage.units import MIB

LENGTH = struct.Struct("<Q")
"""Length of the header, in the first bytes of a safetensors file."""
FIRST = 128 * 1024
"""Bytes that are fetched first; most headers are shorter."""
MOST = 100 * MIB
"""Most bytes of a header, the limit of the safetensors library."""


def outline(model: HubModel, place: Path) -> Path:
    """Make a folder under `place` that outlines a model, and return it. If no file is missing, only
    the model's folder in the cache is returned.

    Raises `HubRefused` and `HubUnreachable` if a header cannot be fetched, and `OSError` if `place`
    cannot be written.
    """
    commit = model.commit
    if not model.missing:
        return commit.folder
    folder = place / commit.name.repository.replace("/", "--") / commit.id
    for file in (*model.said, *model.weights):
        path = folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        if file not in model.missing:
            path.symlink_to(commit.folder / file.path)
            continue
        with path.open("wb") as hollow:
            hollow.write(_header(commit, file))
            hollow.truncate(file.size)
    return folder


def _header(commit: HubCommit, file: HubFile) -> bytes:
    """The beginning of a safetensors file: everything before its first tensor."""
    first = _begin(commit, file, min(FIRST, file.size)) if file.size else b""
    length = LENGTH.unpack(first[: LENGTH.size])[0] if len(first) >= LENGTH.size else MOST
    end = LENGTH.size + length
    if length >= MOST or end > file.size:
        raise HubRefused(f"{commit.name}: {file.path} is no whole safetensors file")
    return first[:end] if end <= len(first) else _begin(commit, file, end)


def _begin(commit: HubCommit, file: HubFile, count: int) -> bytes:
    """The first `count` bytes of a file. No more is read from a hub that ignores ranges."""
    hub = commit.hub
    try:
        asked = {**hub.headers, "Range": f"bytes=0-{count - 1}"}
        with opened(commit.url(file), asked, hub.timeout_s) as response:
            read: bytes = response.read(count)
            return read
    except UNREACHABLE as error:
        why = failure(commit.name, hub, error)
        if isinstance(why, HubRefused):
            raise why from None
        raise HubUnreachable(f"{commit.name}: {why}") from None
