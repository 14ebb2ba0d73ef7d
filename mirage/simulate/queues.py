"""Requests of one engine by their state, and the KV blocks that they hold.

A request that has arrived waits. Once admitted it runs: its prompt is computed, then it decodes in
the batch, and while it lacks a block it may be held. A preempted request waits again, before all
others. A request that loads its prefix gets blocks only for that. Once loaded it waits for the rest
of its blocks, before `waiting`, and does not count as running until it has them. This module knows
neither the memory nor any times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

from mirage.facts import KVGroup
from mirage.simulate.batch import Batch, SimulatedRequest
from mirage.simulate.reuse import Reuse
from mirage.simulate.roofline import NEVER


class Queues:
    """Requests of one engine in the order of `arrivals`, with KV blocks of one `group`. Times are
    picoseconds."""

    def __init__(
        self, arrivals: Iterator[SimulatedRequest], group: KVGroup, reuse: Reuse | None = None
    ) -> None:
        self.batch = Batch(group.block_tokens)
        self.reuse = reuse or Reuse()
        self.running: dict[SimulatedRequest, None] = {}
        """Admitted requests in the order of admission: those in the batch, in `prefilling` and in
        `held`.
        """
        self.prefilling: deque[SimulatedRequest] = deque()
        self.loading: dict[SimulatedRequest, bool] = {}
        """Requests with blocks for their prefix, in the order in which they got them; True for
        those that are loaded and have not started.
        """
        self.held: list[SimulatedRequest] = []
        self.waiting: deque[SimulatedRequest] = deque()
        self.late: list[SimulatedRequest] = []
        """Requests of the batch that were not in the step before."""
        self.emitted = 0
        """Time of the batch's newest tokens, in picoseconds."""
        self._group = group
        self._arrivals = arrivals
        self._told: deque[SimulatedRequest] = deque()
        """Requests that arrive after those of `arrivals`; they were announced during the run."""
        self._upcoming: SimulatedRequest | None
        self.next_arrival: int
        """Time at which the next request arrives, in picoseconds; `NEVER` if none is known."""
        self._expect(next(arrivals, None))
        self._other_blocks = 0
        """KV blocks of requests that are not in the batch."""
        self._waiting_blocks = 0
        """KV blocks that all waiting requests need to start."""
        self._preempted = 0
        """Number of preempted requests, which are at the head of `waiting`."""

    @property
    def unfinished(self) -> bool:
        """True if any request waits, loads its prefix or runs."""
        return bool(self.running or self.waiting or self.loading)

    @property
    def begun(self) -> int:
        """Number of requests that a turn must finish before it ends, if it drains: running and
        preempted ones.
        """
        return len(self.running) + self._preempted

    @property
    def used_blocks(self) -> int:
        """KV blocks of all running requests, and of those that load; shared ones count once."""
        return self.batch.blocks + self._other_blocks - self.reuse.shared

    def blocks_starting(self, slots: int) -> int:
        """KV blocks that the first `slots` requests lack to start; those in `loading` come
        first.
        """
        blocks = 0
        if self.loading:
            first = islice(self.loading, max(0, slots))
            blocks = sum(max(0, self._group.blocks(r.known + 1) - r.blocks) for r in first)
            slots -= len(self.loading)
        if slots >= len(self.waiting):
            return blocks + self._waiting_blocks
        return blocks + sum(r.starting for r in islice(self.waiting, max(0, slots)))

    @property
    def first_loaded(self) -> SimulatedRequest | None:
        """The loaded request that starts next; None if none is loaded."""
        if not self.loading:
            return None
        return next((request for request, there in self.loading.items() if there), None)

    @property
    def stuck(self) -> bool:
        """True if a loaded request has not started and no request runs, so that no block will
        become free.
        """
        return bool(self.loading) and not self.running and self.first_loaded is not None

    @property
    def reserved_blocks(self) -> int:
        """KV blocks that the requests in `loading` lack for their prompts: no other load may take
        them.
        """
        return sum(self.lacks(request) for request in self.loading)

    def lacks(self, request: SimulatedRequest) -> int:
        """KV blocks that a loading request still needs for its prompt."""
        return max(0, self._group.blocks(request.known) - request.blocks)

    def check_empty(self) -> None:
        """Raises `AssertionError` unless all requests and their blocks are gone."""
        assert not (self.running or self.prefilling or self.held or self.waiting or self.loading)
        assert self.used_blocks == self.batch.size == self.batch.context == 0
        assert self._waiting_blocks == self._preempted == self._other_blocks == 0

    # -- waiting ------------------------------------------------------------------------

    def arrive(self, now: int) -> list[SimulatedRequest]:
        """Queue the requests that arrive by `now`, and return those that are new."""
        arrived = []
        while (request := self._upcoming) is not None and request.arrival <= now:
            self.waiting.append(request)
            self._waits(request)
            arrived.append(request)
            self._expect(self._following())
        return arrived

    def come(self, request: SimulatedRequest) -> None:
        """Announce one more request; it arrives after all that are known."""
        if self._upcoming is None:
            self._expect(request)
        else:
            self._told.append(request)

    def abandon(self) -> list[SimulatedRequest]:
        """Return all unfinished requests and those yet to arrive. The queues end with this call."""
        left = [*self.running, *self.loading, *self.waiting]
        while self._upcoming is not None:
            left.append(self._upcoming)
            self._expect(self._following())
        return left

    def _following(self) -> SimulatedRequest | None:
        request = next(self._arrivals, None)
        return self._told.popleft() if request is None and self._told else request

    def _expect(self, request: SimulatedRequest | None) -> None:
        self._upcoming = request
        self.next_arrival = NEVER if request is None else request.arrival

    def admit(self, blocks: int, *, loading: bool = False) -> None:
        """Admit the first waiting request with `blocks` blocks: it runs, or with `loading` loads
        into them.
        """
        request = self.waiting.popleft()
        self._waiting_blocks -= request.starting
        self._preempted -= request.generated > 0
        request.blocks = blocks
        self._other_blocks += blocks
        if loading:
            self.loading[request] = False
        else:
            self._start(request)

    def loaded(self, request: SimulatedRequest) -> None:
        """Note that the request's blocks have arrived, or that its load was given up: it waits to
        start."""
        self.loading[request] = True

    def resume(self, request: SimulatedRequest) -> None:
        """Start a loaded request, with the blocks that it lacked for its prompt."""
        lacks = self.lacks(request)
        del self.loading[request]
        request.blocks += lacks
        self._other_blocks += lacks
        self._start(request)

    def preempt(self) -> None:
        """Preempt the newest running request: it loses its blocks and waits to be computed
        again.
        """
        request, _ = self.running.popitem()
        if request.joined >= 0:
            self._take_out(request)
        else:
            (self.held if request in self.held else self.prefilling).remove(request)
        request.lost = request.computed
        self._put_back(request)

    def give_up_newest(self) -> bool:
        """Take the blocks of the newest loaded request, or else of the newest running one; False if
        there is neither.
        """
        if self._give_back(self.loading):
            return True
        if self.running:
            self.preempt()
            return True
        return False

    def make_way(self) -> bool:
        """Take the blocks of the newest loaded request that is not the first of `loading`; False if
        there is none.
        """
        return self._give_back(islice(self.loading, 1, None))

    def _give_back(self, requests: Iterable[SimulatedRequest]) -> bool:
        """Take the blocks of the newest loaded request among `requests`, which then waits; False if
        there is none.
        """
        newest = next((r for r in reversed(list(requests)) if self.loading[r]), None)
        if newest is None:
            return False
        del self.loading[newest]
        self._put_back(newest)
        return True

    def _start(self, request: SimulatedRequest) -> None:
        self.running[request] = None
        self.prefilling.append(request)

    def _put_back(self, request: SimulatedRequest) -> None:
        """Put a request without its blocks in front of all that wait."""
        self._other_blocks -= request.blocks
        self.reuse.released(request)
        request.blocks = request.computed = 0
        self._preempted += request.generated > 0
        self.waiting.appendleft(request)
        self._waits(request)

    def _waits(self, request: SimulatedRequest) -> None:
        request.starting = self._group.blocks(request.known + 1)
        self._waiting_blocks += request.starting

    # -- running ------------------------------------------------------------------------

    def hold(self, free: int) -> int:
        """Hold the newest requests that lack a block, until `free` blocks are enough for the rest;
        return their number.
        """
        batch, before = self.batch, len(self.held)
        for request in [r for r in reversed(self.running) if r.joined >= 0]:
            if batch.blocks_due() <= free:
                break
            if batch.is_due(request):
                self._take_out(request)
                self.held.insert(0, request)
        return len(self.held) - before

    def return_held(self, free: int) -> None:
        """Let held requests join the batch again, as far as `free` blocks allow it."""
        while self.held and free > self.batch.blocks_due():
            request = self.held.pop(0)
            self._other_blocks -= request.blocks
            self.batch.join(request)
            self.late.append(request)

    def decoded(self, steps: int, now: int) -> list[SimulatedRequest]:
        """Advance the batch by `steps` steps; remove and return the requests that finished.

        Their blocks are not released to `reuse` here, because they were in use up to the last step.
        """
        self.emitted = now
        finished = self.batch.advance(steps)
        for request in finished:
            del self.running[request]
        return finished

    def prefilled(self, request: SimulatedRequest) -> bool:
        """Note that the prompt of a request is computed, and one more token generated; True if that
        was its last token.
        """
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
        """Take a request out of the batch, together with its blocks."""
        if request in self.late:
            self.late.remove(request)
        else:
            request.last = self.emitted
        self.batch.leave(request)
        self._other_blocks += request.blocks
