"""Whose parameters are given away first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

Rule = Literal["mru", "lru"]

# What to sort by, ascending, of the time at which a tenant last had work.
RANKS: dict[Rule, Callable[[float], float]] = {
    "mru": lambda last_busy: -last_busy,
    "lru": lambda last_busy: last_busy,
}


class Candidate(msgspec.Struct, frozen=True):
    """A tenant that could give layers."""

    name: str
    active: bool
    priority: int
    last_busy: float
    """Time at which the tenant last had work, in seconds; -inf for never."""


def order(candidates: Iterable[Candidate], rule: Rule = "mru") -> list[str]:
    """Names in the order in which they give: idle ones, then low priorities, then by `rule`.

    `mru` starts with the most recently used, because under round robin that one runs again
    last and its layers can stay away longest (MIRAGE, arXiv 2507.11507). `lru` is its opposite,
    kept to be measured against. Names break ties, so equal input gives equal output.
    """
    rank = RANKS[rule]
    ranked = sorted(candidates, key=lambda c: (c.active, c.priority, rank(c.last_busy), c.name))
    return [c.name for c in ranked]
