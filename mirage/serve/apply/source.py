"""Configuration of a server: its file, and the command line's options that override it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from mirage.config import (
    Config,
    ConfigError,
    DeviceSection,
    Policy,
    TiersSection,
    current,
    made,
    parsed,
    read_text,
)
from mirage.hub.fetched import Say
from mirage.serve.adapting import adapters
from mirage.serve.models.hubs import HubFolders


@dataclass(frozen=True)
class Written:
    """Configuration as the user wrote it, in the newest version's keys, and its place."""

    raw: dict[Any, Any]
    path: Path
    """Name of the file in messages."""
    folder: Path
    """Absolute folder that paths in the configuration are relative to."""
    sha256: str = ""
    """Hash of the file's text; empty if the configuration was not read from a file."""


def has_devices(raw: Mapping[Any, Any]) -> bool:
    """True if a configuration has the key `devices`."""
    return "devices" in raw


@dataclass(frozen=True)
class ConfigSource:
    """Configuration file of a server, and options that override it.

    None as an option keeps the file's value. `tiers` or `tls` as False leaves that section out.
    """

    path: Path
    """Configuration file; for a proposal, the words of the command line that it was made for."""
    policy: Policy | None = None
    memory: str | None = None
    tiers: bool = True
    lease_s: float | None = None
    tls: bool = True
    proposed: Written | None = None
    """Proposed configuration, which is used instead of a file; else None."""
    folders: HubFolders = field(default_factory=HubFolders)

    def written(self) -> Written:
        """Configuration as the file has it now, or the proposed one. Raises `ConfigError` if the
        file cannot be read or parsed."""
        if self.proposed is not None:
            return self.proposed
        return written(read_text(self.path), self.path, self.path.parent.absolute())

    def fetch(self, one: Written, say: Say) -> None:
        """Fetch the models that configuration `one` names by a hub's or a store's name, so that
        their folders are on this machine; `say` prints progress."""
        self.folders.fetch(made(one.raw, one.path, one.folder), say)

    def config(self, one: Written) -> Config:
        """Configuration that a server with these options serves for the file `one`. Raises
        `ConfigError` if it is invalid.

        Models of a hub or a store that the file names have to be fetched before.
        """
        return self.folders.placed(self.declared(one))

    def declared(self, one: Written) -> Config:
        """Configuration of the file `one` with the command line's options. Models of a hub or a
        store still have their names there, not folders. Raises `ConfigError` for an invalid key or
        option."""
        config = adapters.beside(made(one.raw, one.path, one.folder), one.folder)
        if self.policy is not None:
            config = config.model_copy(update={"policy": self.policy})
        if self.memory is not None:
            config = _with_memory(config, self.memory)
        if self.lease_s is not None:
            config = config.model_copy(update={"lease_s": self.lease_s})
        if not self.tls:
            http = config.http.model_copy(update={"tls": None})
            config = config.model_copy(update={"http": http})
        return config if self.tiers else config.model_copy(update={"tiers": TiersSection()})


def written(text: str, path: Path, folder: Path) -> Written:
    """Configuration in `text`, that of the file at `path`. Raises `ConfigError` if it cannot be
    parsed."""
    return Written(current(parsed(text, path), path), path, folder, hash_of(text))


def hash_of(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _with_memory(config: Config, size: str) -> Config:
    """Configuration with `size` as memory of the device. Raises `ConfigError` if that is no
    size.
    """
    try:
        device = DeviceSection.model_validate(config.device.model_dump() | {"memory": size})
    except ValueError:
        raise ConfigError(f"--memory {size!r}: write a size as 64GiB, at most 1EiB") from None
    return config.model_copy(update={"device": device})
