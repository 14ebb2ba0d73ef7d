"""The configuration of a server: the file, and what its command line says beside it."""

from __future__ import annotations

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
from mirage.serve import adapters
from mirage.serve.hubs import HubFolders


@dataclass(frozen=True)
class Written:
    """A configuration as the user wrote it, in the newest version's keys, and its place."""

    raw: dict[Any, Any]
    path: Path
    """File by whose name it is spoken of."""
    folder: Path
    """Absolute; paths in it are relative to this one."""
    sha256: str = ""
    """Hash of its text; empty if it is not a file's."""


@dataclass(frozen=True)
class ConfigSource:
    """The file of a server, and options that override it; None leaves a key as the file has it."""

    path: Path
    """File of the configuration; for a proposal, the words that it was made for."""
    policy: Policy | None = None
    memory: str | None = None
    tiers: bool = True
    lease_s: float | None = None
    tls: bool = True
    proposed: Written | None = None
    """Configuration that is served where no file says it."""
    folders: HubFolders = field(default_factory=HubFolders)

    def written(self) -> Written:
        """The file as it is now. Raises `ConfigError`."""
        if self.proposed is not None:
            return self.proposed
        return written(read_text(self.path), self.path, self.path.parent.absolute())

    def fetch(self, one: Written, say: Say) -> None:
        """Fetch models that it names at a hub; see `HubFolders.fetch`."""
        self.folders.fetch(made(one.raw, one.path, one.folder), say)

    def config(self, one: Written) -> Config:
        """Configuration that a server of these options makes of it. Raises `ConfigError`.

        Models that it names at a hub were fetched before.
        """
        return self.folders.placed(self.declared(one))

    def declared(self, one: Written) -> Config:
        """The same, with names of models at a hub."""
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
    """Text of the file at `path`. Raises `ConfigError`."""
    return Written(current(parsed(text, path), path), path, folder, hash_of(text))


def hash_of(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _with_memory(config: Config, size: str) -> Config:
    """Raises `ConfigError` for what is no size."""
    try:
        device = DeviceSection.model_validate(config.device.model_dump() | {"memory": size})
    except ValueError:
        raise ConfigError(f"--memory {size!r}: write a size as 64GiB, at most 1EiB") from None
    return config.model_copy(update={"device": device})
