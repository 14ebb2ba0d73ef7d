"""Versions of vLLM that MIRAGE was tried with: each has a table beside this file.

For a new vLLM version `make names` adds the table; a hook whose place or parameters differ in it
goes to `mirage/engine/moved.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

FOLDER = Path(__file__).parent

Table = Mapping[str, str]
"""Names that we use, with what a version of vLLM has for each: the parameters of a function, else
its kind (``<class>``, ``<value>``)."""


def tables() -> dict[str, Table]:
    """Tables by vLLM's version, oldest first.

    A table has those names of vLLM that our sources use and that this version has; a function that
    we call or replace has its parameters there.
    """
    files = sorted(FOLDER.glob("*.json"), key=lambda file: _number(file.stem))
    return {file.stem: json.loads(file.read_text()) for file in files}


def minors(versions: Iterable[str]) -> list[str]:
    """Return the first two numbers of each version, without repetitions."""
    return [*dict.fromkeys(".".join(each.split(".")[:2]) for each in versions)]


def tried(word: str = "and") -> str:
    """Return the first two numbers of the tried versions, such as "0.32 and 0.33", with `word`
    between them."""
    return f" {word} ".join(minors(tables()))


def _number(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdigit()]
