"""The requests that decode together, at a cost that does not grow with their number.

One counter of decode steps stands for all. A request's context is that counter plus an offset
of its own, so it needs a new KV block whenever the counter passes a certain remainder modulo
the block size, and it finishes at a count that is known when it joins. Block growth, context
and finishes of any number of steps are then sums over at most one block's remainders.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from heapq import heappop, heappush

from mirage.simulate.prefix import Prefix


@dataclass(slots=True, eq=False)
class SimulatedRequest:
    """One request. Times in picoseconds, lengths in tokens; -1 for not yet."""

    number: int
    arrival: int
    prompt: int
    output: int
    generated: int = 0
    first: int = -1
    """Time of its first token."""
    last: int = -1
    """Time of its newest token, while it is not in the batch."""
    computed: int = 0
    """Tokens with KV, while it is not in the batch."""
    blocks: int = 0
    """KV blocks, while it is not in the batch."""
    starting: int = 0
    """KV blocks with which it can start, while it waits."""
    joined: int = -1
    """The batch's counter when it joined, -1 while it is not in it."""
    finish: int = -1
    """The batch's counter when it will have finished."""
    residue: int = -1
    longest: int = 0
    """The longest gap between two of its tokens; while it is in the batch, before it joined."""
    prefix: Prefix | None = None
    """Content of its tokens, where that is known."""
    named: int = 0
    """Blocks from its first one on that others find by their names, while it runs."""

    @property
    def known(self) -> int:
        """Tokens whose KV a prefill must compute."""
        return self.prompt + self.generated


class LongestGaps:
    """The longest gap between tokens since any step: a stack of (step, gap), gaps falling."""

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._gaps: list[int] = []

    def add(self, step: int, gap: int) -> None:
        """Add `gap` picoseconds: the longest of the steps after the last added one, to `step`."""
        while self._gaps and self._gaps[-1] <= gap:
            self._gaps.pop()
            self._steps.pop()
        self._steps.append(step)
        self._gaps.append(gap)

    def since(self, step: int) -> int:
        """Gap of all later steps; 0 without one."""
        first = bisect_right(self._steps, step)
        return self._gaps[first] if first < len(self._gaps) else 0

    def clear(self) -> None:
        """Forget all requests of the batch."""
        self._steps.clear()
        self._gaps.clear()


class Batch:
    """Requests in decode, their KV blocks, and how both go on.

    One with 6 tokens in blocks of 4 needs a block at the counter's remainder 2, one with 3 tokens
    at remainder 1. So 5 steps bring the first its third block and the second, which ends, another:

    >>> batch = Batch(block_tokens=4)
    >>> batch.join(SimulatedRequest(0, arrival=0, prompt=6, output=9, computed=6))
    >>> batch.join(SimulatedRequest(1, arrival=0, prompt=3, output=5, computed=3))
    >>> batch.blocks, batch.affordable(free=1, most=9), batch.next_finish()
    (3, 2, 5)
    >>> [request.number for request in batch.advance(5)], batch.blocks, batch.context
    ([1], 3, 11)
    """

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.steps = 0
        self.size = 0
        self.context = 0
        """Tokens in KV, over all requests."""
        self.blocks = 0
        self.gaps = LongestGaps()
        self._due = [0] * (2 * block_tokens)
        """Requests that need a block at a step of each remainder; twice, for slices that wrap."""
        self._finishes: list[tuple[int, int, SimulatedRequest]] = []

    def join(self, request: SimulatedRequest) -> None:
        """`request.computed` tokens are in KV and it has at least one token to go."""
        b = self.block_tokens
        request.joined = self.steps
        request.finish = self.steps + request.output - request.generated
        request.residue = (self.steps - request.computed) % b
        self._due[request.residue] += 1
        self._due[request.residue + b] += 1
        self.size += 1
        self.context += request.computed
        self.blocks += -(-request.computed // b)
        request.blocks = 0
        heappush(self._finishes, (request.finish, request.number, request))

    def leave(self, request: SimulatedRequest) -> None:
        """Take a request out, its progress and its blocks written into it."""
        b = self.block_tokens
        done = self.steps - request.joined
        request.computed += done
        request.generated += done
        longest = self.gaps.since(request.joined)
        if longest > request.longest:
            request.longest = longest
        request.joined = request.finish = -1
        self._due[request.residue] -= 1
        self._due[request.residue + b] -= 1
        request.blocks = -(-request.computed // b)
        self.size -= 1
        self.context -= request.computed
        self.blocks -= request.blocks
        if not self.size:
            self.gaps.clear()

    def blocks_due(self) -> int:
        """Blocks that the next step needs."""
        return self._due[self.steps % self.block_tokens]

    def is_due(self, request: SimulatedRequest) -> bool:
        """True if the next step needs a block for this request."""
        return request.residue == self.steps % self.block_tokens

    def next_finish(self) -> int:
        """Steps until the first request finishes. There must be one."""
        while (entry := self._finishes[0])[2].finish != entry[0]:
            heappop(self._finishes)  # it left, and perhaps joined again
        return entry[0] - self.steps

    def affordable(self, free: int, most: int) -> int:
        """Number of the next `most` steps that find their blocks among `free`."""
        b = self.block_tokens
        if self.size * -(-most // b) <= free:
            return most
        rounds, free = divmod(free, self.size)
        start = self.steps % b
        steps = rounds * b
        for due in self._due[start : start + b]:
            if due > free or steps >= most:
                break
            free -= due
            steps += 1
        return steps if steps < most else most

    def advance(self, steps: int) -> list[SimulatedRequest]:
        """Decode `steps` steps, none beyond the next finish; returns those that finished."""
        b = self.block_tokens
        start = self.steps % b
        self.blocks += steps // b * self.size + sum(self._due[start : start + steps % b])
        self.context += steps * self.size
        self.steps += steps
        finished = []
        heap = self._finishes
        while heap and heap[0][0] <= self.steps:
            finish, _, request = heappop(heap)
            if request.finish == finish:
                self.leave(request)
                finished.append(request)
        return finished
