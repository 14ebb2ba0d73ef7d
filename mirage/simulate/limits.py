"""Limits of a simulated engine's steps, and its settings for memory, turns and reports."""

from __future__ import annotations

from dataclasses import dataclass

from mirage.config import PATIENCE_S, Kept
from mirage.facts import KVGroup
from mirage.simulate.roofline import PS


@dataclass(frozen=True)
class StepLimits:
    """Limits and settings of one engine's steps. Times are picoseconds unless a name ends in
    ``_s``.
    """

    group: KVGroup
    """The KV group of the model; a simulated model has only one."""
    max_num_seqs: int
    max_num_batched_tokens: int
    elastic: bool
    temporal: bool
    headroom_extents: int
    lookahead_steps: int
    kept: Kept
    """Rule for the KV memory that waiting requests leave free for running ones."""
    report_ps: int
    apply_ps: int
    hold_s: float = PATIENCE_S

    @property
    def block_tokens(self) -> int:
        """Tokens of a KV block."""
        return self.group.block_tokens

    @property
    def hold_ps(self) -> int:
        """Picoseconds of `hold_s` and one nanosecond, since the growth hold works with rounded
        seconds.
        """
        return int(self.hold_s * PS) + 1000
