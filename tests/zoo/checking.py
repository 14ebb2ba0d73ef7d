"""What `mirage check` says of each family, before any engine starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mirage.config import Config, ConfigError
from mirage.serve.fit import fit_config
from tests.zoo.family import Family

DEVICE_BYTES = 1 << 32
"""Enough for any of them."""
PAGE_BYTES = 4096


def check(families: Sequence[Family], models: Path) -> dict[str, dict[str, Any]]:
    """By family: the sizes it finds, as the engine names them, or `refused` with its line."""
    return {family.name: _one(family, models / family.name) for family in families}


def _one(family: Family, folder: Path) -> dict[str, Any]:
    tenant = {
        "name": family.name,
        "model": folder,
        "share": 100,
        "max_model_len": family.arguments.get("max_model_len", 512),
        "max_num_seqs": 16,
        "max_num_batched_tokens": 256,
    }
    config = Config.model_validate(
        {"device": {"memory": DEVICE_BYTES, "page": PAGE_BYTES}, "tenants": [tenant]}
    )
    try:
        fit = fit_config(config)[family.name]
    except ConfigError as error:
        return {"refused": str(error)}
    return {
        "layers": fit.layers,
        "layer_bytes": fit.layer_bytes,
        "fixed_bytes": fit.fixed_bytes,
        "extent_bytes": fit.extent_bytes,
        "extent_blocks": fit.extent_blocks,
        "block_bytes": fit.block_bytes,
    }
