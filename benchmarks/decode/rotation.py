"""Requests that take turns in a decoding batch, in each step the same under all policies."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from mirage.tiers.blocks import Name
from mirage.tiers.contract import Key
from mirage.units import ceil_div


class Drawn(NamedTuple):
    """Numbers of tokens of one drawn request."""

    prompt: int
    output: int


@dataclass(eq=False, slots=True)
class Sequence:
    """A request that decodes: `tokens` have keys and values, `left` are still to be decoded."""

    id: bytes
    prompt: int
    tokens: int
    left: int
    blocks: list[Name] = field(default_factory=list)
    end: int = 0
    """Number of the step before which its turn in the batch ends; without meaning between turns."""


class Change(NamedTuple):
    """Difference between a step's batch and the batch before."""

    finished: list[Sequence]
    left: list[Sequence]
    """Requests whose turn has ended and that wait for another."""
    entered: list[Sequence]
    returned: list[list[Name]]
    """The blocks that each request in `entered` had before."""
    written: list[Name]
    """The last block of each list in `returned`, if the block is not full."""
    born: list[Name]
    """Blocks that the step writes for the first time: no tier has them."""


class Rotation:
    """Turns of `live` requests, of which `batch` decode at a time; after `turn` steps each goes to
    the end of the queue.

    Turns begin and end one after the other, not all at the same time. A finished request is
    replaced by a new one at the end of the queue, whose prompt is computed elsewhere, so that its
    blocks exist from its first turn on.
    """

    def __init__(
        self, drawn: Iterator[Drawn], live: int, batch: int, turn: int, block_tokens: int
    ) -> None:
        """Start with the first `live` requests in progress, evenly from just begun to almost
        ended.
        """
        self.turn, self.block_tokens = turn, block_tokens
        self._drawn, self._numbers, self.now = drawn, 0, 0
        waiting = [self._next(number / live) for number in _shuffled(live)]
        for sequence in waiting:
            self._grow(sequence, sequence.tokens)
        self.running, self.queue = waiting[:batch], deque(waiting[batch:])
        for number, sequence in enumerate(self.running, 1):
            sequence.end = ceil_div(number * turn, batch)

    def step(self) -> Change:
        """Begin the next step, and return the difference of its batch from the one before."""
        finished, left = self._depart()
        self.queue.extend(left)
        self.queue.extend(self._next(0.0) for _ in finished)
        gone = len(finished) + len(left)
        entered = [self.queue.popleft() for _ in range(gone)]
        returned = [list(sequence.blocks) for sequence in entered]
        written = [s.blocks[-1] for s in entered if s.blocks and s.tokens % self.block_tokens]
        for sequence in entered:
            sequence.end = self.now + self.turn
        self.running += entered
        born = [
            name
            for s in self.running
            if s.tokens >= len(s.blocks) * self.block_tokens
            for name in self._grow(s, s.tokens + 1)
        ]
        for sequence in self.running:
            sequence.tokens += 1
            sequence.left -= 1
        self.now += 1
        return Change(finished, left, entered, returned, written, born)

    def openings(self, steps: int) -> list[int]:
        """Steps, counted from now and below `steps`, after which a turn ends as far as the
        scheduler knows.
        """
        ends = (max(0, sequence.end - self.now) for sequence in self.running)
        return sorted(after for end in ends for after in range(end, steps, self.turn))

    def coming(self, steps: int) -> list[Sequence]:
        """Requests of the queue that may enter the batch within `steps` steps, in order. The
        scheduler knows when turns end, but not when requests end. A request may end at any step, so
        the first of the queue is always among them.
        """
        return list(islice(self.queue, len(self.openings(steps)) + 1))

    @property
    def context(self) -> int:
        """Tokens in the KV cache of the batch."""
        return sum(sequence.tokens for sequence in self.running)

    @property
    def live_blocks(self) -> int:
        """Number of KV blocks of all requests, those of the batch and those of the queue."""
        return self.batch_blocks + sum(len(sequence.blocks) for sequence in self.queue)

    @property
    def batch_blocks(self) -> int:
        return sum(len(sequence.blocks) for sequence in self.running)

    def _depart(self) -> tuple[list[Sequence], list[Sequence]]:
        finished = [s for s in self.running if s.left <= 0]
        left = [s for s in self.running if s.left > 0 and s.end <= self.now]
        self.running = [s for s in self.running if s.left > 0 and s.end > self.now]
        return finished, left

    def _next(self, done: float) -> Sequence:
        drawn = next(self._drawn)
        decoded = int(done * drawn.output)
        self._numbers += 1
        tokens, left = drawn.prompt + decoded, drawn.output - decoded
        return Sequence(b"%d" % self._numbers, drawn.prompt, tokens, left)

    def _grow(self, sequence: Sequence, tokens: int) -> list[Name]:
        """Enlarge a sequence to `tokens` tokens; returns its new blocks."""
        first, last = len(sequence.blocks), ceil_div(tokens, self.block_tokens)
        new = [Name(sequence.id, Key(b"%d" % number)) for number in range(first, last)]
        sequence.blocks += new
        return new


def _shuffled(live: int) -> list[int]:
    """Numbers below `live` in a fixed order in which neighbours are far apart, without chance."""
    step = next(s for s in range(int(live * 0.618) or 1, live + 2) if _prime_to(s, live))
    return [number * step % live for number in range(live)]


def _prime_to(one: int, other: int) -> bool:
    while other:
        one, other = other, one % other
    return one == 1
