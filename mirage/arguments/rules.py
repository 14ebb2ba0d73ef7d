"""Rules for one of vLLM's arguments under MIRAGE: any value, some values, or none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """Treatment of an argument."""

    OURS = "ours"
    """It follows from MIRAGE's configuration."""
    WORKS = "works"
    """Any value that vLLM takes."""
    REFUSED = "refused"
    """No value but those that are named."""


@dataclass(frozen=True)
class Rule:
    """One argument, or one key inside of a JSON value."""

    verdict: Verdict
    words: str
    """Ours: what to use instead. Works: why. Refused: the reason, without the argument's name."""
    but: tuple[Any, ...] = ()
    """Values of a refused argument that are fine, mostly what MIRAGE does anyway."""
    inside: Mapping[str, Rule] = field(default_factory=dict)
    """Keys of a JSON value that have rules of their own; other keys are refused."""

    def problem(self, value: Any) -> tuple[str, Any, str] | None:
        """(path inside the value, the value there, the reason) of what is refused, if any."""
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
        """A JSON value's keys, if this rule looks inside; written as text it is JSON as well."""
        if not self.inside:
            return None
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                return None
        return value if isinstance(value, dict) else None


def same(value: Any, fine: Any) -> bool:
    """Equal as the words of a command line: ``0``, ``0.0``, ``"0"``; ``true`` is not ``1``."""
    if isinstance(value, bool) or isinstance(fine, bool) or value is None or fine is None:
        return value is fine
    if isinstance(value, (int, float)) and isinstance(fine, (int, float)):
        return value == fine
    if isinstance(value, (list, dict)) or isinstance(fine, (list, dict)):
        return bool(value == fine)
    return str(value).lower() == str(fine).lower()


def ours(use: str, *names: str) -> dict[str, Rule]:
    """Arguments that follow from the configuration; `use` is the key to use instead."""
    return dict.fromkeys(names, Rule(Verdict.OURS, use))


def works(why: str, *names: str) -> dict[str, Rule]:
    """Arguments that may have any value."""
    return dict.fromkeys(names, Rule(Verdict.WORKS, why))


def refused(
    why: str, *names: str, but: tuple[Any, ...] = (), inside: Mapping[str, Rule] | None = None
) -> dict[str, Rule]:
    """Arguments that may have the values `but` alone, or the keys `inside`."""
    return dict.fromkeys(names, Rule(Verdict.REFUSED, why, but, inside or {}))


def merged(*lists: Mapping[str, Rule]) -> dict[str, Rule]:
    """One table of all. Raises `ValueError` if an argument is in two lists."""
    table: dict[str, Rule] = {}
    for rules in lists:
        if twice := table.keys() & rules.keys():
            raise ValueError(f"{sorted(twice)[0]} is in two lists")
        table |= rules
    return table
