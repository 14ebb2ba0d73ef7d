"""The requests in decode, at a cost for each event that hardly grows with their number.

One counter of decode steps stands for all. A request's context is that counter plus an offset of
its own, so it needs a new KV block whenever the counter passes a certain remainder modulo the block
size, and it finishes at a count that is known when it joins. Block growth and context after any
number of steps are then sums over at most one block's remainders, and the next finish is the top of
a heap.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from heapq import heappop, heappush

from mirage.simulate.prefix import Prefix


@dataclass(slots=True, eq=False)
class SimulatedRequest:
    """One request. Times in picoseconds, lengths in tokens; -1 for a time that is not known yet."""

    number: int
    arrival: int
    prompt: int
    output: int
    generated: int = 0
    first: int = -1
    """Time of its first token; -1 before it."""
    last: int = -1
    """Time of its newest token; up to date only while the request is not in the batch."""
    computed: int = 0
    """Tokens with KV; up to date only while the request is not in the batch."""
    lost: int = 0
    """Tokens that it had computed when it was preempted last; 0 once it runs again."""
    blocks: int = 0
    """KV blocks; up to date only while the request is not in the batch."""
    starting: int = 0
    """KV blocks that must be free for it to start; of use while it waits."""
    joined: int = -1
    """The batch's step counter when the request joined; -1 while it is not in the batch."""
    finish: int = -1
    """The batch's step counter at which the request finishes; -1 while it is not in the batch."""
    residue: int = -1
    longest: int = 0
    """Longest gap between two of its tokens; while it is in the batch, the longest before it
    joined.
    """
    prefix: Prefix | None = None
    """Content of its tokens as hashes; None if it is unknown."""
    named: int = 0
    """Blocks, from its first one on, that other requests can find by content while it runs."""

    @property
    def known(self) -> int:
        """Tokens that need KV before the request decodes: the prompt, and what was generated before
        a preemption. Up to date only while the request is not in the batch.
        """
        return self.prompt + self.generated


class LongestGaps:
    """The longest gap between tokens since any given step: a stack of (step, gap) with falling
    gaps.
    """

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._gaps: list[int] = []

    def add(self, step: int, gap: int) -> None:
        """Add `gap` picoseconds, the longest in the steps after the last added one up to `step`."""
        while self._gaps and self._gaps[-1] <= gap:
            self._gaps.pop()
            self._steps.pop()
        self._steps.append(step)
        self._gaps.append(gap)

    def since(self, step: int) -> int:
        """Longest gap in picoseconds of all steps after `step`; 0 if there is none."""
        first = bisect_right(self._steps, step)
        return self._gaps[first] if first < len(self._gaps) else 0

    def clear(self) -> None:
        """Remove all gaps; called when the batch is empty."""
        self._steps.clear()
        self._gaps.clear()


class Batch:
    """Requests in decode and their KV blocks.

    A request with 6 tokens in blocks of 4 needs a block at the counter's remainder 2, a request
    with 3 tokens at remainder 1. So 5 steps bring the first its third block; the second gets its
    second block and ends:

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
        """Tokens with KV, over all requests."""
        self.blocks = 0
        self.gaps = LongestGaps()
        self._due = [0] * (2 * block_tokens)
        """Number of requests that need a block at steps of each remainder; twice in a row, so that
        a slice may wrap.
        """
        self._finishes: list[tuple[int, int, SimulatedRequest]] = []

    def join(self, request: SimulatedRequest) -> None:
        """Add a request that has `request.computed` tokens with KV and at least one token to
        generate.
        """
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
        """Remove a request, and write its progress and its blocks into it."""
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
        """KV blocks that the next step needs in total."""
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
        """Number of steps, at most `most`, whose new blocks fit into `free` blocks."""
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
        """Decode `steps` steps, which must not pass the next finish; return the requests that
        finished.
        """
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
