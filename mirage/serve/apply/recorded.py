"""Configuration that is served, in the form of a run's record, and back."""

from __future__ import annotations

from pathlib import Path

from mirage.config import Config
from mirage.serve.adoption.record import ConfigRecord, FoundRecord
from mirage.serve.apply.source import ConfigSource, Written
from mirage.serve.launch.preflight import Preflight
from mirage.serve.models.hubs import HubFolders


def config_of(record: ConfigRecord) -> tuple[Written, Config]:
    """Configuration of a record, as written and as served. Raises `ConfigError` if it is not valid
    any more."""
    path = Path(record.path)
    folders = HubFolders({name: Path(folder) for name, folder in record.models.items()})
    source = ConfigSource(path, record.policy, record.memory, record.tiers, folders=folders)
    written = Written(record.raw, path, Path(record.folder), record.sha256)
    return written, source.config(written)


def config_record(source: ConfigSource, written: Written) -> ConfigRecord:
    """Record of a configuration as it was written, and of the options that override it."""
    return ConfigRecord(
        written.raw,
        str(written.path),
        str(written.folder),
        written.sha256,
        source.policy,
        source.memory,
        source.tiers,
        {name: str(folder) for name, folder in source.folders.known.items()},
    )


def found_record(found: Preflight) -> FoundRecord:
    """Record of the checks before engines start: each tenant's fit, refusal, adapters and share."""
    shares = {tenant.name: tenant.percent for tenant in found.config.tenants}
    return FoundRecord(found.fits, found.refused, found.adapters, shares)
