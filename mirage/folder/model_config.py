"""``config.json``: the fields that are used here, with ranges that exclude impossible values.

For most keys only transformers and vLLM know the valid values; those keys are not checked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from mirage.config import ConfigError
from mirage.folder import reading

NAME = "config.json"

Count = Annotated[int, Field(ge=0, le=2**24)]
Layers = Annotated[int, Field(ge=1, le=10_000)]
"""Number of layers. It is bounded, because vLLM builds as many as the file states."""
PerLayer = Count | list[Count]
"""A size of all layers, or one for each layer."""


class StackSizes(BaseModel):
    """Dimensions of one stack of layers; None if the file leaves the value to transformers."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())

    model_type: str | None = None
    vocab_size: Count | None = None
    hidden_size: Count | None = None
    num_hidden_layers: Layers | None = None
    num_attention_heads: PerLayer | None = None
    num_key_value_heads: PerLayer | None = None
    head_dim: PerLayer | None = None
    intermediate_size: PerLayer | None = None
    ffn_dim: PerLayer | None = None
    max_position_embeddings: Annotated[int, Field(le=2**31)] | None = None
    num_local_experts: PerLayer | None = None
    num_experts_per_tok: PerLayer | None = None
    d_model: Count | None = None
    n_embd: Count | None = None
    n_layer: Layers | None = None
    n_layers: Layers | None = None
    n_head: PerLayer | None = None
    num_layers: Layers | None = None
    encoder_layers: Count | None = None
    decoder_layers: Count | None = None


class ModelConfig(StackSizes):
    """Fields of ``config.json``."""

    architectures: list[str] | None = None
    quantization_config: dict[str, Any] | None = None
    sliding_window: Any = None
    use_sliding_window: bool | None = None
    tie_word_embeddings: bool | None = None
    word_embed_proj_dim: Count | None = None
    auto_map: dict[str, Any] | None = None
    """The model's own Python classes, by the transformers class that they replace."""
    text_config: StackSizes | None = None
    vision_config: dict[str, Any] | None = None
    audio_config: dict[str, Any] | None = None


def read_config(folder: Path) -> ModelConfig:
    """``config.json`` of `folder`. Raises `ConfigError`, also if there is no such folder."""
    check_is_folder(folder)
    return reading.read(folder / NAME, ModelConfig)


def check_is_folder(folder: Path) -> None:
    """Raises `ConfigError` if `folder` is no folder, is empty, or cannot be listed by this user."""
    try:
        found = folder.is_dir() and (next(folder.iterdir(), None), True)[1]
    except OSError as error:
        raise ConfigError(
            f"{folder}: it cannot be looked into ({error.strerror}): allow it (chmod a+rx)"
        ) from None
    if not found:
        raise ConfigError(
            f"no model folder at {folder}: correct the path or make the model first "
            "(the demonstration's: mirage models out/models)"
        )
