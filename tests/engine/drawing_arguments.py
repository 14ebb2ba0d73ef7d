"""Values for vLLM's arguments, drawn by the types and choices of its own parser."""

from __future__ import annotations

import argparse
import json
import random
from typing import Any

from mirage.arguments.check import JSON_LISTS, REPEATED, SWITCHES

WORDS = ("auto", "x", "a=b", "-y", "1.5", "two words", "")
NOT_FLAGS = {"help", "model_tag"}


def actions() -> list[argparse.Action]:
    """All flags of the installed vLLM's server except ``--help``."""
    from mirage.engine.arguments import server_parser

    return [a for a in server_parser()._actions if a.dest not in NOT_FLAGS]


def kind_of(action: argparse.Action) -> str:
    """Kind of a flag's value: switch, bool, choice, json, dataclass, list, int, float, or text."""
    if action.dest in SWITCHES:
        return "switch"
    if isinstance(action, argparse.BooleanOptionalAction):
        return "bool"
    if action.choices:
        return "choice"
    if action.dest in JSON_LISTS | REPEATED or action.nargs == "+":
        return "list"
    name = getattr(_inner(action.type), "__name__", "str")
    known = {"int": "int", "float": "float", "loads": "json", "parse_dataclass": "dataclass"}
    return "int" if name.startswith("human_readable") else known.get(name, "text")


def _inner(reads: Any) -> Any:
    """Type behind vLLM's wrappers for types that may be None."""
    while getattr(reads, "__name__", "") in ("_optional_type", "_parse_type"):
        reads = reads.__closure__[0].cell_contents
    return reads


def drawn(action: argparse.Action, rng: random.Random) -> Any:
    """Drawn value that the flag's type allows; one in ten may be any value."""
    kind = kind_of(action)
    if rng.random() < 0.1:
        return rng.choice([None, True, "nonsense", -3, 2.5, [], {}, {"a": [1]}])
    if kind in ("switch", "bool"):
        return rng.random() < 0.5
    if kind == "choice":
        return rng.choice(list(action.choices or ()))
    if kind in ("json", "dataclass"):
        return rng.choice([{}, {"a": 1}, {"mode": 3}, {"backend": "auto"}])
    if kind == "list":
        return [str(rng.randrange(9)) for _ in range(rng.randrange(1, 4))]
    if kind == "int":
        return rng.choice([0, 1, 2, 16, 512, -1, 10**6])
    if kind == "float":
        return rng.choice([0.0, 0.5, 1.0, 2.5])
    return rng.choice([*WORDS, json.dumps({"a": 1}), 1, 0])
