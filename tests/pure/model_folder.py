"""Model folders with sizes only: config.json, and safetensors files without data."""

from __future__ import annotations

import json
import struct
from math import prod
from pathlib import Path
from typing import Any

BYTES = {"F32": 4, "BF16": 2}

LLAMA: dict[str, Any] = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "vocab_size": 100,
    "tie_word_embeddings": False,
}

LORA: dict[str, Any] = {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj"], "bias": "none"}

OPT_13B: dict[str, Any] = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "hidden_size": 5120,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "ffn_dim": 20480,
    "vocab_size": 50272,
    "max_position_embeddings": 2048,
    "word_embed_proj_dim": 5120,
}
"""Architecture and sizes in the config.json of OPT-13B."""


def llama_tensors(layers: int = 2, stored: str = "F32") -> dict[str, tuple[str, list[int]]]:
    """Names, stored types and dimensions of a very small Llama."""
    tensors = {
        "model.embed_tokens.weight": (stored, [100, 64]),
        "lm_head.weight": (stored, [100, 64]),
    }
    for i in range(layers):
        tensors[f"model.layers.{i}.self_attn.q_proj.weight"] = (stored, [64, 64])
        tensors[f"model.layers.{i}.mlp.up_proj.weight"] = (stored, [128, 64])
        tensors[f"model.layers.{i}.input_layernorm.weight"] = (stored, [64])
    return tensors


def write_safetensors(path: Path, tensors: dict[str, tuple[str, list[int]]]) -> None:
    """Write a safetensors file: a header with names, types and dimensions, and a hole of the data's
    length.
    """
    entries, end = {}, 0
    for name, (stored, shape) in tensors.items():
        start, end = end, end + prod(shape) * BYTES[stored]
        entries[name] = {"dtype": stored, "shape": shape, "data_offsets": [start, end]}
    header = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + end)


def make_folder(folder: Path, **changes: Any) -> Path:
    """Write the folder of a very small Llama; `changes` replace keys of its config.json. Return the
    folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(LLAMA | changes))
    write_safetensors(folder / "model.safetensors", llama_tensors())
    return folder


def make_adapter(folder: Path, **changes: Any) -> Path:
    """Write the folder of a LoRA adapter for the query matrix of layer 0 of the Llama that
    `make_folder` writes; `changes` replace keys of its adapter_config.json. Return the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(LORA | changes))
    parts = {"lora_A": [8, 64], "lora_B": [64, 8]}
    of = "base_model.model.model.layers.0.self_attn.q_proj"
    tensors = {f"{of}.{part}.weight": ("F32", shape) for part, shape in parts.items()}
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    return folder


def make_unweighed(folder: Path, said: dict[str, Any]) -> Path:
    """Write a model folder with a config.json alone, so without files of weights. Return the
    folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(said))
    return folder
