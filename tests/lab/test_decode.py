"""Simulated batch that decodes while its KV blocks are on several tiers: links, places of blocks,
policies of eviction and prefetch, and the oracle, than which no policy is faster.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.decode import prefetching
from benchmarks.decode.oracle import bound
from benchmarks.decode.orders import POLICIES
from benchmarks.decode.outcome import Machine, Outcome
from benchmarks.decode.places import FullError, Places, Sizes, Tier
from benchmarks.decode.rotation import Drawn, Rotation
from benchmarks.decode.run import Decode
from mirage.simulate.hierarchy import Speed
from mirage.simulate.lanes import Lane
from mirage.simulate.roofline import PS
from mirage.tiers.blocks import Name
from mirage.tiers.contract import Key
from mirage.tiers.prefetch import ahead
from tests.examples import examples

pytestmark = pytest.mark.lab

BLOCK = 1000
"""Bytes."""
NS = 1000
"""Picoseconds."""


class Case(NamedTuple):
    """A drawn batch, and the sizes and speeds of the machine that decodes it."""

    seed: int
    requests: int
    batch: int
    turn: int
    times: float
    """Blocks of all requests over those that the device holds."""
    host: float
    """Capacity of host memory, as a fraction of the most blocks that all requests have at once."""
    block_ns: int
    """A block's time on the link; a step computes for 1,000 ns and more."""
    ahead: int


cases = st.builds(
    Case,
    seed=st.integers(0, 10**6),
    requests=st.integers(8, 30),
    batch=st.integers(1, 4),
    turn=st.integers(1, 9),
    times=st.floats(1, 4),
    host=st.floats(0.05, 1),
    block_ns=st.integers(1, 800),
    ahead=st.integers(0, 6),
)
policies = st.sampled_from(sorted(POLICIES))
STEPS = 40


def drawn(seed: int) -> Iterator[Drawn]:
    rng = random.Random(seed)
    while True:
        yield Drawn(rng.randint(1, 40), rng.randint(2, 40))


def rotation(case: Case) -> Rotation:
    return Rotation(drawn(case.seed), case.requests, case.batch, case.turn, 4)


def machine(case: Case) -> tuple[Machine, int]:
    """Machine whose device is as small as the batch allows, and the number of blocks that have room
    on the device beside the batch.
    """
    peaks = rotation(case)
    live, batch = peaks.live_blocks, peaks.batch_blocks
    for _ in range(STEPS):
        peaks.step()
        live, batch = max(live, peaks.live_blocks), max(batch, peaks.batch_blocks)
    device = max(batch, int(-(-live // case.times)))
    host = max(1, int(live * case.host))
    rate = BLOCK / (case.block_ns * NS) * PS
    ssd = Speed(0, rate / 7, 10 * NS)
    sizes = Sizes(device, host, live, BLOCK)
    return Machine(sizes, Speed(0, rate, 5 * NS), ssd, compute, 4), device - batch


def compute(sequences: int, context: int) -> int:
    return (1000 + context) * NS


def decode(name: str, case: Case) -> Decode:
    made, stay = machine(case)
    return Decode(name, rotation(case), made, case.ahead, stay)


class Copy(NamedTuple):
    lane: int
    asked: int
    begin: int
    end: int


def watched(patch: pytest.MonkeyPatch) -> list[Copy]:
    """List of all copies over any link from now on."""
    made: list[Copy] = []
    real = Lane.copy

    def copy(self: Lane, now: int, nbytes: int) -> int:
        came = real(self, now, nbytes)
        end = came - self._latency_ps
        made.append(Copy(id(self), now, end - round(nbytes / self._bytes_per_s * PS), end))
        return came

    patch.setattr(Lane, "copy", copy)
    return made


@pytest.mark.parametrize("name", sorted(POLICIES))
@examples(8)
@given(case=cases)
def test_a_link_carries_one_block_at_a_time(name: str, case: Case) -> None:
    with pytest.MonkeyPatch.context() as patch:
        made = watched(patch)
        found = decode(name, case).run(STEPS)
    assert len(made) >= found.blocks_up + found.blocks_down
    for lane in {copy.lane for copy in made}:
        own = sorted(copy[1:] for copy in made if copy.lane == lane)
        spans = sorted((begin, end) for _, begin, end in own)
        assert all(earlier[1] <= later[0] for earlier, later in pairwise(spans))
        assert all(begin >= asked for asked, begin, _ in own)


@examples(30)
@given(name=policies, case=cases)
def test_every_block_lies_on_one_tier_and_none_holds_more_than_it_can(
    name: str, case: Case
) -> None:
    run = decode(name, case)
    for _ in range(STEPS):
        run.step()
        run.places.check()
        sequences = (*run.rotation.running, *run.rotation.queue)
        assert run.places.at.keys() == {block for s in sequences for block in s.blocks}


@examples(30)
@given(name=policies.filter(lambda name: not POLICIES[name].layered), case=cases)
def test_a_step_computes_when_the_batch_is_on_the_device(name: str, case: Case) -> None:
    run = decode(name, case)
    for _ in range(STEPS):
        run.step()
        start = run.now - run.outcome.computed[-1]
        for block in (block for s in run.rotation.running for block in s.blocks):
            assert run.places.at[block] is Tier.DEVICE and run.places.ready(block) <= start


def test_a_block_that_is_still_on_its_way_is_waited_for() -> None:
    """Blocks are prefetched six steps ahead over a slow link, so turns begin before all of them
    have come. Each step waits for its own.
    """
    run = decode("prefetch", Case(897, 12, 1, 2, 3.7, 1.0, 800, 5))
    late = 0
    for _ in range(STEPS):
        began, early = run.now, set(run.movement.early)
        run.step()
        start = run.now - run.outcome.computed[-1]
        blocks = [block for s in run.rotation.running for block in s.blocks]
        late += sum(block in early and run.places.ready(block) > began for block in blocks)
        assert all(run.places.ready(block) <= start for block in blocks)
    assert late, "else nothing was shown"


@examples(30)
@given(name=policies, case=cases)
def test_the_oracle_is_never_slower(name: str, case: Case) -> None:
    """The oracle ends each step no later than any order, and loads no more blocks in all."""
    made, _ = machine(case)
    best, other = bound(rotation(case), made, STEPS), decode(name, case).run(STEPS)
    assert best.computed == other.computed
    ends, others = running_sums(best.durations), running_sums(other.durations)
    assert all(early <= late for early, late in zip(ends, others, strict=True))
    assert best.blocks_up <= other.blocks_up


def running_sums(durations: list[int]) -> list[int]:
    total, sums = 0, []
    for duration in durations:
        total += duration
        sums.append(total)
    return sums


@examples(30)
@given(name=policies, case=cases)
def test_nothing_waits_where_the_device_holds_all(name: str, case: Case) -> None:
    """If the device holds all blocks, no step waits and nothing is copied. Prefetch is left out
    here: it makes room for blocks that are then not written if a request ends.
    """
    found = decode(name, case._replace(times=1.0, ahead=0)).run(STEPS)
    assert found.durations == found.computed and not found.blocks_up and not found.blocks_down


@examples(10)
@given(name=policies, case=cases)
def test_the_same_requests_give_the_same_run(name: str, case: Case) -> None:
    assert decode(name, case).run(STEPS) == decode(name, case).run(STEPS)


def typical(name: str, ahead: int = 1, block_ns: int = 100) -> Outcome:
    """Outcome of 400 steps of a batch of 4 of 40 requests, oversubscribed three times, in which one
    request changes every other step.
    """
    case = Case(7, 40, 4, 8, 3.0, 1.0, block_ns, ahead)
    made, stay = machine(case)
    return Decode(name, rotation(case), made, ahead, stay).run(400)


def test_blocks_that_come_early_need_not_be_waited_for() -> None:
    demanded, early = typical("prefetch", ahead=0), typical("prefetch", ahead=2)
    assert demanded.found["early"] == 0 < early.found["early"]
    assert sum(early.durations) < sum(demanded.durations)


def test_a_link_that_is_too_slow_hides_nothing_from_the_bound() -> None:
    """Steps lack more blocks than the link can load, and last much longer than their compute.
    Prefetch counts such steps as crowded.
    """
    slow = typical("prefetch", ahead=2, block_ns=2000)
    assert slow.crowded_steps > 0
    assert sum(slow.durations) > 1.5 * sum(slow.computed)


def test_the_next_layers_blocks_come_while_a_layer_computes() -> None:
    """The blocks of later layers load while a layer computes. A step waits for the first layer's
    only, unless loading takes longer than computing.
    """
    run = decode("attention", Case(1, 8, 2, 3, 1.0, 1.0, 1, 0))
    assert run._layered(0, 400, 1000) == 1000 + 400 // 4
    assert run._layered(0, 4000, 1000) == 4000 + 1000 // 4
    assert run._layered(0, 0, 1000) == 1000


def test_blocks_come_in_the_order_of_the_queue() -> None:
    case = Case(3, 20, 2, 1, 3.0, 1.0, 100, 4)
    made, _ = machine(case)
    turns, places = rotation(case), Places(made.sizes, made.host, made.ssd)
    for sequence in (*turns.running, *turns.queue):
        for block in sequence.blocks:
            places.put(block, Tier.HOST)
    coming = turns.coming(4)
    found = list(ahead(coming, lambda s: prefetching.lacking(s, places), 10**6))
    assert [s.id for s in coming] == [s.id for s in list(turns.queue)[: 2 * 3 + 1]]
    assert [block for _, block in found] == [block for s in coming for block in s.blocks]


def test_the_disks_link_bounds_its_own_blocks_alone() -> None:
    case = Case(3, 20, 2, 1, 3.0, 1.0, 100, 4)
    made, _ = machine(case)
    turns, places = rotation(case), Places(made.sizes, made.host, made.ssd)
    first, second = turns.coming(4)[:2]
    for block in (*first.blocks, *second.blocks):
        places.put(block, Tier.SSD if block in first.blocks else Tier.HOST)
    assert len(first.blocks) > 1
    far = prefetching.Far(places, 1)
    found = ahead([first, second], lambda s: prefetching.lacking(s, places), 100, far.fits)
    assert [block for _, block in found] == [first.blocks[0], *second.blocks]


@pytest.mark.parametrize(
    ("rate", "latency_us", "blocks"), [(64e9, 1, 31), (7e9, 10, 3), (50e9, 5, 24), (64e9, 5000, 0)]
)
def test_a_window_fits_so_many_blocks_of_8_mib(rate: float, latency_us: int, blocks: int) -> None:
    found = prefetching.fitting(round(4.1e-3 * PS), latency_us * 10**6, rate, 8 * 2**20)
    assert found == blocks


# -- places ------------------------------------------------------------------------------


def places(device: int, host: int, ssd: int = 0) -> Places:
    """Places of blocks on device, host and SSD. A block takes 1 µs over the device's link, and 10
    µs over the SSD's.
    """
    rate = BLOCK / 1e-6
    return Places(Sizes(device, host, ssd, BLOCK), Speed(0, rate, 0), Speed(0, rate / 10, 0))


def block(number: int) -> Name:
    return Name(b"1", Key(b"%d" % number))


US = 10**6


def test_what_came_up_goes_down_again_at_no_cost_unless_it_was_written() -> None:
    held = places(2, 2)
    held.put(block(0), Tier.HOST)
    held.put(block(1), Tier.HOST)
    assert held.move(block(0), Tier.DEVICE, 0) == US
    assert held.move(block(1), Tier.DEVICE, 0) == 2 * US
    held.written(block(1))
    assert held.move(block(0), Tier.HOST, 5 * US) == 5 * US
    assert held.move(block(1), Tier.HOST, 5 * US) == 6 * US
    assert (held.blocks_up, held.blocks_down) == (2, 1)
    held.check()


def test_a_place_is_taken_when_the_block_before_has_left() -> None:
    held = places(1, 2)
    held.put(block(0), Tier.DEVICE)
    held.put(block(1), Tier.HOST)
    assert held.move(block(0), Tier.HOST, 0) == US
    assert held.move(block(1), Tier.DEVICE, 0) == 2 * US


def test_a_tier_that_is_full_says_so() -> None:
    held = places(1, 1)
    held.put(block(0), Tier.DEVICE)
    with pytest.raises(FullError, match="DEVICE"):
        held.put(block(1), Tier.DEVICE)


def test_a_block_from_disk_takes_both_hops() -> None:
    held = places(1, 1, 1)
    held.put(block(0), Tier.SSD)
    assert held.move(block(0), Tier.DEVICE, 0) == 11 * US
