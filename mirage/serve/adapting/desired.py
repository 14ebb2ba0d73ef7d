"""Adapters that a tenant declares and those that its engine has: what follows, and its names. Pure.

An engine knows an adapter by its name and a digest of its files, ``x@0123456789abcdef``. Other
files are another adapter to it: vLLM's hashes of KV blocks have that name in them, so no block of
the one is ever found for the other, on the device or below.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

DIGITS = 16
"""Hexadecimal digits of a digest."""
KNOWN = re.compile(rf"(.+)@([0-9a-f]{{{DIGITS}}})", re.DOTALL)


class EngineAdapter(NamedTuple):
    """An adapter in an engine."""

    name: str
    """Name that requests use."""
    digest: str

    @property
    def known_as(self) -> str:
        """Name that its engine has for it."""
        return f"{self.name}@{self.digest}"


def parsed(known_as: str) -> EngineAdapter | None:
    """Adapter of a name that an engine has; None if it was not loaded while the engine ran."""
    found = KNOWN.fullmatch(known_as)
    return None if found is None else EngineAdapter(found[1], found[2])


class AdapterState(StrEnum):
    """State of one declared adapter."""

    WAITING = "waiting"
    """Waits for an engine, which loads it at its start."""
    LOADING = "loading"
    LOADED = "loaded"
    FAILED = "failed"
    """Cannot be loaded: another apply that changes it, or another engine, tries again."""


class AdapterTold(NamedTuple):
    """A declared adapter, as it is reported."""

    state: AdapterState
    folder: Path
    reason: str = ""
    """Reason of a failure."""


@dataclass
class AdapterBook:
    """Adapters of one tenant. Folders and digests are by the names that requests use."""

    declared: dict[str, Path] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    """Digests of declared ones, as far as their files have been read."""
    has: dict[EngineAdapter, Path] | None = None
    """Adapters in the engine, with the folders that they came from; None without an engine."""
    failed: dict[str, str] = field(default_factory=dict)
    """Reasons why declared ones cannot be loaded."""
    loads: int = 0
    failures: int = 0

    def declares(self, adapters: Mapping[str, Path]) -> None:
        """Have these adapters declared; of those that are new or lie elsewhere nothing is known."""
        for name, folder in self.declared.items():
            if adapters.get(name) != folder:
                self.digests.pop(name, None)
                self.failed.pop(name, None)
        self.declared = dict(adapters)

    def fails(self, name: str, reason: str) -> None:
        """The adapter `name` cannot be loaded."""
        self.failed[name] = reason
        self.failures += 1

    def missing(self) -> list[EngineAdapter]:
        """Adapters that are declared and not loaded."""
        has = self.has or {}
        wanted = (EngineAdapter(name, digest) for name, digest in self.digests.items())
        return [one for one in wanted if one not in has]

    def surplus(self) -> list[EngineAdapter]:
        """Adapters to unload: not declared any more, or replaced."""
        serving = set(self.serving().values())
        return [one for one in self.has or {} if one not in serving]

    def serving(self) -> dict[str, EngineAdapter]:
        """Adapter in the engine that answers to each declared name.

        The one before stays until the one that is declared is there.
        """
        found: dict[str, EngineAdapter] = {}
        for one in self.has or {}:
            if one.name in self.declared and self.digests.get(one.name) in (None, one.digest):
                found[one.name] = one
        before = {one.name: one for one in self.has or {} if one.name in self.declared}
        return before | found

    def folders(self) -> dict[str, str]:
        """Folders of those that requests may ask for now.

        Without an engine these are all that may be loaded: a request starts the engine.
        """
        if self.has is None:
            return {n: str(path) for n, path in self.declared.items() if n not in self.failed}
        return {name: str(self.has[one]) for name, one in self.serving().items()}

    def names(self) -> dict[str, str]:
        """Names that the engine has for those that requests may ask for."""
        return {name: one.known_as for name, one in self.serving().items()}

    def told(self) -> dict[str, AdapterTold]:
        """State of each declared adapter, by its name."""
        return {name: self._told(name, folder) for name, folder in self.declared.items()}

    def _told(self, name: str, folder: Path) -> AdapterTold:
        if name in self.failed:
            return AdapterTold(AdapterState.FAILED, folder, self.failed[name])
        if self.has is None:
            return AdapterTold(AdapterState.WAITING, folder)
        loaded = EngineAdapter(name, self.digests.get(name, "")) in self.has
        return AdapterTold(AdapterState.LOADED if loaded else AdapterState.LOADING, folder)
