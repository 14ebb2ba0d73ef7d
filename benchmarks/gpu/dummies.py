"""Model folders of real sizes without weights, for vLLM's ``load_format: dummy``.

A folder has ``config.json``, a tokenizer of bytes, and a safetensors file with the header of the
whole model and a hole in place of the weights, so that `mirage check` can compute its sizes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path

from mirage.tools.demo.tokenizer import save_tokenizer

OFFSET = 2
"""Number of rows of OPT's table of positions that stand for no position."""
BYTES = {"BF16": 2}


@dataclass(frozen=True)
class Shape:
    """Shape of an OPT model."""

    hidden: int
    layers: int
    heads: int
    positions: int = 2048
    vocabulary: int = 50272


OPT_13B = Shape(hidden=5120, layers=40, heads=40)


def hollow(folder: Path, shape: Shape = OPT_13B) -> Path:
    """Folder that vLLM takes for a model of this shape. It is made anew each time, and takes a few
    kilobytes on disk.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "hidden_size": shape.hidden,
        "word_embed_proj_dim": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "ffn_dim": 4 * shape.hidden,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.positions,
        "do_layer_norm_before": True,
        "activation_function": "relu",
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_tokenizer(folder, shape.positions)
    _write_hollow(folder / "model.safetensors", _tensors(shape))
    return folder


def _tensors(shape: Shape) -> dict[str, list[int]]:
    decoder, hidden = "model.decoder", shape.hidden
    shapes = {
        f"{decoder}.embed_tokens.weight": [shape.vocabulary, hidden],
        f"{decoder}.embed_positions.weight": [shape.positions + OFFSET, hidden],
        **_norm(f"{decoder}.final_layer_norm", hidden),
    }
    for index in range(shape.layers):
        layer = f"{decoder}.layers.{index}"
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes |= _linear(f"{layer}.self_attn.{name}", hidden, hidden)
        shapes |= _linear(f"{layer}.fc1", 4 * hidden, hidden)
        shapes |= _linear(f"{layer}.fc2", hidden, 4 * hidden)
        shapes |= _norm(f"{layer}.self_attn_layer_norm", hidden)
        shapes |= _norm(f"{layer}.final_layer_norm", hidden)
    return shapes


def _linear(name: str, rows: int, columns: int) -> dict[str, list[int]]:
    return {f"{name}.weight": [rows, columns], f"{name}.bias": [rows]}


def _norm(name: str, width: int) -> dict[str, list[int]]:
    return {f"{name}.weight": [width], f"{name}.bias": [width]}


def _write_hollow(path: Path, shapes: dict[str, list[int]]) -> None:
    """Write a header, and a hole of the size that the header names."""
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + prod(shape) * BYTES["BF16"]
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
