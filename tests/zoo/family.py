"""Family of the zoo: the model's shape, the maker of its folder, and the arguments for vLLM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VOCABULARY = 512
LAYERS = 8
HIDDEN = 128

Maker = Callable[["Family", Path], None]


@dataclass(frozen=True)
class Family:
    """One architecture with tiny random weights.

    `shape` are the fields of its transformers configuration; `maker` makes a folder that
    transformers cannot. `arguments` are vLLM's, beside those of every model here.
    """

    name: str
    model_type: str
    shape: Mapping[str, Any]
    auto: str = "AutoModelForCausalLM"
    task: str = "generate"
    """Task whose outputs are compared: generate, embed or score."""
    maker: Maker | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    spread: float = 0.1
    """Standard deviation of the random matrices."""
    seed: int = 0
    beside: Callable[[Path], Mapping[str, Any]] | None = None
    """Further arguments that name files in the model's folder."""
    architecture: str | None = None
    """Written into config.json instead of the name of the class that made the weights."""
    quantisation: str = ""
    """vLLM's name of the format, for models that it cannot start to say it."""

    def all_arguments(self, path: Path) -> dict[str, Any]:
        """All arguments of vLLM for the model in `path`."""
        return {**self.arguments, **(self.beside(path) if self.beside else {})}


def shape(*without: str, **more: Any) -> dict[str, Any]:
    """Fields of a configuration that most families have, and `more`; those named in `without` are
    left out.
    """
    fields: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 256,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    return {key: value for key, value in (fields | more).items() if key not in without}
