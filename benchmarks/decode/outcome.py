"""The machine that a batch decodes on, and what a run of steps did there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.decode.places import Sizes
from mirage.simulate.hierarchy import Speed


@dataclass(frozen=True)
class Machine:
    """Places of each tier, links, and how long steps take: picoseconds by sequences and context."""

    sizes: Sizes
    host: Speed
    ssd: Speed | None
    compute_ps: Callable[[int, int], int]
    layers: int


@dataclass
class Outcome:
    """Result of a run of steps. Durations are picoseconds of a step and of its wait for blocks."""

    durations: list[int] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)
    tokens: int = 0
    found: Counter[str] = field(default_factory=Counter)
    """Blocks that requests had when their turns began, by where those lay."""
    below: Counter[int] = field(default_factory=Counter)
    """Blocks that were not on the device all the time, by their number in the request."""
    blocks_up: int = 0
    blocks_down: int = 0
    crowded_steps: int = 0
    """In which the link could not bring all in time that turns were known to need."""

    def add(self, duration: int, computed: int, tokens: int) -> None:
        """One more step."""
        self.durations.append(duration)
        self.computed.append(computed)
        self.tokens += tokens
