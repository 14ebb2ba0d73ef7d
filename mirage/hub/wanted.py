"""Files of a model that are fetched: safetensors, and what says how to use them. Pure."""

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
"""Configuration, tokenizers, chat templates, and settings of what follows an embedding model."""
WEIGHTS = re.compile(r"(?:\d+_\w+/)?\w[\w.+-]*\.safetensors", re.ASCII)
CODE = re.compile(r"[A-Za-z_]\w*\.py", re.ASCII)
UNSAFE = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack", ".gguf")
"""Other files of weights. Pickles among them can run code."""


class Pathed(Protocol):
    """File at a path in a repository."""

    @property
    def path(self) -> str: ...


Each = TypeVar("Each", bound=Pathed)


def said(files: Sequence[Each], *, code: bool) -> list[Each]:
    """Files that are read before weights are; of Python only if its `code` is trusted."""
    kinds = (SAID, CODE) if code else (SAID,)
    return [file for file in files if any(kind.fullmatch(file.path) for kind in kinds)]


def weights(files: Sequence[Each], indexed: Collection[str] | None) -> list[Each]:
    """Files of weights; of those at the top only the `indexed`, unless there is no index.

    Raises `ValueError` with the reason why there are none, or not all.
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
