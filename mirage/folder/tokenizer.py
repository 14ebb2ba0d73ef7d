"""The tokenizer's files and the chat template: checks that hold for every reader of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from mirage.config import ConfigError
from mirage.folder import reading

TOKENIZER, SETTINGS = "tokenizer.json", "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
NAMED_TEMPLATES = "additional_chat_templates"
OBJECTS = (
    "added_tokens.json",
    "preprocessor_config.json",
    "processor_config.json",
    "special_tokens_map.json",
    "vocab.json",
)
"""Files that hold a JSON object and have no schema of their own here."""

TokenId = Annotated[int, Field(ge=0, lt=2**32)]


class FolderFile(BaseModel):
    """Base of the schemas here. Keys that they do not name are left to transformers."""

    model_config = ConfigDict(strict=True)


class AddedToken(FolderFile):
    """A token beside the vocabulary."""

    id: TokenId
    content: str


class Tokenizer(FolderFile):
    """Fields of ``tokenizer.json`` that are checked here."""

    model: dict[str, Any]
    added_tokens: list[AddedToken] | None = None


class NamedTemplate(FolderFile):
    """One of several chat templates."""

    name: str
    template: str


class Settings(FolderFile):
    """Fields of ``tokenizer_config.json`` that are checked here."""

    tokenizer_class: str | None = None
    chat_template: str | list[NamedTemplate] | dict[str, str] | None = None
    model_max_length: int | float | None = None
    added_tokens_decoder: dict[str, Any] | None = None


class Anything(FolderFile):
    """File that may have any JSON object: only its syntax is checked."""


def check_tokenizer(folder: Path) -> None:
    """Check all tokenizer files in `folder`. Raises `ConfigError` with one line if one is
    invalid.
    """
    for name, schema in ((TOKENIZER, Tokenizer), (SETTINGS, Settings)):
        if reading.there(folder / name):
            reading.read(folder / name, schema)
    for name in OBJECTS:
        if reading.there(folder / name):
            reading.read(folder / name, Anything)
    for path in templates(folder):
        reading.read_text(path)


def templates(folder: Path) -> list[Path]:
    """Chat templates that are files of their own. Raises `ConfigError` if they cannot be listed."""
    own = [folder / TEMPLATE] if reading.there(folder / TEMPLATE) else []
    try:
        return own + sorted((folder / NAMED_TEMPLATES).glob("*.jinja"))
    except OSError as error:
        raise ConfigError(f"{folder / NAMED_TEMPLATES}: {error.strerror}: allow it") from None
