"""What the tiers below an engine's device did since it started."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from mirage.tiers.contract import Medium


@dataclass
class TierCounts:
    """All only grow."""

    hits: Counter[Medium] = field(default_factory=Counter)
    """KV blocks loaded, by where they came from."""
    tokens_saved: int = 0
    """Tokens whose KV was loaded instead of computed."""
    saved_s: float = 0.0
    """Seconds of steps that these would have taken, by what a token adds to a step."""
    bytes_up: int = 0
    bytes_down: int = 0
    stored_blocks: int = 0
    failed_loads: int = 0
    """Requests whose load failed; they computed anew."""
    late_loads: int = 0
    """Requests that stopped waiting for the pool."""
    failed_stores: int = 0
    """Blocks that were to be stored and were not."""
