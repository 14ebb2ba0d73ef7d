"""Points at which an engine is measured, and numbers of repeats, within its limits. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mirage.units import ceil_div

LADDER = (
    *(4, 16, 32, 64, 96, 128, 192, 256, 320, 512, 768, 1024, 1536, 2048, 3072, 4096),
    *(6144, 8192, 12288, 16384, 24576, 32768),
)
"""Tokens of prompts to choose from."""
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
MIXTURES = ((1, 0.4), (4, 0.4), (4, 0.8), (8, 0.2), (8, 0.8))
"""Decoding sequences, and the length of the prompt that is computed in the same step, divided by
that of the longest prompt.
"""
MIDDLE, LONG = 0.4, 0.93
GRAIN = 32
"""Tokens of which the longest context is a multiple, rounded down."""
RUNNING = 64
"""Tokens of the prompts of the requests that decode in mixtures."""


class SteadyLoad(NamedTuple):
    """A constant number of requests in an engine, with these lengths in tokens."""

    at_once: int
    prompt: int
    output: int

    def limited(self, limits: MeasuringLimits) -> SteadyLoad:
        """This load, cut to the limits of an engine."""
        return SteadyLoad(
            min(self.at_once, limits.sequences),
            max(1, min(self.prompt, limits.length // 2)),
            max(2, min(self.output, limits.length // 8)),
        )


FEW = SteadyLoad(2, 160, 40)
MANY = SteadyLoad(24, 16, 40)
"""Load of many requests, short enough that they fit into a small share's KV cache."""
SHORT = 16
"""Tokens of the prompts with which the time in front of an engine is measured."""


@dataclass(frozen=True)
class MeasuringLimits:
    """Limits of one engine, in sequences, tokens and KV blocks."""

    sequences: int
    length: int
    """Most tokens of prompt and output together."""
    budget: int
    """Most tokens of a step."""
    block_tokens: int
    blocks: int

    @property
    def prompt(self) -> int:
        """Tokens of the longest prompt that fits into one step and leaves room for an output
        token.
        """
        return max(1, min(self.length - 1, self.budget))

    def holds(self, sequences: int, tokens: int) -> bool:
        """True if `sequences` requests of `tokens` tokens, outputs included, can run at the same
        time.
        """
        fits = sequences * ceil_div(tokens, self.block_tokens) <= self.blocks
        return fits and tokens <= self.length and sequences <= self.sequences


@dataclass(frozen=True)
class Effort:
    """Number of points (batches of requests) that are measured for each engine, and of their
    repeats."""

    name: str
    repetitions: int
    """Number of times that all batches of an engine are measured."""
    rounds: int
    """Number of times that each prompt and mixture is measured in each repetition."""
    decode_steps: int
    load_rounds: int
    """Requests of each load, as a multiple of those in flight."""
    copies: int
    """Loads of a layer."""
    moves: int
    """Allotments that an engine acts on."""
    transfers: int
    """Copies of each size, and operations on each number of pages."""
    asks: int
    """Control messages."""
    alone: int
    """Requests to each tenant, one at a time."""
    burst: int
    bursts: int
    served_s: float
    """Seconds of each load on served engines."""
    served_repetitions: int
    groups: int
    """Most groups of engines that compute at the same time, for each group size from 2 on."""
    points: int
    """Most prompt lengths, and most batches; half as many contexts and mixtures are measured, but
    up to 2 in any case.
    """


THOROUGH = Effort(
    name="thorough",
    repetitions=4,
    rounds=3,
    decode_steps=8,
    load_rounds=4,
    copies=40,
    moves=12,
    transfers=15,
    asks=300,
    alone=12,
    burst=48,
    bursts=3,
    served_s=6.0,
    served_repetitions=2,
    groups=3,
    points=12,
)
QUICK = Effort(
    name="quick",
    repetitions=2,
    rounds=2,
    decode_steps=4,
    load_rounds=1,
    copies=20,
    moves=6,
    transfers=7,
    asks=100,
    alone=5,
    burst=16,
    bursts=1,
    served_s=1.5,
    served_repetitions=1,
    groups=1,
    points=3,
)


@dataclass(frozen=True)
class Points:
    """Batches that one engine computes while it is timed; lengths in tokens."""

    prompts: list[tuple[int, int]]
    """Prompts in a step, and tokens of each."""
    decodes: list[tuple[int, int, int]]
    """Sequences, and tokens of context and of output of each."""
    mixtures: list[tuple[int, int]]
    """Sequences that decode, and tokens of the prompt."""


def points(limits: MeasuringLimits, effort: Effort) -> Points:
    """Points within the limits: at least one prompt. Decodes are empty if not even one of them
    fits.
    """
    return Points(_prompts(limits, effort), _decodes(limits, effort), _mixtures(limits, effort))


def thinned(values: Iterable[int], most: int) -> list[int]:
    """At most `most` of the values, ascending and evenly chosen, including the least and the
    greatest.
    """
    known = sorted(set(values))
    if len(known) <= most:
        return known
    places = [round(i * (len(known) - 1) / (most - 1)) for i in range(most)]
    return [known[place] for place in sorted(set(places))]


def transfer_sizes(page: int, most: int, layers: Iterable[int], effort: Effort) -> list[int]:
    """Bytes of copies: of the powers of four times a page, and `most`, at most twice
    `effort.points`; and each size of `layers` up to `most`.
    """
    sizes = [page]
    while sizes[-1] * 4 <= most:
        sizes.append(sizes[-1] * 4)
    chosen = thinned([*sizes, most], 2 * effort.points)
    return sorted({*chosen, *(size for size in layers if size <= most)})


def _prompts(limits: MeasuringLimits, effort: Effort) -> list[tuple[int, int]]:
    longest = limits.prompt
    known = [tokens for tokens in LADDER if tokens <= longest] or [longest]
    alone = sorted({*thinned(known, effort.points), *(t for t in known if t == SHORT)})
    several = [
        (count, tokens)
        for tokens in sorted({_near(known, MIDDLE * known[-1]), known[-1]})
        for count in (2, 3)
        if count * tokens <= limits.budget and limits.holds(count, tokens + 1)
    ]
    return [(1, tokens) for tokens in alone] + several[: effort.points // 2]


def _decodes(limits: MeasuringLimits, effort: Effort) -> list[tuple[int, int, int]]:
    outputs = 2 * effort.decode_steps
    room = limits.length - outputs - 1
    if room < 1:
        return []
    known = [tokens for tokens in LADDER if tokens <= room] or [room]
    long = int(LONG * room) // GRAIN * GRAIN
    contexts = {min(SHORT, known[-1]), _near(known, MIDDLE * room), long or known[-1]}
    batches = [batch for batch in BATCHES if batch < limits.sequences] + [limits.sequences]
    batches = [batch for batch in batches if batch <= BATCHES[-1]]
    found = set()
    for context in thinned(contexts, max(2, effort.points // 2)):
        for batch in thinned(batches, effort.points):
            fitting, output = _fitting(limits, batch, context, outputs)
            if fitting:
                found.add((fitting, context, output))
    return sorted(found)


def _fitting(limits: MeasuringLimits, batch: int, context: int, outputs: int) -> tuple[int, int]:
    """The largest batch up to `batch` that can run together, and the tokens that each request must
    output; (0, 0) if none can.

    Prompts are computed over several steps, during which the first ones already decode.
    """
    while batch:
        steps = ceil_div(batch * context, max(1, limits.budget - batch))
        output = outputs + steps
        if limits.holds(batch, context + output):
            return batch, output
        batch -= ceil_div(batch, 16)
    return 0, 0


def _mixtures(limits: MeasuringLimits, effort: Effort) -> list[tuple[int, int]]:
    known = [tokens for tokens in LADDER if tokens <= limits.prompt] or [limits.prompt]
    found: dict[tuple[int, int], None] = {}
    for batch, part in MIXTURES:
        tokens = min(_near(known, part * known[-1]), limits.budget - batch)
        running = ceil_div(RUNNING + 24, limits.block_tokens) * batch
        fits = running + ceil_div(tokens + 1, limits.block_tokens) <= limits.blocks
        if batch < limits.sequences and tokens > 0 and fits and limits.length > RUNNING + 24:
            found[batch, tokens] = None
    return list(found)[: max(2, effort.points // 2)]


def _near(known: Sequence[int], wanted: float) -> int:
    return min(known, key=lambda value: abs(value - wanted))
