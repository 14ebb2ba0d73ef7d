"""A batch that steps by counters, against one that steps every request."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage.simulate.batch import Batch, SimulatedRequest
from tests.examples import examples

pytestmark = pytest.mark.pure

MOST_LENGTH = 90

joins = st.tuples(st.just("join"), st.integers(0, MOST_LENGTH), st.integers(1, MOST_LENGTH))
leaves = st.tuples(st.just("leave"), st.integers(0, 99), st.just(0))
returns = st.tuples(st.just("return"), st.integers(0, 99), st.just(0))
advances = st.tuples(st.just("advance"), st.floats(0, 1), st.just(0))
asks = st.tuples(st.just("ask"), st.floats(-0.1, 1.1), st.floats(0, 1))
events = st.lists(st.one_of(joins, joins, leaves, returns, advances, asks), min_size=8, max_size=50)
block_sizes = st.sampled_from([1, 2, 3, 5, 16, 32])


@dataclass
class Naive:
    """Simple model of a batch: a pair (tokens computed, tokens left) for each request, each stepped
    by itself.
    """

    block_tokens: int
    requests: dict[SimulatedRequest, list[int]] = field(default_factory=dict)

    @property
    def blocks(self) -> int:
        return sum(-(-computed // self.block_tokens) for computed, _ in self.requests.values())

    @property
    def context(self) -> int:
        return sum(computed for computed, _ in self.requests.values())

    def due(self) -> set[SimulatedRequest]:
        b = self.block_tokens
        return {r for r, (computed, _) in self.requests.items() if computed % b == 0}

    def next_finish(self) -> int:
        return min(left for _, left in self.requests.values())

    def step(self) -> list[SimulatedRequest]:
        for pair in self.requests.values():
            pair[0] += 1
            pair[1] -= 1
        done = sorted((r for r, (_, left) in self.requests.items() if not left), key=number)
        for request in done:
            del self.requests[request]
        return done

    def due_after(self, steps: int) -> int:
        """New blocks that are needed in the step after `steps` steps, if no request ends before."""
        lengths = (computed + steps for computed, _ in self.requests.values())
        return sum(length % self.block_tokens == 0 for length in lengths)

    def affordable(self, free: int, most: int) -> int:
        for steps in range(most):
            free -= self.due_after(steps)
            if free < 0:
                return steps
        return most


def number(request: SimulatedRequest) -> int:
    return request.number


def joining(number: int, computed: int, left: int) -> SimulatedRequest:
    """A request as it joins a batch after its prefill: its newest token is not in KV memory yet."""
    request = SimulatedRequest(number, 0, prompt=computed, output=left + 1, generated=1)
    request.computed = computed
    return request


def same(batch: Batch, naive: Naive) -> None:
    assert batch.size == len(naive.requests)
    assert batch.context == naive.context
    assert batch.blocks == naive.blocks
    assert batch.blocks_due() == len(naive.due())
    assert {r for r in naive.requests if batch.is_due(r)} == naive.due()
    if naive.requests:
        assert batch.next_finish() == naive.next_finish()


def take_out(batch: Batch, naive: Naive, request: SimulatedRequest) -> None:
    """Take a request out of both batches, and check that both know the same progress and blocks of
    it.
    """
    batch.leave(request)
    computed, to_go = naive.requests.pop(request)
    assert (request.computed, request.output - request.generated) == (computed, to_go)
    assert request.blocks == -(-computed // batch.block_tokens)
    assert request.joined == request.finish == -1


def put_in(batch: Batch, naive: Naive, request: SimulatedRequest) -> None:
    naive.requests[request] = [request.computed, request.output - request.generated]
    batch.join(request)


@given(block_tokens=block_sizes, events=events)
@examples(250)
def test_it_is_what_stepping_every_request_gives(block_tokens, events) -> None:
    batch, naive = Batch(block_tokens), Naive(block_tokens)
    outside: list[SimulatedRequest] = []
    for order, (what, some, more) in enumerate(events):
        if what == "join":
            put_in(batch, naive, joining(-order, some, more))
        elif what == "return" and outside:
            put_in(batch, naive, outside.pop(some % len(outside)))
        elif not naive.requests:
            continue
        elif what == "leave":
            outside.append(list(naive.requests)[some % len(naive.requests)])
            take_out(batch, naive, outside[-1])
        elif what == "advance":
            steps = round(some * naive.next_finish())
            finished = [r for _ in range(steps) for r in naive.step()]
            assert batch.advance(steps) == finished
            assert all(r.generated == r.output for r in finished)
        elif what == "ask":
            most = max(1, round(more * naive.next_finish()))
            free = round(some * sum(naive.due_after(steps) for steps in range(most)))
            assert max(0, batch.affordable(free, most)) == naive.affordable(free, most)
        same(batch, naive)


@given(
    block_tokens=block_sizes,
    lengths=st.lists(st.tuples(st.integers(0, 70), st.integers(1, 70)), min_size=1, max_size=12),
    free=st.integers(0, 200),
)
@settings(deadline=None)
def test_what_it_affords_it_can_take_and_one_step_more_it_cannot(block_tokens, lengths, free):
    batch = Batch(block_tokens)
    for order, (computed, to_go) in enumerate(lengths):
        batch.join(joining(order, computed, to_go))
    most, before = batch.next_finish(), batch.blocks
    steps = batch.affordable(free, most)
    if steps == most:
        return
    for _ in range(steps):
        assert not batch.advance(1)
    assert batch.blocks - before <= free
    assert batch.blocks - before + batch.blocks_due() > free


def test_of_those_that_finish_together_the_earlier_come_first() -> None:
    batch = Batch(16)
    for order in (3, 1, 2):
        batch.join(joining(order, 5, 4))
    assert [r.number for r in batch.advance(4)] == [1, 2, 3]
    assert (batch.size, batch.context, batch.blocks) == (0, 0, 0)


def test_a_request_that_rejoins_at_once_finishes_once() -> None:
    batch = Batch(4)
    request = joining(0, 3, 6)
    batch.join(request)
    for _ in range(3):
        batch.leave(request)
        batch.join(request)
    assert batch.advance(6) == [request]
    assert (batch.size, batch.blocks, request.generated) == (0, 0, 7)


def test_a_request_that_was_out_for_a_while_finishes_that_much_later() -> None:
    batch = Batch(4)
    one, other = joining(0, 3, 6), joining(1, 3, 6)
    batch.join(one)
    batch.join(other)
    batch.leave(other)
    assert batch.advance(2) == []
    batch.join(other)
    assert batch.advance(4) == [one]
    assert (batch.size, batch.next_finish()) == (1, 2)
    assert batch.advance(2) == [other]
