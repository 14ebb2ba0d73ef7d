"""Check of a model's folder: all files in it that are read before an engine starts."""

from __future__ import annotations

from pathlib import Path

from mirage.folder.generation import check_generation
from mirage.folder.model_config import read_config
from mirage.folder.tokenizer import check_tokenizer
from mirage.folder.weights import check_weights


def check_model(folder: Path) -> None:
    """Raises `ConfigError` with one line if the folder or a file in it is missing or invalid."""
    read_config(folder)
    check_weights(folder)
    check_tokenizer(folder)
    check_generation(folder)
