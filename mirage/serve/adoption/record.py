"""Record of a run (one server, from its start to its end), in a file beside its sockets, for a
server that takes over if this one is killed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from mirage.config import Policy
from mirage.processes.marks import ProcessMark
from mirage.serve.fit.fit import Fit

RECORD_FORM = 3


class EngineRecord(msgspec.Struct, frozen=True):
    """Engine that runs, as another server finds it after this one was killed."""

    server: ProcessMark
    """API server of the engine, which leads its process group."""
    order: str
    """Hash of its start: see `code.order_of`."""
    log: str
    core: ProcessMark | None = None
    """EngineCore process, which holds the device memory; None until it has said hello."""
    serves: bool = False
    """True once the engine has computed its first step."""
    semaphores: dict[str, int] = {}
    """Semaphores of the engine in /dev/shm: inodes by their names."""


class RouterRecord(msgspec.Struct, frozen=True):
    """The router that serves, and the settings that it cannot change."""

    process: ProcessMark
    """Process that forks the router, which leads its process group."""
    host: str
    port: int
    url: str


class ConfigRecord(msgspec.Struct, frozen=True):
    """The configuration that is served, as it was written, and options that override it."""

    raw: dict[str, Any]
    path: str
    folder: str
    sha256: str
    policy: Policy | None = None
    memory: str | None = None
    tiers: bool = True
    models: dict[str, str] = {}
    """Folders of hub models, by the models' names."""


class FoundRecord(msgspec.Struct, frozen=True):
    """Answers of vLLM about the models, by tenant: see `Preflight`."""

    fits: dict[str, Fit]
    refused: dict[str, str]
    adapters: dict[str, dict[str, str]]
    shares: dict[str, float]
    """Share of each tenant in per cent, also where the configuration says ``auto``."""


class RunRecord(msgspec.Struct, frozen=True):
    """Content of the record file, in JSON."""

    form: int
    device: str
    """Name of the device; a later server of the same device may take the run over."""
    boot: str
    code: str
    """Hash of the engines' code: see `code.code_of_engines`."""
    server: ProcessMark
    lease_s: float
    folders: list[str]
    """Folders of the run; the last one has the sockets."""
    config: ConfigRecord
    found: FoundRecord
    engines: dict[str, EngineRecord] = {}
    keeper: ProcessMark | None = None
    reaper: ProcessMark | None = None
    router: RouterRecord | None = None


def read_record(path: Path) -> RunRecord | None:
    """Record of a run; None if the file cannot be read or has another form."""
    try:
        record = msgspec.json.decode(path.read_bytes(), type=RunRecord)
    except (OSError, msgspec.DecodeError, ValueError):
        return None
    return record if record.form == RECORD_FORM else None
