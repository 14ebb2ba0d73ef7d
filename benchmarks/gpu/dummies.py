"""Model folders of real shapes without weights, for vLLM's ``load_format: dummy``.

``config.json``, a tokenizer of bytes, and a safetensors file that has the header of the whole
model and a hole where the weights would be, so that `mirage check` can weigh it.
"""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

from mirage.demo.tokenizer import save_tokenizer

HIDDEN, LAYERS, HEADS, FFN = 5120, 40, 40, 20480
VOCABULARY, POSITIONS = 50272, 2048
OFFSET = 2
"""Rows of OPT's table of positions that stand for none."""
BYTES = {"BF16": 2}


def opt_13b(folder: Path) -> Path:
    """A folder that vLLM takes for OPT-13b. Made anew each time; a few kilobytes on disk."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "hidden_size": HIDDEN,
        "word_embed_proj_dim": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "ffn_dim": FFN,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": POSITIONS,
        "do_layer_norm_before": True,
        "activation_function": "relu",
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_tokenizer(folder, POSITIONS)
    _write_hollow(folder / "model.safetensors", _shapes())
    return folder


def _shapes() -> dict[str, list[int]]:
    decoder = "model.decoder"
    shapes = {
        f"{decoder}.embed_tokens.weight": [VOCABULARY, HIDDEN],
        f"{decoder}.embed_positions.weight": [POSITIONS + OFFSET, HIDDEN],
        **_norm(f"{decoder}.final_layer_norm"),
    }
    for index in range(LAYERS):
        layer = f"{decoder}.layers.{index}"
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes |= _linear(f"{layer}.self_attn.{name}", HIDDEN, HIDDEN)
        shapes |= _linear(f"{layer}.fc1", FFN, HIDDEN) | _linear(f"{layer}.fc2", HIDDEN, FFN)
        shapes |= _norm(f"{layer}.self_attn_layer_norm") | _norm(f"{layer}.final_layer_norm")
    return shapes


def _linear(name: str, rows: int, columns: int) -> dict[str, list[int]]:
    return {f"{name}.weight": [rows, columns], f"{name}.bias": [rows]}


def _norm(name: str) -> dict[str, list[int]]:
    return {f"{name}.weight": [HIDDEN], f"{name}.bias": [HIDDEN]}


def _write_hollow(path: Path, shapes: dict[str, list[int]]) -> None:
    """A header, and a hole of the size that it tells of."""
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + prod(shape) * BYTES["BF16"]
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
