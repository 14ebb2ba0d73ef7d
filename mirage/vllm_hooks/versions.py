"""Versions of vLLM that MIRAGE was tried with: those that have a table beside this file.

For a new vLLM version `make names` adds the table, and a hook whose place or parameters differ in
it goes to `mirage/engine/moved.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

FOLDER = Path(__file__).parent

Table = Mapping[str, str]
"""Names that we use, with what a vLLM says of each: parameters, or what kind of thing it is."""


def tables() -> dict[str, Table]:
    """Tables by vLLM's version, oldest first.

    A table lacks the names that its vLLM lacks. It has the parameters of functions that we call or
    replace.
    """
    files = sorted(FOLDER.glob("*.json"), key=lambda file: _number(file.stem))
    return {file.stem: json.loads(file.read_text()) for file in files}


def minors(versions: Iterable[str]) -> list[str]:
    """The first two numbers of each version, once."""
    return [*dict.fromkeys(".".join(each.split(".")[:2]) for each in versions)]


def tried(word: str = "and") -> str:
    """The versions in words, parted by a `word`."""
    return f" {word} ".join(minors(tables()))


def _number(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdigit()]
