"""Rules for one of vLLM's arguments under MIRAGE: any value, some values, or none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """Decision about an argument."""

    OURS = "ours"
    """MIRAGE sets it from its own configuration; a user must not give it."""
    WORKS = "works"
    """Served with any value that vLLM takes."""
    REFUSED = "refused"
    """Refused, except with the values or keys that the rule names."""


@dataclass(frozen=True)
class Rule:
    """Rule for one argument or environment variable, or for one key inside of a JSON value."""

    verdict: Verdict
    words: str
    """Text for the user: the key to use instead (ours), why any value works (works), or the reason
    of the refusal, without the argument's name (refused).
    """
    but: tuple[Any, ...] = ()
    """Values of a refused argument that are fine, mostly what MIRAGE does anyway."""
    inside: Mapping[str, Rule] = field(default_factory=dict)
    """Keys of a JSON value that have rules of their own; other keys are refused."""

    def problem(self, value: Any) -> tuple[str, Any, str] | None:
        """First part of `value` that is refused: (path inside the value, value there, reason).

        None if all of it is served.
        """
        if self.verdict is Verdict.WORKS or any(same(value, fine) for fine in self.but):
            return None
        if (parts := self._parts(value)) is None:
            return "", value, self.words
        for key, part in parts.items():
            if (rule := self.inside.get(key)) is None:
                return f".{key}", part, self.words
            if found := rule.problem(part):
                return f".{key}{found[0]}", found[1], found[2]
        return None

    def _parts(self, value: Any) -> dict[str, Any] | None:
        """Keys and values of `value`, if it is a mapping or the text of a JSON object.

        None if it is neither, or if this rule has no rules for keys.
        """
        if not self.inside:
            return None
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                return None
        return value if isinstance(value, dict) else None


def same(value: Any, fine: Any) -> bool:
    """True if both are the same on a command line.

    ``0`` equals ``0.0`` and ``"0"``, and case does not matter in text; ``true`` is not ``1``.
    """
    if isinstance(value, bool) or isinstance(fine, bool) or value is None or fine is None:
        return value is fine
    if isinstance(value, (int, float)) and isinstance(fine, (int, float)):
        return value == fine
    if isinstance(value, (list, dict)) or isinstance(fine, (list, dict)):
        return bool(value == fine)
    return str(value).lower() == str(fine).lower()


def ours(use: str, *names: str) -> dict[str, Rule]:
    """Table of arguments that MIRAGE sets from its configuration; `use` is the key to use
    instead.
    """
    return dict.fromkeys(names, Rule(Verdict.OURS, use))


def works(why: str, *names: str) -> dict[str, Rule]:
    """Table of arguments that may have any value; `why` is the reason that users read."""
    return dict.fromkeys(names, Rule(Verdict.WORKS, why))


def refused(
    why: str, *names: str, but: tuple[Any, ...] = (), inside: Mapping[str, Rule] | None = None
) -> dict[str, Rule]:
    """Table of arguments that are refused, except with the values `but` or the keys `inside`.

    `why` is the reason that users read.
    """
    return dict.fromkeys(names, Rule(Verdict.REFUSED, why, but, inside or {}))


def merged(*lists: Mapping[str, Rule]) -> dict[str, Rule]:
    """Join tables into one. Raises `ValueError` if an argument is in two of them."""
    table: dict[str, Rule] = {}
    for rules in lists:
        if twice := table.keys() & rules.keys():
            raise ValueError(f"{sorted(twice)[0]} is in two lists")
        table |= rules
    return table
