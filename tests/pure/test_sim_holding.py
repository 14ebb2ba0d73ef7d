"""The way of one engine's memory to an allotment, and the layers that are loaded for it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage.control.targets import unnumbered
from mirage.geometry import footprint
from mirage.protocol import Allotment, ModelShape
from mirage.simulate.build import copies_of
from mirage.simulate.holding import SimulatedMemory
from mirage.simulate.roofline import LAYER_SETS
from mirage.streaming.layer_sets import even, nested
from tests.examples import examples

pytestmark = pytest.mark.pure

MOST = 40
shapes = st.builds(
    ModelShape,
    layers=st.integers(4, 48),
    layer_bytes=st.integers(1, 400),
    fixed_bytes=st.integers(0, 500),
    extent_bytes=st.integers(1, 400),
    extent_blocks=st.integers(1, 5),
    block_tokens=st.just(16),
    max_extents=st.just(MOST),
    min_extents=st.just(1),
)
targets = st.lists(
    st.tuples(st.floats(0, 1), st.sampled_from([1, 2]), st.integers(1, MOST), st.floats(0, 1)),
    min_size=1,
    max_size=12,
)


class Recorded:
    """Stand-in that answers a change of layers with a number of copies (`count`), and records each
    call: layers and slots before and after.
    """

    def __init__(self, count: int = 3) -> None:
        self.count = count
        self.asked: list[tuple[tuple[int, int], tuple[int, int]]] = []

    def __call__(self, before: tuple[int, int], after: tuple[int, int]) -> int:
        self.asked.append((before, after))
        return self.count


def state(holding: SimulatedMemory) -> tuple[int, int, int]:
    return holding.layers_remapped, holding.stream_slots, holding.extents


def allotment(
    shape: ModelShape, revision: int, layers_remapped: int, stream_slots: int, extents: int
) -> Allotment:
    return Allotment(
        revision, layers_remapped, stream_slots, extents, footprint(shape, layers_remapped, extents)
    )


SHAPE = ModelShape(40, 100, 50, 30, 4, 16, MOST, 1, 40)


def holding(extents=10, copies=None) -> SimulatedMemory:
    return SimulatedMemory(SHAPE, unnumbered(SHAPE, 0, 1, extents), copies or Recorded())


# -- settling ---------------------------------------------------------------------------


@given(shape=shapes, start=st.integers(1, MOST), targets=targets, scattered=st.booleans())
@examples(300)
def test_every_round_gives_before_it_takes_and_keeps_what_is_used(
    shape, start, targets, scattered
) -> None:
    """Passes lead to random allotments while some blocks are in use, some of them before the last
    allotment is reached. Each round gives before it takes, and never takes blocks in use.
    """
    holding = SimulatedMemory(shape, unnumbered(shape, 0, 1, start), Recorded(), scattered)
    for revision, (part, stream_slots, extents, use) in enumerate(targets, start=1):
        target = allotment(shape, revision, round(part * (shape.layers - 3)), stream_slots, extents)
        assert holding.aim(target)
        for used in (round(use * max(0, holding.blocks)), 0) if revision % 2 else (0,):
            before, held, busy = state(holding), holding.held_bytes, holding.extents_of(used)
            moved, _ = holding.reconcile(used)
            assert moved == (before != state(holding))
            assert holding.extents >= min(before[2], max(busy, 1)), "in use, and given"
            assert holding.held_bytes <= max(held, target.grant_bytes)
            _is_between(before, holding, target, busy)
            _took_all_it_could(before, holding, target)
            _says_whether_it_settled(holding, target)
            if not scattered:  # what is in use lies denser in fewer extents
                assert holding.reconcile(used) == (False, 0), "a second round finds nothing to do"
        assert holding.reconciled, "with nothing in use all can be given"


def _is_between(before, holding, target, busy) -> None:
    layers_remapped, _, extents = before
    assert (
        min(layers_remapped, target.layers_remapped)
        <= holding.layers_remapped
        <= max(layers_remapped, target.layers_remapped)
    )
    low, high = sorted((extents, target.kv_extents))
    assert low <= holding.extents <= high
    if target.layers_remapped > layers_remapped:
        assert holding.layers_remapped == target.layers_remapped, "layers are always given at once"
    if target.kv_extents < extents:
        assert holding.extents == max(target.kv_extents, min(busy, extents))
    stream_slots = (
        target.stream_slots if holding.layers_remapped == target.layers_remapped else before[1]
    )
    assert holding.stream_slots == (stream_slots if holding.layers_remapped else 0)


def _took_all_it_could(before, holding, target) -> None:
    spare = target.grant_bytes - holding.held_bytes
    if holding.extents < target.kv_extents:
        assert spare < holding.shape.extent_bytes
    if holding.layers_remapped > target.layers_remapped:
        assert spare < holding.shape.layer_bytes
    if holding.extents > before[2] or holding.layers_remapped < before[0]:
        assert spare >= 0, "taken, and not granted"


def _says_whether_it_settled(holding, target) -> None:
    assert holding.reconciled == (
        (holding.layers_remapped, holding.extents) == (target.layers_remapped, target.kv_extents)
    )
    usable = min(holding.extents, target.kv_extents)
    assert holding.blocks == usable * holding.shape.extent_blocks - 1


def test_only_newer_allotments_are_adopted() -> None:
    made = holding()
    assert made.aim(allotment(SHAPE, 3, 0, 1, 12))
    for revision in (3, 2, 0):
        assert not made.aim(allotment(SHAPE, revision, 0, 1, 5))
    assert made.revision == 3
    made.reconcile(0)
    assert made.extents == 12


def test_blocks_that_shall_go_may_not_be_allocated_any_more() -> None:
    made = holding(extents=10)
    made.aim(allotment(SHAPE, 1, 0, 1, 4))
    made.reconcile(used_blocks=30)
    assert (made.extents, made.blocks, made.reconciled) == (8, 15, False)


@given(used=st.integers(0, 200), per_extent=st.integers(1, 9))
def test_busy_extents_hold_the_used_blocks_and_the_null_block(used, per_extent) -> None:
    shape = ModelShape(40, 100, 50, 30, per_extent, 16, MOST, 1, 40)
    busy = SimulatedMemory(shape, unnumbered(shape, 0, 1, 10), Recorded()).extents_of(used)
    if used:
        assert (busy - 1) * per_extent < used + 1 <= busy * per_extent
    else:
        assert busy == 0


@given(used=st.integers(1, 200), extents=st.integers(1, MOST), per_extent=st.integers(1, 9))
def test_scattered_blocks_keep_more_extents_and_never_more_than_there_are(
    used, extents, per_extent
) -> None:
    shape = ModelShape(40, 100, 50, 30, per_extent, 16, MOST, 1, 40)
    dense, scattered = (
        SimulatedMemory(shape, unnumbered(shape, 0, 1, extents), Recorded(), way).extents_of(used)
        for way in (False, True)
    )
    assert dense <= scattered <= max(dense, extents, 1)
    if per_extent == 1:
        assert scattered == dense


def test_layers_come_back_one_by_one_as_the_grant_allows() -> None:
    made = holding(extents=10)
    made.aim(allotment(SHAPE, 1, 6, 1, 30))
    made.reconcile(0)
    made.aim(allotment(SHAPE, 2, 0, 2, 10))
    made.reconcile(4 * 20 - 1)  # twenty extents stay: ten of 30 bytes more than granted
    assert state(made) == (3, 1, 20)
    made.reconcile(0)
    assert state(made) == (0, 0, 10), "no layer streams, so there is no slot"


# -- copies -----------------------------------------------------------------------------


@given(targets=targets)
@settings(deadline=None)
def test_copies_are_counted_once_for_each_round_that_moves(targets) -> None:
    copies = Recorded()
    made = SimulatedMemory(SHAPE, unnumbered(SHAPE, 0, 1, 10), copies)
    for revision, (part, stream_slots, extents, _) in enumerate(targets, start=1):
        made.aim(allotment(SHAPE, revision, round(part * 37), stream_slots, extents))
        before = state(made)
        moved, loaded = made.reconcile(0)
        assert loaded == (3 if moved else 0)
        if moved:
            assert copies.asked.pop() == (before[:2], state(made)[:2])
    assert not copies.asked


remapped_counts = st.integers(0, 37)
pairs = st.tuples(remapped_counts, st.sampled_from([1, 2]))


@given(sets=st.sampled_from(["nested", "even"]), before=pairs, after=pairs)
def test_layers_are_loaded_that_were_streamed_and_are_so_no_more(sets, before, after) -> None:
    order = {"nested": lambda m: nested(40)[:m], "even": lambda m: even(40, m)}[sets]
    (was, slots), (becomes, then) = before, after
    streamed = {layer for layer in order(was + slots) if was}
    still = {layer for layer in order(becomes + then) if becomes}
    assert copies_of(LAYER_SETS[sets], 40)(before, after) == len(streamed - still)


@given(before=pairs, more=st.integers(0, 10))
def test_nested_sets_load_nothing_to_give_more(before, more) -> None:
    layers_remapped, stream_slots = before
    assert (
        copies_of(LAYER_SETS["nested"], 40)(before, (min(37, layers_remapped + more), stream_slots))
        == 0
    )


def test_even_sets_move_where_nested_ones_do_not() -> None:
    assert copies_of(LAYER_SETS["nested"], 40)((4, 1), (5, 1)) == 0
    assert copies_of(LAYER_SETS["even"], 40)((4, 1), (5, 1)) == 4


@pytest.mark.parametrize("sets", ["nested", "even"])
def test_all_that_is_streamed_is_loaded_in_the_end(sets) -> None:
    copies = copies_of(LAYER_SETS[sets], 40)
    assert [copies((layers_remapped, 2), (0, 1)) for layers_remapped in (0, 1, 20)] == [0, 3, 22]
    assert copies((0, 1), (20, 2)) == 0
