"""Counts of the work of the tiers below an engine's device since it started."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from mirage.tiers.contract import BlockPlace, Medium


@dataclass
class TierCounts:
    """Counts of one engine's tiers since its start; none falls."""

    hits: Counter[Medium] = field(default_factory=Counter)
    """KV blocks loaded, by where they were found."""
    tokens_from: Counter[Medium] = field(default_factory=Counter)
    """Tokens whose KV was loaded, by where it was found: `tokens_saved` of them."""
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

    def loaded(self, tokens: int, places: Sequence[BlockPlace]) -> None:
        """Count `tokens` loaded tokens of a request, divided over media by its blocks in each."""
        self.tokens_saved += tokens
        blocks = Counter(place.source for place in places)
        self.hits.update(blocks)
        left, among = tokens, len(places)
        for medium, count in blocks.items():
            share = left * count // among
            self.tokens_from[medium] += share
            left, among = left - share, among - count
