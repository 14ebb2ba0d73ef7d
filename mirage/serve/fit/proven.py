"""Architectures whose models gave plain vLLM's tokens while their memory moved.

The rows are data, which `benchmarks/models.py` writes from real runs. Nothing is measured here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

NOT_TRIED = "not tried"
BESIDE = ("enable_lora", "kv_cache_dtype", "model_impl", "speculative_config")
"""Arguments with which a model is computed by other code than without them."""


@dataclass(frozen=True)
class ProvenFamily:
    """Result for the models of one architecture, quantised or not. `reason` is empty if it is
    proven.
    """

    family: str
    architecture: str
    quantisation: str
    proven: bool
    prompts: int
    changes: int
    """Number of allotments that moved memory while the prompts ran."""
    reason: str
    beside: Sequence[str] = ()
    """Arguments of `BESIDE` with which it ran."""


@dataclass(frozen=True)
class Book:
    """All results, with the day and vLLM's version of the runs, and untried architectures, each
    with the tried one that the same module of vLLM builds.
    """

    vllm: str
    date: str
    rows: Sequence[ProvenFamily]
    same_parts: Mapping[str, str]
    """For each of some untried architectures the tried one that the same module of vLLM builds."""


def verdict(
    architecture: str, quantisation: str = "", arguments: Mapping[str, Any] | None = None
) -> str:
    """Verdict on `architecture` (as in config.json) with this `quantisation`, in the words of
    `mirage check`.

    An empty `quantisation` stands for plain weights. `arguments` are vLLM's, by its own names.
    """
    return judged(book(), architecture, quantisation, beside(arguments or {}))


def beside(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Arguments of `BESIDE` that are given and are not their defaults."""
    return tuple(name for name in BESIDE if arguments.get(name) not in (None, False, "auto"))


def judged(
    known: Book, architecture: str, quantisation: str = "", beside: Sequence[str] = ()
) -> str:
    """Verdict by the rows of `known`, in words: the row with this architecture, `quantisation` and
    the features in `beside`, or the nearest one. Pure."""
    tried = [row for row in known.rows if row.architecture == architecture]
    if not tried:
        relative = known.same_parts.get(architecture)
        return NOT_TRIED if relative is None else f"same parts as {relative}, {NOT_TRIED}"
    rows = [row for row in tried if row.quantisation == quantisation]
    if exact := [row for row in rows if tuple(row.beside) == tuple(beside)]:
        return _summary(known, exact)
    ways = [*([] if rows else [quantisation or "plain weights"]), *beside]
    plain = [row for row in rows or tried if not row.beside]
    said = f"; {_summary(known, plain)}" if plain else ""
    how = "as" if not rows else "with"
    return f"{NOT_TRIED} {how} {' and '.join(ways)}{said}"


def _summary(known: Book, rows: Sequence[ProvenFamily]) -> str:
    good = [row for row in rows if row.proven]
    bad = [row for row in rows if not row.proven]
    words = []
    if good:
        prompts, changes = sum(r.prompts for r in good), sum(r.changes for r in good)
        words.append(
            f"proven ({prompts} prompts, {changes} changes of memory, "
            f"vLLM {known.vllm}, {known.date})"
        )
    words += [f"not proven as {row.family}: {row.reason}" for row in bad]
    return "; ".join(words)


def read_book(text: str) -> Book:
    """Book in the JSON text of the data file."""
    data: dict[str, Any] = json.loads(text)
    rows = [ProvenFamily(**row) for row in data["rows"]]
    return Book(data["vllm"], data["date"], rows, data["same_parts"])


@cache
def book() -> Book:
    """Book with which this package was released."""
    return read_book((files("mirage.serve.fit") / "proven.json").read_text())
