"""Order in which tenants give their parameters away."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

Rule = Literal["mru", "lru"]

# Sort keys, ascending, made from the time at which a tenant last had work.
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
    """Return names in the order in which tenants give: idle before active, then low priority first,
    then by `rule`.

    `mru` starts with the most recently used tenant, because under round robin it runs again last,
    so its layers can stay away longest (MIRAGE, arXiv 2507.11507). `lru` is the opposite, kept for
    comparison. Ties are broken by name, so equal input gives equal output.
    """
    rank = RANKS[rule]
    ranked = sorted(candidates, key=lambda c: (c.active, c.priority, rank(c.last_busy), c.name))
    return [c.name for c in ranked]
