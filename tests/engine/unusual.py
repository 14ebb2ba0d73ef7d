"""Tiny models that vLLM builds through transformers, or that are quantised."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

TRANSFORMERS = ("smollm3", "olmo2", "gptneox", "starcoder2")
"""Families for which vLLM has no model of its own and takes that of transformers."""
SYMMETRIC, OFFSET = INT8 = ("w8a8", "w8a8-offset")
"""int8 throughout; what the second multiplies has a zero point, so oneDNN packs it everywhere."""
SCHEME: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "all": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "strategy": "channel",
                "dynamic": False,
            },
            "input_activations": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "strategy": "token",
                "dynamic": True,
            },
        }
    },
}
"""W8A8: int8 weights with a scale for each row, activations quantised as they come."""


def configs(common: dict[str, Any], gated: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """Functions that make the configuration of each family, from what families have in common."""
    import transformers as hf

    ffn = 3 * common["hidden_size"]
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    return {
        "smollm3": lambda: hf.SmolLM3Config(**gated, **tokens, no_rope_layer_interval=4),
        "olmo2": lambda: hf.Olmo2Config(**gated, **tokens),
        "gptneox": lambda: hf.GPTNeoXConfig(
            **common, **tokens, intermediate_size=ffn, initializer_range=0.1
        ),
        "starcoder2": lambda: hf.Starcoder2Config(**gated, **tokens),
    }


def quantise(plain: Path, path: Path, family: str) -> Path:
    """Quantise the Llama model in `plain` to W8A8 in `path`, in the format of
    compressed-tensors.
    """
    import torch
    from safetensors.torch import load_file, save_file

    path.mkdir(parents=True, exist_ok=True)
    weights: dict[str, Any] = {}
    for name, weight in load_file(plain / "model.safetensors").items():
        if "_proj." not in name:
            weights[name] = weight
            continue
        scale = weight.float().abs().amax(dim=1, keepdim=True) / 127
        weights[name] = (weight.float() / scale).round().to(torch.int8)
        weights[f"{name}_scale"] = scale
    scheme = copy.deepcopy(SCHEME)
    scheme["config_groups"]["all"]["input_activations"]["symmetric"] = family == SYMMETRIC
    config = json.loads((plain / "config.json").read_text()) | {"quantization_config": scheme}
    (path / "config.json").write_text(json.dumps(config))
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    return path
