"""A model brought into the cache: configuration and tokenizer first, then the weights.

So a commit whose weights are complete is complete, also for a server that later finds no hub.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from mirage.config import ConfigError
from mirage.folder import reading, weights
from mirage.folder.model_config import NAME, read_config
from mirage.hub import wanted
from mirage.hub.cache import CachedModel
from mirage.hub.commit import HubCommit
from mirage.hub.listing import HubFile, HubUnreachable, listing
from mirage.hub.place import HubPlace, HubRefused
from mirage.hub.shown import bar
from mirage.hub_name import HubName
from mirage.units import size

Say = Callable[[str], None]


class HubModel(NamedTuple):
    """A model at the hub. The files of it that are used, `said` and `weights`, are in the cache,
    except those in `missing`."""

    commit: HubCommit
    said: tuple[HubFile, ...]
    weights: tuple[HubFile, ...]
    missing: tuple[HubFile, ...]
    """Files of weights that must still be fetched."""

    @property
    def bytes(self) -> int:
        """Bytes that must still be fetched."""
        return sum(file.size for file in self.missing)


def found(name: HubName, hub: HubPlace, *, code: bool) -> HubModel:
    """Find a model at the hub and fetch the files that are read before its weights: configuration,
    tokenizer, templates and, if `code` is True, its Python code.

    Raises `HubRefused` for reasons that the user can remove, `HubUnreachable` if the hub does not
    answer about the model, and `CommandFailed` if a file does not come.
    """
    told = listing(name, hub)
    commit = HubCommit(name, hub, CachedModel(hub.cache, name.repository), told.commit)
    said = wanted.said(told.files, code=code)
    if NAME not in {file.path for file in said}:
        raise HubRefused(f"{name}: it has no {NAME}: name a model in transformers' form")
    commit.bring(said, lambda done: None)
    try:
        chosen = wanted.weights(told.files, _indexed(commit.folder, said))
    except ValueError as error:
        raise HubRefused(f"{name}: {error}") from None
    missing = (file for file in chosen if not commit.has(file))
    return HubModel(commit, tuple(said), tuple(chosen), tuple(missing))


def fetch_weights(model: HubModel, say: Say) -> Path:
    """Fetch the missing weights of a model, and record the commit of its revision in the cache;
    return its folder.

    Raises `HubRefused` for reasons that the user can remove, else `CommandFailed`.
    """
    commit = model.commit
    if model.missing:
        commit.check_room(model.missing)
        say(f"{commit.name}: fetching {size(model.bytes)} into {commit.hub.cache}")
        with bar(str(commit.name), model.bytes) as show:
            commit.bring(model.missing, show)
    with suppress(OSError):  # a cache that is read alone serves as well
        if commit.cached.commit(commit.name.revision) != commit.id:
            commit.cached.note(commit.name.revision, commit.id)
    return commit.folder


def in_cache(name: HubName, hub: HubPlace, why: str) -> Path:
    """Folder of a model that was fetched earlier. Raises `HubRefused` if the cache lacks it or has
    only a part; the message contains `why`, the reason why the model does not come from the hub.
    """
    cached = CachedModel(hub.cache, name.repository)
    if (commit := cached.commit(name.revision)) is None:
        raise HubRefused(
            f"{name}: {why}, and it is neither in the cache ({hub.cache}) nor a folder"
        )
    folder = cached.snapshot(commit)
    try:
        read_config(folder)
        whole = bool(weights.files(folder))
        weights.check_weights(folder)
    except ConfigError as error:
        raise HubRefused(f"{name}: {why}, and only a part is in the cache ({error})") from None
    if not whole:
        raise HubRefused(f"{name}: {why}, and no *.safetensors of it is in the cache ({folder})")
    return folder


def folder(name: HubName, hub: HubPlace, say: Say, *, code: bool) -> Path:
    """Folder of a model: fetched from the hub, or taken from the cache if the hub does not answer.
    Its own Python code is only fetched with `code`. Raises `HubRefused` for reasons that the user
    can remove, else `CommandFailed`."""
    try:
        model = found(name, hub, code=code)
    except HubUnreachable as error:
        cached = in_cache(name, hub, str(error))
        if not hub.offline:
            say(f"{name}: commit {cached.name} from the cache, since {error}")
        return cached
    return fetch_weights(model, say)


def _indexed(folder: Path, said: Iterable[HubFile]) -> set[str] | None:
    """Names of files in the index of the weights; None if there is no index."""
    if weights.INDEX not in {file.path for file in said}:
        return None
    return set(reading.read(folder / weights.INDEX, weights.ShardIndex).weight_map.values())
