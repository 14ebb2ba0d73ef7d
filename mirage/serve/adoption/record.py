"""Record of a run beside its sockets: what another server has to know if this one is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from mirage.config import Policy
from mirage.processes.marks import ProcessMark
from mirage.serve.fit import Fit

RECORD_FORM = 2


class EngineRecord(msgspec.Struct, frozen=True):
    """An engine that runs."""

    server: ProcessMark
    """Its API server, which leads its process group."""
    order: str
    """Hash of what it was started with: see `code.order_of`."""
    log: str
    core: ProcessMark | None = None
    """The process that holds the memory, once it has said hello."""
    serves: bool = False
    """True once it has computed its first step."""


class RouterRecord(msgspec.Struct, frozen=True):
    """The router that serves, and what it cannot change."""

    process: ProcessMark
    """The process that forks it, which leads its process group."""
    host: str
    port: int
    url: str
    http: dict[str, Any]
    """Section `http` of the configuration."""


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
    """Folders of models at a hub, by their names."""


class FoundRecord(msgspec.Struct, frozen=True):
    """Answers of vLLM about its models, by the tenant's name: see `Preflight`."""

    fits: dict[str, Fit]
    refused: dict[str, str]
    adapters: dict[str, dict[str, str]]
    shares: dict[str, float]
    """Per cent of each tenant, those that are ``auto`` too."""


class RunRecord(msgspec.Struct, frozen=True):
    """Form of the file, as JSON."""

    form: int
    device: str
    """Name of the device; another server of the same one is its successor."""
    boot: str
    code: str
    """Hash of what an engine is made of: see `code.code_of_engines`."""
    server: ProcessMark
    lease_s: float
    folders: list[str]
    """Folders of the run, the one with sockets last."""
    config: ConfigRecord
    found: FoundRecord
    engines: dict[str, EngineRecord] = {}
    keeper: ProcessMark | None = None
    reaper: ProcessMark | None = None
    router: RouterRecord | None = None


def read_record(path: Path) -> RunRecord | None:
    """Record of a run; None if there is none, or one of another form."""
    try:
        record = msgspec.json.decode(path.read_bytes(), type=RunRecord)
    except (OSError, msgspec.DecodeError, ValueError):
        return None
    return record if record.form == RECORD_FORM else None
