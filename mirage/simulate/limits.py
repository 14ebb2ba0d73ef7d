"""Limits of a simulated engine's steps, and the way in which it is driven."""

from __future__ import annotations

from dataclasses import dataclass

from mirage.config import PATIENCE_S, Kept
from mirage.facts import KVGroup
from mirage.simulate.roofline import PS


@dataclass(frozen=True)
class StepLimits:
    """Tokens, requests and steps; times in picoseconds but where they say seconds."""

    group: KVGroup
    """A simulated model has one."""
    max_num_seqs: int
    max_num_batched_tokens: int
    elastic: bool
    temporal: bool
    headroom_extents: int
    lookahead_steps: int
    kept: Kept
    """KV memory that newcomers leave free for running requests."""
    report_ps: int
    apply_ps: int
    hold_s: float = PATIENCE_S

    @property
    def block_tokens(self) -> int:
        """Tokens of a KV block."""
        return self.group.block_tokens

    @property
    def hold_ps(self) -> int:
        """A nanosecond more, since the growth hold counts in seconds that are rounded."""
        return int(self.hold_s * PS) + 1000
