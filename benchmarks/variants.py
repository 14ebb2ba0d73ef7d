"""Policies for simulations only: Pie's swapping, and mirage with some of its rules changed or left
out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.swap import SWAP
from mirage.config import Policy
from mirage.simulate.variants import VARIANTS, Variant

AS_PUBLISHED: Mapping[str, Any] = {
    "decode_cap": False,
    "max_percent": 100,
    "keep_free": False,
    "keep_prefixes": False,
}
"""Rules with which the planner follows the paper's Algorithm 1, without the bounds that we added.
"""
ABLATIONS: Mapping[str, Mapping[str, Any]] = {
    "prefixes-first": {"keep_prefixes": False},
    "lru": {"victims": "lru"},
    "one-slot": {"stream_slots": 1},
    "two-slots": {"stream_slots": 2},
    "no-reversion": {"reversion": False},
    "uncapped": AS_PUBLISHED,
    "uncapped-one-slot": {**AS_PUBLISHED, "stream_slots": 1},
}
KNOWN: Mapping[str, Variant] = {
    **VARIANTS,
    SWAP.name: SWAP,
    **{name: Variant(name, Policy.MIRAGE, changes=of) for name, of in ABLATIONS.items()},
}
"""Variants that the laboratory compares, by name."""
