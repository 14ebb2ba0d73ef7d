"""Files of a model that are fetched: safetensors, configuration, tokenizer, templates. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Protocol, TypeVar

SAID = re.compile(
    r"\w[\w.+-]*\.(?:json|model|txt|jinja|tiktoken)"
    r"|additional_chat_templates/\w[\w.+-]*\.jinja"
    r"|\d+_\w+/config\.json",
    re.ASCII,
)
"""Files of configuration, tokenizers and chat templates, and settings of the modules behind an
embedding model.
"""
WEIGHTS = re.compile(r"(?:\d+_\w+/)?\w[\w.+-]*\.safetensors", re.ASCII)
CODE = re.compile(r"[A-Za-z_]\w*\.py", re.ASCII)
UNSAFE = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack", ".gguf")
"""Suffixes of other weight files, which are not fetched. Pickles among them can run code."""


class Pathed(Protocol):
    """A file with its path in a repository."""

    @property
    def path(self) -> str: ...


Each = TypeVar("Each", bound=Pathed)


def said(files: Sequence[Each], *, code: bool) -> list[Each]:
    """Files that are read before the weights; Python files only with `code`."""
    kinds = (SAID, CODE) if code else (SAID,)
    return [file for file in files if any(kind.fullmatch(file.path) for kind in kinds)]


def weights(files: Sequence[Each], indexed: Collection[str] | None) -> list[Each]:
    """Files of weights. Of those in the top folder only the `indexed` ones, or all if that is None.

    Raises `ValueError` with the reason if there are none, or if a file of the index is missing.
    """
    found = [file for file in files if WEIGHTS.fullmatch(file.path)]
    if indexed is not None:
        names = {file.path for file in found}
        if missing := sorted(set(indexed) - names):
            raise ValueError(
                f"its index names {missing[0]!r}, which it does not have: name another revision"
            )
        found = [file for file in found if "/" in file.path or file.path in indexed]
    if any("/" not in file.path for file in found):
        return found
    others = [file.path for file in files if file.path.endswith(UNSAFE)]
    if not others:
        raise ValueError("it has no *.safetensors, so no weights: name a model that has")
    raise ValueError(
        f"it has no *.safetensors, only such as {others[0]!r}; pickles can run code, so no other "
        "weights are fetched: name a revision or a model with safetensors"
    )
