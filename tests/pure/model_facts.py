"""Facts of models as vLLM would give them for a folder of `model_folder`, or made by hand."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

from model_folder import LLAMA, llama_tensors

from mirage.facts import KVGroup, KVGroups, ModelFacts

FLOAT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def full_attention(
    layers: int, max_model_len: int, block_tokens: int = 32, kind: str = "full_attention"
) -> KVGroup:
    """KV group of layers with full attention: a request takes one KV block for every `block_tokens`
    tokens.
    """
    return KVGroup(kind, layers, block_tokens, -(-max_model_len // block_tokens))


def make_facts(
    layers: int = 8,
    layer_bytes: int = 2**20,
    fixed_bytes: int = 2**20,
    *,
    kv_token_bytes: int = 4096,
    max_model_len: int = 100,
    block_tokens: int = 32,
    **more: Any,
) -> ModelFacts:
    """Facts of a model with one KV group, in which a token takes `kv_token_bytes` over all layers;
    `more` sets other fields.
    """
    facts = {
        "architecture": "LlamaForCausalLM",
        "quantisation": "",
        "runner": "generate",
        "stays": None,
        "block_bytes": kv_token_bytes * block_tokens,
        "block_runs": 1,
        "kv": KVGroups((full_attention(layers, max_model_len, block_tokens),)),
        "vllm": "0.32.0",
    }
    return ModelFacts(
        layers=layers, layer_bytes=layer_bytes, fixed_bytes=fixed_bytes, **(facts | more)
    )


def facts_of(folder: Path, dtype: str, max_model_len: int, block_tokens: int) -> ModelFacts:
    """Facts of the very small Llama that `model_folder.make_folder` made."""
    shape = LLAMA | json.loads((folder / "config.json").read_text())
    width = FLOAT_BYTES[dtype]
    sizes = {name: prod(dims) * width for name, (_, dims) in llama_tensors().items()}
    layer = sum(nbytes for name, nbytes in sizes.items() if ".layers.0." in name)
    # vLLM pads the 100 rows of the embedding and of the output head to 128.
    fixed = 2 * 128 * 64 * width
    head_bytes = shape["hidden_size"] // shape["num_attention_heads"] * width
    return make_facts(
        shape["num_hidden_layers"],
        layer,
        fixed,
        kv_token_bytes=2 * shape["num_hidden_layers"] * shape["num_key_value_heads"] * head_bytes,
        max_model_len=max_model_len,
        block_tokens=block_tokens,
    )
