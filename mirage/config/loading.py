"""Configuration of a file: upgraded to the newest keys, checked, its paths made absolute."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mirage.config.reading import ConfigError, read_yaml, validated
from mirage.config.tenant import STORED, TenantSection
from mirage.config.whole import Config
from mirage.config_versions import KEY as VERSION
from mirage.config_versions import UnknownVersionError, upgraded
from mirage.hub_name import hub_name
from mirage.problems import shown

HARDWARE_FILES = (".yaml", ".yml")
"""Suffixes that distinguish a hardware file from the name of a bundled profile."""


def load(path: Path) -> Config:
    """Read and check one file. Paths in it are relative to the file's folder.

    Raises `ConfigError` if it cannot be read or a value is wrong; its one line has the fault, the
    value, and what to do.
    """
    return made(read_yaml(path), path, path.parent)


def made(raw: dict[Any, Any], path: Path, here: Path) -> Config:
    """Configuration of `raw`, the content of the file at `path`. Relative paths in it become
    absolute; they are relative to the folder `here`. Raises `ConfigError` for a version that is not
    known or a value that is wrong.
    """
    keys = {key: value for key, value in current(raw, path).items() if key != VERSION}
    config = validated(Config, keys, path)
    tenants = [_placed(tenant, here) for tenant in config.tenants]
    device = config.device
    if device.profile is not None and device.profile.endswith(HARDWARE_FILES):
        profile = str(resolved(here, device.profile))
        device = device.model_copy(update={"profile": profile})
    tiers = config.tiers
    if (ssd := tiers.ssd) is not None:
        ssd = ssd.model_copy(update={"directory": resolved(here, ssd.directory)})
        tiers = tiers.model_copy(update={"ssd": ssd})
    http = config.http
    if (tls := http.tls) is not None:
        files = {"certificate": tls.certificate, "key": tls.key}
        files = {name: (here / path).absolute() for name, path in files.items()}
        http = http.model_copy(update={"tls": tls.model_copy(update=files)})
    weights = config.weights
    named = {"store": weights.store, "secret": weights.secret}
    placed = {key: (here / path).absolute() for key, path in named.items() if path is not None}
    weights = weights.model_copy(update=placed)
    folders = [resolved(here, folder) for folder in config.adapter_folders]
    update = {"tenants": tenants, "device": device, "tiers": tiers, "http": http}
    update |= {"weights": weights}
    return config.model_copy(update=update | {"adapter_folders": folders})


def current(raw: dict[Any, Any], path: Path) -> dict[Any, Any]:
    """Content of a configuration in the keys of the newest version. Raises `ConfigError`, which
    names the file at `path`, if this release cannot read the file's version.
    """
    try:
        return upgraded(raw)
    except UnknownVersionError as error:
        raise ConfigError(f"{path}: {error}") from None


def _placed(tenant: TenantSection, here: Path) -> TenantSection:
    adapters = {name: resolved(here, path) for name, path in tenant.adapters.items()}
    return tenant.model_copy(update={"model": _model(here, tenant.model), "adapters": adapters})


def _model(here: Path, written: Path) -> Path:
    """Absolute path of a model's folder; a relative one is relative to `here`. A name in the store
    of weights is returned as written, and so is a name at a hub, unless a folder of that name
    exists.
    """
    if str(written).startswith(STORED):
        return written
    place = resolved(here, written)
    return place if hub_name(str(written)) is None or place.exists() else written


def resolved(folder: Path, path: Path | str) -> Path:
    """Absolute path of `path` relative to `folder`, with symbolic links followed. Links that lead
    nowhere are allowed.

    Raises `ConfigError` for text that can be no path.
    """
    try:
        return Path(os.path.realpath(folder / path))
    except ValueError:
        raise ConfigError(f"{shown(str(path))} is no path: correct it") from None
