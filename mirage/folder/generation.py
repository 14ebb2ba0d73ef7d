"""``generation_config.json``: the sampling defaults of a model, for requests that do not set
them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from mirage.folder import reading

NAME = "generation_config.json"

TokenId = Annotated[int, Field(ge=-1, lt=2**32)]


class Generation(BaseModel):
    """Fields that vLLM reads; vLLM itself checks the range of each number."""

    model_config = ConfigDict(strict=True)

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    max_new_tokens: int | None = None
    bos_token_id: TokenId | list[TokenId] | None = None
    eos_token_id: TokenId | list[TokenId] | None = None
    pad_token_id: TokenId | list[TokenId] | None = None


def check_generation(folder: Path) -> None:
    """Check ``generation_config.json`` in `folder`, if there is one. Raises `ConfigError` with one
    line if it is invalid.
    """
    if reading.there(folder / NAME):
        reading.read(folder / NAME, Generation)
