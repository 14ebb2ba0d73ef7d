"""A LoRA adapter's folder: ``adapter_config.json``, and a check of its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from mirage.config import ConfigError
from mirage.folder import reading, weights

NAME = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
OTHER_WEIGHTS = ("adapter_model.bin", "adapter_model.pt")
"""Other names of weight files; only vLLM can read their content."""

Rank = Annotated[int, Field(ge=1)]


class Adapter(BaseModel):
    """Fields of ``adapter_config.json`` that are used here; vLLM's own parser checks the rest."""

    model_config = ConfigDict(strict=True)

    r: Rank
    lora_alpha: float
    target_modules: str | list[str] | None
    rank_pattern: dict[str, Rank] | None = None
    alpha_pattern: dict[str, float] | None = None
    modules_to_save: list[str] | None = None
    bias: str | None = None
    use_rslora: bool | None = None
    use_dora: bool | None = None

    @property
    def rank(self) -> int:
        """Largest rank of any module."""
        return max([self.r, *(self.rank_pattern or {}).values()])


def read_adapter(folder: Path) -> Adapter:
    """The adapter in `folder`. Raises `ConfigError` if it is invalid, or its weights are missing or
    cut short.
    """
    if not reading.there(folder / NAME):
        raise ConfigError(f"no {NAME} in {folder}: check the path")
    adapter = reading.read(folder / NAME, Adapter)
    if reading.there(folder / WEIGHTS):
        if not weights.header(folder / WEIGHTS):
            raise ConfigError(f"{folder / WEIGHTS}: holds no tensor: fetch it again")
    elif not any((folder / name).is_file() for name in OTHER_WEIGHTS):
        raise ConfigError(f"no {WEIGHTS} in {folder}: fetch the adapter again")
    return adapter
