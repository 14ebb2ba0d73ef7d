"""The commit and the files of a revision, as listed by the hub."""

from __future__ import annotations

import urllib.error
from typing import Annotated, NamedTuple

import msgspec

from mirage.errors import CommandFailed
from mirage.fetching import UNREACHABLE, opened, reason
from mirage.hub.place import HubPlace, HubRefused
from mirage.hub.said import KIND, refusal
from mirage.hub_name import HubName
from mirage.problems import one_line
from mirage.units import MIB

MOST_BYTES = 64 * MIB
"""Most bytes of a listing that are read."""
FAULT = 500
"""Smallest HTTP status that means a fault of the hub."""

Sha1 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{40}$")]
Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
Length = Annotated[int, msgspec.Meta(ge=0)]


class HubUnreachable(CommandFailed):
    """Error: the hub gives no answer, or one that tells a fault of its own, or may not be asked
    (``HF_HUB_OFFLINE``); the message says why."""


class LargeFile(msgspec.Struct):
    """Content of a file that the hub keeps outside the repository, under its hash."""

    sha256: Sha256
    size: Length


class ListedFile(msgspec.Struct):
    """A file in the hub's answer."""

    rfilename: str
    blobId: Sha1
    size: Length
    lfs: LargeFile | None = None


class ListedRevision(msgspec.Struct):
    """The hub's answer about a revision; only the fields that are used."""

    sha: Sha1
    siblings: list[ListedFile] = []


class HubFile(NamedTuple):
    """A file of a model at the hub, with its checksum and its name in the cache."""

    path: str
    size: int
    etag: str
    """Name of its content in the cache."""
    checksum: str
    """Checksum with its kind in front, as `WantedFile.checksum` has it."""


class HubListing(NamedTuple):
    """Commit and files of a revision."""

    commit: str
    files: tuple[HubFile, ...]


def listing(name: HubName, hub: HubPlace) -> HubListing:
    """Ask the hub for the commit and the files of a revision. Raises `HubRefused` for reasons that
    the user can remove, else `HubUnreachable`.
    """
    if hub.offline:
        raise HubUnreachable("HF_HUB_OFFLINE is set")
    try:
        with opened(hub.listing(name), hub.headers, hub.timeout_s) as response:
            text = response.read(MOST_BYTES)
    except UNREACHABLE as error:
        raise failure(name, hub, error) from None
    try:
        return _listing(msgspec.json.decode(text, type=ListedRevision))
    except msgspec.DecodeError as error:
        raise HubRefused(
            f"{name}: {hub.endpoint} does not answer as a hub does ({one_line(str(error))}): "
            "correct HF_ENDPOINT"
        ) from None


def failure(name: HubName, hub: HubPlace, error: BaseException) -> HubRefused | HubUnreachable:
    """Error to raise for one of `UNREACHABLE`, which occurred for the model `name`."""
    if isinstance(error, urllib.error.HTTPError) and error.code < FAULT:
        page = hub.page(name.repository)
        kind = error.headers.get(KIND, "")
        if why := refusal(error.code, kind, page, token=hub.token is not None):
            return HubRefused(f"{name}: {why}")
    return HubUnreachable(f"{hub.endpoint} does not give it ({one_line(reason(error))})")


def _listing(told: ListedRevision) -> HubListing:
    return HubListing(told.sha, tuple(map(_file, told.siblings)))


def _file(told: ListedFile) -> HubFile:
    if (large := told.lfs) is not None:
        return HubFile(told.rfilename, large.size, large.sha256, f"sha256:{large.sha256}")
    return HubFile(told.rfilename, told.size, told.blobId, f"git:{told.blobId}")
