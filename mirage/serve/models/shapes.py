"""Shape of a model as its folder describes it without vLLM: by config.json and headers of weights.

Covers only families whose layers are all alike, with full attention and plain weights. Of others
only vLLM knows the sizes of a layer and of a token's KV.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from pydantic import ValidationError

from mirage.facts import KVGroup, KVGroups, ModelFacts
from mirage.folder.model_config import NAME, ModelConfig, read_config
from mirage.folder.weights import tensors
from mirage.profiles import Model
from mirage.units import ceil_div

WEIGHT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
MOST_VECTORS = 0.05
"""Largest part of a layer's weights that biases and norms can be, in small models too."""
OF_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


class UnknownShape(ValueError):
    """Refusal for a model whose sizes only vLLM knows; the message is the reason."""


@dataclass(frozen=True)
class Family:
    """Keys and defaults of one kind of config.json."""

    ffn: str = "intermediate_size"
    ffn_matrices: int = 3
    tied: bool = False
    """Value that counts if the file has no ``tie_word_embeddings``."""
    kv_heads: bool = True
    """True if the file has to give the number of KV heads; false if a missing number means that of
    all heads.
    """
    unused_positions: int | None = None
    """Rows of the table of positions that no token uses; None if models have no such table."""


FAMILIES = {
    "llama": Family(kv_heads=False),
    "mistral": Family(),
    "mixtral": Family(),
    "opt": Family("ffn_dim", 2, tied=True, kv_heads=False, unused_positions=2),
    "qwen2": Family(),
    "qwen3": Family(),
}
"""Families by ``model_type``."""


def read_shape(folder: Path, dtype: str) -> Model:
    """Shape of the model in `folder`, served in `dtype`.

    If there are safetensors files, their headers give the size of biases and norms, and it is
    checked that a layer has the size that follows from config.json. Raises `ConfigError` for
    missing or damaged files, `UnknownShape` for a model whose shape cannot be derived.
    """
    model = _model(read_config(folder), folder, dtype)
    weights = any(folder.glob("*.safetensors"))
    return _weighed(model, tensors(folder)) if weights else model


def facts(model: Model, max_len: int, block_tokens: int) -> ModelFacts:
    """Facts about the model as vLLM would give them, as far as fitting into a share depends on
    them.
    """
    blocks = ceil_div(max_len, block_tokens)
    return ModelFacts(
        architecture=model.title,
        quantisation="",
        runner="generate",
        layers=model.layers,
        layer_bytes=model.layer_weights * model.weight_bytes,
        fixed_bytes=model.other_weights * model.weight_bytes,
        stays=None,
        block_bytes=block_tokens * model.kv_token_bytes,
        block_runs=1,
        kv=KVGroups((KVGroup("full_attention", model.layers, block_tokens, blocks),)),
        vllm="",
    )


def _model(said: ModelConfig, folder: Path, dtype: str) -> Model:
    family = FAMILIES.get(said.model_type or "")
    if family is None:
        kind = said.model_type
        raise UnknownShape(f"its model_type is {kind!r}, known are {', '.join(FAMILIES)}")
    _check_layers_are_alike(said)
    try:
        return _of_family(said, family, folder, dtype)
    except (ZeroDivisionError, ValidationError):
        raise UnknownShape("its config.json has sizes that are none") from None


def _check_layers_are_alike(said: ModelConfig) -> None:
    """Raise `UnknownShape` for keys that change the bytes of a layer, or of a token's KV."""
    if said.quantization_config:
        raise UnknownShape("its weights are quantised")
    if said.sliding_window and said.use_sliding_window is not False:
        raise UnknownShape("it has sliding windows")
    if said.word_embed_proj_dim not in (None, said.hidden_size):
        raise UnknownShape("its embeddings have another width than its layers")


def _of_family(said: ModelConfig, family: Family, folder: Path, dtype: str) -> Model:
    heads, hidden = _size(said, "num_attention_heads"), _size(said, "hidden_size")
    kv_heads = "num_key_value_heads"
    longest = _size(said, "max_position_embeddings")
    unused = family.unused_positions
    return Model(
        title=next(iter(said.architectures or ()), str(said.model_type)),
        source=str(folder / NAME),
        layers=_size(said, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=_size(said, kv_heads, None if family.kv_heads else heads),
        head_size=_size(said, "head_dim", 0) or hidden // heads,
        ffn=_size(said, family.ffn),
        ffn_matrices=family.ffn_matrices,
        experts=_size(said, "num_local_experts", 1),
        active_experts=_size(said, "num_experts_per_tok", 1),
        vocabulary=_size(said, "vocab_size"),
        positions=0 if unused is None else longest + unused,
        tied=family.tied if said.tie_word_embeddings is None else said.tie_word_embeddings,
        weight_bytes=WEIGHT_BYTES[dtype],
        max_len=longest,
    )


def _size(said: ModelConfig, name: str, usual: int | None = None) -> int:
    """Number under the key `name`, or `usual` if the file lacks it.

    Raises `UnknownShape` if there is neither, or a list.
    """
    found = getattr(said, name)
    if isinstance(found, list):
        raise UnknownShape(f"its config.json has another {name} for each layer")
    if found is None:
        found = usual
    if found is None:
        raise UnknownShape(f"its config.json has no {name}")
    return int(found)


def _weighed(model: Model, found: Mapping[str, list[int]]) -> Model:
    """The model with the size of biases and norms by its files' headers; unchanged without headers.

    Raises `UnknownShape` if the headers contradict config.json.
    """
    layers: Counter[int] = Counter()
    for name, dimensions in found.items():
        if match := OF_LAYER.search(name):
            layers[int(match[1])] += prod(dimensions)
    if not layers:
        return model
    if len(layers) != model.layers:
        raise UnknownShape(f"its files hold {len(layers)} layers, not {model.layers}")
    vectors = max(layers.values()) - model.layer_weights
    if not 0 <= vectors <= MOST_VECTORS * model.layer_weights:
        raise UnknownShape(
            f"a layer in its files holds {max(layers.values()):,} weights, its config.json says "
            f"{model.layer_weights:,}"
        )
    return model.model_copy(update={"vectors": vectors})
