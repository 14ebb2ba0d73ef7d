"""Counts of the work of the tiers below an engine's device since the engine started."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from mirage.tiers.contract import BlockPlace, Medium


@dataclass
class TierCounts:
    """Counts of one engine's tiers since its start. They never decrease."""

    hits: Counter[Medium] = field(default_factory=Counter)
    """Number of loaded KV blocks, by the medium where they were found."""
    tokens_from: Counter[Medium] = field(default_factory=Counter)
    """Number of tokens whose KV was loaded, by the medium where it was found; they add up to
    `tokens_saved`."""
    tokens_saved: int = 0
    """Number of tokens whose KV was loaded instead of computed."""
    saved_s: float = 0.0
    """Seconds that steps would have needed to compute the tokens in `tokens_saved`."""
    bytes_up: int = 0
    bytes_down: int = 0
    stored_blocks: int = 0
    failed_loads: int = 0
    """Number of requests whose load failed, so that they computed anew."""
    late_loads: int = 0
    """Number of requests that stopped waiting for the pool."""
    failed_stores: int = 0
    """Number of blocks whose copy to the pool failed."""

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
