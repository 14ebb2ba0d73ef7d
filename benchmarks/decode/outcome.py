"""Machine that a batch decodes on, and the counts of a run of steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.decode.places import Sizes
from mirage.simulate.hierarchy import Speed


@dataclass(frozen=True)
class Machine:
    """Places of each tier, links, and the time of a step's compute in picoseconds, by its sequences
    and context tokens.
    """

    sizes: Sizes
    host: Speed
    ssd: Speed | None
    compute_ps: Callable[[int, int], int]
    layers: int


@dataclass
class Outcome:
    """Result of a run of steps. `durations` are the picoseconds of each step, its wait for blocks
    included; `computed` are those of its compute alone.
    """

    durations: list[int] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)
    tokens: int = 0
    found: Counter[str] = field(default_factory=Counter)
    """Blocks that requests had when their turns began, by the place where the blocks were."""
    below: Counter[int] = field(default_factory=Counter)
    """Number of blocks that had left the device since their request's turn before, counted as each
    turn begins, by the block's number in its request.
    """
    blocks_up: int = 0
    blocks_down: int = 0
    crowded_steps: int = 0
    """Number of steps in which the link could not bring the blocks of all known turns in time."""

    def add(self, duration: int, computed: int, tokens: int) -> None:
        """Add one step: its whole duration, the part of it that it computed, and its tokens."""
        self.durations.append(duration)
        self.computed.append(computed)
        self.tokens += tokens
