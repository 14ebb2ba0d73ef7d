"""Where the requests of one engine are, and the KV blocks that they hold.

A request that has arrived waits. Once admitted it runs, perhaps after blocks of it were loaded: its
prompt is computed, then it decodes in the batch, and while it lacks a block it may be held. Who is
preempted waits again, before all others. Nothing here knows what memory there is, or how long
anything takes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain, islice

from mirage.facts import KVGroup
from mirage.simulate.batch import Batch, SimulatedRequest
from mirage.simulate.reuse import Reuse


class Queues:
    """Requests in the order of `arrivals`, with KV blocks of one `group`."""

    def __init__(
        self, arrivals: Iterator[SimulatedRequest], group: KVGroup, reuse: Reuse | None = None
    ) -> None:
        self.batch = Batch(group.block_tokens)
        self.reuse = reuse or Reuse()
        self.running: dict[SimulatedRequest, None] = {}
        """In the order of admission: all that decode, and those of the next two."""
        self.prefilling: deque[SimulatedRequest] = deque()
        self.loading: dict[SimulatedRequest, None] = {}
        """Admitted, with blocks, and waiting for what comes up from below."""
        self.held: list[SimulatedRequest] = []
        self.waiting: deque[SimulatedRequest] = deque()
        self.late: list[SimulatedRequest] = []
        """In the batch, and not in the step before."""
        self.emitted = 0
        """When the batch's newest tokens came, in picoseconds."""
        self._group = group
        self._arrivals = arrivals
        self._upcoming = next(arrivals, None)
        self._other_blocks = 0
        """Blocks of requests that are not in the batch."""
        self._waiting_blocks = 0
        """That the waiting requests need to start."""
        self._preempted = 0
        """Requests at the head of the queue that ran before."""

    @property
    def unfinished(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self.running or self.waiting or self.loading)

    @property
    def begun(self) -> int:
        """Requests that a turn must finish before it ends, if it drains."""
        return len(self.running) + self._preempted

    @property
    def used_blocks(self) -> int:
        """Blocks of all running requests."""
        return self.batch.blocks + self._other_blocks - self.reuse.shared

    @property
    def next_arrival(self) -> int | None:
        """When the next request comes, in picoseconds; None for never."""
        return None if self._upcoming is None else self._upcoming.arrival

    def blocks_starting(self, slots: int) -> int:
        """Blocks with which the first `slots` waiting requests can start."""
        if slots >= len(self.waiting):
            return self._waiting_blocks
        return sum(self._to_start(r) for r in islice(self.waiting, max(0, slots)))

    def check_empty(self) -> None:
        """Raises `AssertionError` if a request is left anywhere, or a block of one."""
        assert not (self.running or self.prefilling or self.held or self.waiting or self.loading)
        assert self.used_blocks == self.batch.size == self.batch.context == 0
        assert self._waiting_blocks == self._preempted == self._other_blocks == 0

    # -- waiting ------------------------------------------------------------------------

    def arrive(self, now: int) -> list[SimulatedRequest]:
        """All that have come by `now` wait; who has come since it was asked last."""
        arrived = []
        while self._upcoming is not None and self._upcoming.arrival <= now:
            self.waiting.append(self._upcoming)
            self._waiting_blocks += self._to_start(self._upcoming)
            arrived.append(self._upcoming)
            self._upcoming = next(self._arrivals, None)
        return arrived

    def come(self, request: SimulatedRequest) -> None:
        """One more, of which nobody knew; it arrives after those that were known."""
        if self._upcoming is None:
            self._upcoming = request
        else:
            self._arrivals = chain(self._arrivals, (request,))

    def admit(self, blocks: int, *, loading: bool = False) -> None:
        """The first that waits runs from now on, with `blocks` for its prompt, or loads first."""
        request = self.waiting.popleft()
        self._waiting_blocks -= self._to_start(request)
        self._preempted -= request.generated > 0
        request.blocks = blocks
        self._other_blocks += blocks
        if loading:
            self.loading[request] = None
        else:
            self._start(request)

    def loaded(self, request: SimulatedRequest) -> None:
        """It waits for no block any more."""
        del self.loading[request]
        self._start(request)

    def preempt(self) -> None:
        """The newest running request loses its blocks and waits to be computed anew."""
        request, _ = self.running.popitem()
        if request.joined >= 0:
            self._take_out(request)
        else:
            (self.held if request in self.held else self.prefilling).remove(request)
        self._put_back(request)

    def give_up_newest(self) -> bool:
        """Preempt the newest request; False if none runs."""
        if self.running:
            self.preempt()
            return True
        return False

    def _start(self, request: SimulatedRequest) -> None:
        self.running[request] = None
        self.prefilling.append(request)

    def _put_back(self, request: SimulatedRequest) -> None:
        """Before all that wait, without its blocks."""
        self._other_blocks -= request.blocks
        self.reuse.released(request)
        request.blocks = request.computed = 0
        self._preempted += request.generated > 0
        self.waiting.appendleft(request)
        self._waiting_blocks += self._to_start(request)

    def _to_start(self, request: SimulatedRequest) -> int:
        return self._group.blocks(request.known + 1)

    # -- running ------------------------------------------------------------------------

    def hold(self, free: int) -> int:
        """The newest that lack a block sit out, until `free` ones do for the rest; how many."""
        batch, before = self.batch, len(self.held)
        for request in [r for r in reversed(self.running) if r.joined >= 0]:
            if batch.blocks_due() <= free:
                break
            if batch.is_due(request):
                self._take_out(request)
                self.held.insert(0, request)
        return len(self.held) - before

    def return_held(self, free: int) -> None:
        """Held requests for which `free` blocks are enough now join the batch again."""
        while self.held and free > self.batch.blocks_due():
            request = self.held.pop(0)
            self._other_blocks -= request.blocks
            self.batch.join(request)
            self.late.append(request)

    def decoded(self, steps: int, now: int) -> list[SimulatedRequest]:
        """The batch has made so many steps; those that finished with them are gone.

        What they leave is not `reuse`d yet: their blocks were in use up to the last step.
        """
        self.emitted = now
        finished = self.batch.advance(steps)
        for request in finished:
            del self.running[request]
        return finished

    def prefilled(self, request: SimulatedRequest) -> bool:
        """A whole prompt is in KV, and one more token has come; True if it was the last."""
        self.prefilling.remove(request)
        self._other_blocks -= request.blocks
        self.reuse.prefilled(request)
        request.generated += 1
        if request.generated == request.output:
            del self.running[request]
            self.reuse.released(request)
            return True
        self.batch.join(request)
        return False

    def _take_out(self, request: SimulatedRequest) -> None:
        """Out of the batch, with its blocks."""
        if request in self.late:
            self.late.remove(request)
        else:
            request.last = self.emitted
        self.batch.leave(request)
        self._other_blocks += request.blocks
