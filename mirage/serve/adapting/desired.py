"""Adapters that a tenant declares, those in its engine, and the difference between them. Pure.

An engine knows an adapter by its name and a digest of its files, ``x@0123456789abcdef``. With other
files it is another adapter: that name is part of vLLM's hashes of KV blocks, so blocks of one are
never used for the other, on the device or in tiers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

DIGITS = 16
"""Number of hexadecimal digits of a digest."""
KNOWN = re.compile(rf"(.+)@([0-9a-f]{{{DIGITS}}})", re.DOTALL)


class EngineAdapter(NamedTuple):
    """One adapter that an engine has loaded, by its name and the digest of its content."""

    name: str
    """Name by which requests ask for it."""
    digest: str

    @property
    def known_as(self) -> str:
        """Name by which the engine knows it, as ``name@digest``."""
        return f"{self.name}@{self.digest}"


def parsed(known_as: str) -> EngineAdapter | None:
    """Adapter by the engine's name of it; None if the name has no digest."""
    found = KNOWN.fullmatch(known_as)
    return None if found is None else EngineAdapter(found[1], found[2])


class AdapterState(StrEnum):
    """State of one declared adapter."""

    WAITING = "waiting"
    """No engine runs; the next one loads it when it starts."""
    LOADING = "loading"
    LOADED = "loaded"
    FAILED = "failed"
    """The adapter cannot be loaded. It is tried again when `mirage apply` has changed its folder,
    and by the tenant's next engine.
    """


class AdapterTold(NamedTuple):
    """Declared adapter as it is shown to operators."""

    state: AdapterState
    folder: Path
    reason: str = ""
    """Reason of a failure; else empty."""


@dataclass
class AdapterBook:
    """Adapters of one tenant. Folders and digests are by the names that requests use."""

    declared: dict[str, Path] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    """Digests of declared adapters whose files have been read."""
    has: dict[EngineAdapter, Path] | None = None
    """Adapters in the engine, each with the declared folder whose copy was loaded; None if there is
    no engine.
    """
    failed: dict[str, str] = field(default_factory=dict)
    """Reasons why declared adapters cannot be loaded, by name."""
    loads: int = 0
    failures: int = 0

    def declares(self, adapters: Mapping[str, Path]) -> None:
        """Replace the declared adapters. Digests and failures are dropped of those that have
        another folder now, or are declared no longer.
        """
        for name, folder in self.declared.items():
            if adapters.get(name) != folder:
                self.digests.pop(name, None)
                self.failed.pop(name, None)
        self.declared = dict(adapters)

    def fails(self, name: str, reason: str) -> None:
        """Note that adapter `name` cannot be loaded."""
        self.failed[name] = reason
        self.failures += 1

    def missing(self) -> list[EngineAdapter]:
        """Adapters that are declared, whose files have been read, and that the engine lacks."""
        has = self.has or {}
        wanted = (EngineAdapter(name, digest) for name, digest in self.digests.items())
        return [one for one in wanted if one not in has]

    def surplus(self) -> list[EngineAdapter]:
        """Adapters in the engine to unload: not declared any more, or replaced."""
        serving = set(self.serving().values())
        return [one for one in self.has or {} if one not in serving]

    def serving(self) -> dict[str, EngineAdapter]:
        """Adapter in the engine that answers requests, by declared name; a name that has none is
        left out.

        Until the declared files are loaded, it is the adapter that was loaded earlier under the
        name.
        """
        found: dict[str, EngineAdapter] = {}
        for one in self.has or {}:
            if one.name in self.declared and self.digests.get(one.name) in (None, one.digest):
                found[one.name] = one
        before = {one.name: one for one in self.has or {} if one.name in self.declared}
        return before | found

    def folders(self) -> dict[str, str]:
        """Folders of the adapters that requests may ask for now, by name.

        Without an engine these are all declared ones that have not failed: a request starts the
        engine.
        """
        if self.has is None:
            return {n: str(path) for n, path in self.declared.items() if n not in self.failed}
        return {name: str(self.has[one]) for name, one in self.serving().items()}

    def names(self) -> dict[str, str]:
        """The engine's names of the adapters that requests may ask for, by the names that requests
        use.
        """
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
