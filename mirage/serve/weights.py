"""What a model folder weighs, read from ``config.json`` and the safetensors headers alone.

Neither torch nor transformers is imported: a configuration is judged in milliseconds, before
any process starts.
"""

from __future__ import annotations

import json
import re
import struct
from collections import defaultdict
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from mirage.config import ConfigError

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
STORED_BYTES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2}
STORED_BYTES |= {"F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8}
CONVERTED = {"F16", "BF16", "F32", "F64"}
"""Stored types that vLLM turns into the configured dtype; the others stay as they are."""

ATTENTION_FREE = {"mamba", "mamba2", "falcon_mamba", "rwkv", "rwkv5", "rwkv6"}
DECODER_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
MAX_HEADER_BYTES = 100 * 2**20

VOCABULARY_PADDING = 64
"""vLLM pads the rows of the embedding and of the output head to a multiple of this."""

TENSOR_ALIGNMENT = 64
"""At most this is lost per tensor where the parameters of a layer share one range."""


@dataclass(frozen=True)
class Weights:
    """One model's sizes in bytes, not rounded to pages, in the dtype it will be served in.

    `layer_bytes` is the largest decoder layer; `fixed_bytes` everything outside the decoder
    layers; `kv_token_bytes` keys and values of one token over all layers.
    """

    layers: int
    layer_bytes: int
    fixed_bytes: int
    kv_token_bytes: int


def read_weights(folder: Path, dtype: str) -> Weights:
    """Weigh the model in `folder` as served in `dtype`.

    Raises `ConfigError` with one line if the folder, its ``config.json`` or its safetensors
    files are missing or cannot be understood.
    """
    if not folder.is_dir():
        raise ConfigError(f"no model folder at {folder}: correct the path or make the model first")
    shape = _text_config(folder / "config.json")
    sizes: dict[int | None, int] = defaultdict(int)
    for name, stored, dims in _tensors(folder):
        if shape.get("tie_word_embeddings") and name.endswith("lm_head.weight"):
            continue
        match = DECODER_LAYER.search(name)
        if match is None and dims and dims[0] == shape.get("vocab_size"):
            dims = [_up(dims[0], VOCABULARY_PADDING), *dims[1:]]
        width = DTYPE_BYTES[dtype] if stored in CONVERTED else STORED_BYTES[stored]
        sizes[int(match[1]) if match else None] += _up(prod(dims) * width, TENSOR_ALIGNMENT)
    fixed = sizes.pop(None, 0)
    layers = _field(folder, shape, "num_hidden_layers", "n_layer")
    if len(sizes) != layers:
        raise ConfigError(
            f"{folder}: config.json names {layers} decoder layers, "
            f"its tensors hold {len(sizes)}: the folder is incomplete or of an unknown kind"
        )
    token = layers * _kv_layer_token_bytes(folder, shape, DTYPE_BYTES[dtype])
    return Weights(layers, max(sizes.values()), fixed, token)


def _kv_layer_token_bytes(folder: Path, shape: dict[str, Any], width: int) -> int:
    if shape.get("kv_lora_rank"):
        raise ConfigError(f"{folder}: multi-head latent attention is not supported")
    if shape.get("model_type") in ATTENTION_FREE or "state_size" in shape:
        raise ConfigError(f"{folder}: state-space layers are not supported")
    if shape.get("sliding_window") and shape.get("use_sliding_window", True):
        raise ConfigError(f"{folder}: sliding-window attention is not supported")
    kinds = set(shape.get("layer_types") or ()) - {"full_attention"}
    if kinds:
        raise ConfigError(f"{folder}: layers of kind {sorted(kinds)[0]!r} are not supported")
    heads = _field(folder, shape, "num_attention_heads", "n_head")
    kv_heads = shape.get("num_key_value_heads") or heads
    head_dim = shape.get("head_dim") or _field(folder, shape, "hidden_size", "n_embd") // heads
    return 2 * int(kv_heads) * int(head_dim) * width


def _text_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as JSON ({error})") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{path}: expected a JSON object, found {type(config).__name__}")
    text: dict[str, Any] = config.get("text_config") or config
    return text


def _field(folder: Path, shape: dict[str, Any], *names: str) -> int:
    for name in names:
        if isinstance(value := shape.get(name), int) and value > 0:
            return value
    raise ConfigError(f"{folder / 'config.json'}: {names[0]} is missing or not a positive number")


def _tensors(folder: Path) -> list[tuple[str, str, list[int]]]:
    """Name, stored type and dimensions of every tensor that belongs to the model."""
    found: dict[str, tuple[str, str, list[int]]] = {}
    for path in _weight_files(folder):
        for name, entry in _header(path).items():
            if name == "__metadata__":
                continue
            try:
                stored, dims = str(entry["dtype"]), [int(n) for n in entry["shape"]]
                STORED_BYTES[stored]
            except (KeyError, TypeError, ValueError):
                raise ConfigError(f"{path}: tensor {name!r} is of an unknown kind") from None
            found[name] = (name, stored, dims)
    return list(found.values())


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        # Some folders carry a second, consolidated copy that vLLM leaves out as well.
        weight_map = _text_config(index).get("weight_map", {})
        return [folder / name for name in sorted(set(weight_map.values()))]
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ConfigError(f"{folder}: holds no *.safetensors file")
    return files


def _header(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > MAX_HEADER_BYTES:
                raise ValueError(f"a header of {length} bytes")
            header = json.loads(file.read(length))
            _check_size(header, path.stat().st_size - 8 - length)
    except (OSError, ValueError, TypeError, LookupError, struct.error) as error:
        raise ConfigError(f"{path}: not a safetensors file ({error})") from None
    if not isinstance(header, dict):
        raise ConfigError(f"{path}: not a safetensors file (no table of tensors)")
    return header


def _check_size(header: Any, nbytes: int) -> None:
    """Raises `ValueError` if the tensors reach beyond the `nbytes` that follow the header."""
    entries = header.values() if isinstance(header, dict) else ()
    ends = [e["data_offsets"][1] for e in entries if isinstance(e, dict) and "data_offsets" in e]
    if max(ends, default=0) > nbytes:
        raise ValueError(f"its tensors take {max(ends)} bytes, it holds {nbytes}: it is cut short")


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
