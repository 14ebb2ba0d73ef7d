"""A small random LoRA adapter as PEFT writes it, made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

RANK = 4


def make_adapter(folder: Path, model: Path, seed: int, strength: float = 0.3) -> Path:
    """Make an adapter for the query and value projections of the Llama in `model`."""
    config = json.loads((model / "config.json").read_text())
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    kv = hidden // heads * config["num_key_value_heads"]
    rng = np.random.default_rng(seed)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for part, width in (("q_proj", hidden), ("v_proj", kv)):
            name = f"base_model.model.model.layers.{layer}.self_attn.{part}"
            for half, shape in (("A", (RANK, hidden)), ("B", (width, RANK))):
                values = rng.standard_normal(shape) * strength
                tensors[f"{name}.lora_{half}.weight"] = values.astype(np.float32)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    written = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(model),
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["q_proj", "v_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(written))
    return folder
