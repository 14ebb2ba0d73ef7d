"""Identity of an engine's weights: equal for engines whose masters are the same."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
import vllm

from mirage.engine.packed_linear import packs
from mirage.processors import TILE_COLUMNS, TILE_ROWS


def identity_of(vllm_config: Any) -> str | None:
    """Return a hash of the files (device, inode, size, modification time) and of all settings
    that process them.

    The files are all those directly in the model's folder, also by their names: weights,
    configuration, code. None if it is no folder, or cannot be read. The environment is not part of
    it: engines of one server have the same.
    """
    model, cache = vllm_config.model_config, vllm_config.cache_config
    if (files := _files(Path(model.model))) is None:
        return None
    said = {k: v for k, v in model.hf_config.to_dict().items() if k != "_name_or_path"}
    facts = {
        "files": files,
        "versions": [vllm.__version__, torch.__version__],
        "config": said,
        "model": [str(model.dtype), model.quantization, model.model_impl, model.runner_type],
        "convert": model.convert_type,
        "media": repr(model.multimodal_config),
        "load": repr(vllm_config.load_config),
        "cache": str(cache.cache_dtype),
        "kernels": [repr(vllm_config.attention_config), repr(vllm_config.kernel_config)],
        "packed": packs(TILE_ROWS, TILE_COLUMNS, model.dtype),  # a release before packed none
        "device": str(vllm_config.device_config.device),
        "lora": vllm_config.lora_config is not None,
        "modes": [str(vllm_config.compilation_config.mode), model.enforce_eager],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def _files(folder: Path) -> list[list[Any]] | None:
    try:
        with os.scandir(folder) as entries:
            found = [(entry.name, entry.stat()) for entry in entries if entry.is_file()]
    except OSError:
        return None
    return sorted(
        [name, seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns] for name, seen in found
    )
