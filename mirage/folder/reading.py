"""Reading one file of a folder: its text, or its JSON object checked by a schema."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from mirage.config import ConfigError
from mirage.problems import first_problem, one_line, shown
from mirage.units import MIB, size

MOST_BYTES = 256 * MIB
"""Most bytes of a file that is read as text; the largest tokenizers have some 30 MiB."""
POINTER = b"version https://git-lfs.github.com/spec/"
"""First bytes of a Git LFS pointer."""

Schema = TypeVar("Schema", bound=BaseModel)


def there(path: Path) -> bool:
    """True if `path` exists, also as a broken link or an unreadable file."""
    return os.path.lexists(path)


def openable(path: Path) -> int:
    """Size in bytes of a regular file that this user can read. Raises `ConfigError` for anything
    else, and for a Git LFS pointer.
    """
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(f"{path}: it is no regular file: put one in its place")
        with path.open("rb") as file:
            pointer = file.read(len(POINTER)) == POINTER
    except OSError as error:
        raise ConfigError(f"{path}: {_unreadable(path, error)}") from None
    if pointer:
        raise ConfigError(
            f"{path}: it is a Git LFS pointer, the file itself was not fetched: run git lfs pull"
        )
    return found.st_size


def read_text(path: Path) -> str:
    """The content of a UTF-8 file of at most `MOST_BYTES`. Raises `ConfigError` for any other
    file.
    """
    if (nbytes := openable(path)) > MOST_BYTES:
        raise ConfigError(f"{path}: it has {size(nbytes)}, {size(MOST_BYTES)} are read at most")
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise ConfigError(f"{path}: {_unreadable(path, error)}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: it is not UTF-8 ({error.reason} at {error.start})") from None


def read(path: Path, schema: type[Schema]) -> Schema:
    """The JSON object in a file, checked by `schema`. Raises `ConfigError` if the file cannot be
    read, has no JSON object, or the schema refuses it.
    """
    content = parsed(path)
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected a JSON object, found {shown(content)}")
    try:
        return schema.model_validate(content)
    except ValidationError as error:
        raise ConfigError(f"{path}: {first_problem(error, content)}") from None


def parsed(path: Path) -> Any:
    """The JSON in a file, as Python's parser, which transformers uses, reads it. Raises
    `ConfigError` if the file cannot be read or is no JSON.
    """
    text = read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be read as JSON ({error})") from None


def _unreadable(path: Path, error: OSError) -> str:
    if isinstance(error, PermissionError):
        return f"user {os.geteuid()} may not read it: allow it (chmod a+r, and a+x for its folders)"
    if isinstance(error, FileNotFoundError) and path.is_symlink():
        where = one_line(str(path.readlink()))
        return f"it is a link to {where}, which is not there: fetch the model again"
    if isinstance(error, FileNotFoundError):
        return "it is missing: fetch the model again"
    return f"it cannot be read ({error.strerror or error})"
