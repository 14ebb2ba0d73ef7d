"""Between layers and experts given away: pages are conserved, and each part is there once."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.streaming.exchange import Exchange, GivenAway, LayerPart, exchange
from mirage.streaming.expert_layout import ExpertLayout, Piece, Span
from mirage.streaming.layer_sets import nested
from mirage.streaming.residency import Expert
from mirage.streaming.transition import streamed_rings

pytestmark = pytest.mark.pure

LAYERS, COUNT = 5, 4
LAYOUT = ExpertLayout((0, 2, 3), COUNT, (Piece(1, 1), Piece(7, 2)))
"""A page is a byte. Slices of one and of two pages, with pages that are no expert's around them."""
END = 16
Mapped = set[tuple[int, int]]
"""Pages by layer and offset."""


@st.composite
def given_away(draw: st.DrawFn) -> GivenAway:
    what = draw(st.sampled_from(["absent", "layers", "experts"]))
    if what == "absent":
        return GivenAway((), {layer: set() for layer in LAYOUT.layers}, absent=True)
    if what == "layers":
        slots = draw(st.integers(1, 2))
        remapped = draw(st.integers(0, LAYERS - slots))
        rings = streamed_rings(nested(LAYERS), remapped, slots)
        return GivenAway(rings, {layer: set() for layer in LAYOUT.layers})
    experts = draw(st.integers(0, LAYOUT.most))
    some = st.sets(st.integers(0, COUNT - 1), min_size=experts, max_size=experts)
    return GivenAway((), {layer: draw(some) for layer in LAYOUT.layers})


def cold(of: GivenAway) -> list[Expert]:
    return [Expert(layer, number) for layer, numbers in of.cold.items() for number in numbers]


def pages(layer: int, spans: Iterable[Span]) -> Mapped:
    return {(layer, page) for start, nbytes in spans for page in range(start, start + nbytes)}


def own(of: GivenAway) -> Mapped:
    """Mapped pages of resident layers, by layer and offset, without the frames of slots and of
    loaded experts.
    """
    mapped: Mapped = set()
    for layer in range(LAYERS):
        if not of.away(layer):
            mapped |= pages(layer, LAYOUT.outside(of.cold.get(layer, ()), END))
    return mapped


def held(of: GivenAway) -> int:
    """Number of pages that an engine holds in all, with those of slots and of experts' frames."""
    return len(own(of)) + len(of.rings) * END + of.experts * LAYOUT.nbytes


def parts(of: Iterable[LayerPart]) -> Mapped:
    found = [page for part in of for page in sorted(pages(part.layer, part.spans))]
    assert len(found) == sum(nbytes for part in of for _, nbytes in part.spans), "no page twice"
    assert len(found) == len(set(found)), "no page twice"
    return set(found)


@given(now=given_away(), to=given_away(), data=st.data())
def test_each_part_is_where_it_shall_be_and_pages_are_conserved(now, to, data) -> None:
    framed = (
        data.draw(st.sets(st.sampled_from(cold(now)), max_size=now.experts)) if cold(now) else ()
    )
    now = GivenAway(now.rings, now.cold, framed, now.absent)
    if now.rings and to.rings:
        return  # `transition`
    change = exchange(LAYOUT, LAYERS, END, now, to)
    before = own(now)
    for one in framed:
        before |= pages(one.layer, LAYOUT.spans(one.number))
    unmapped, loaded = parts(change.unmap), parts(change.load)
    assert unmapped <= before, "only what is mapped is unmapped"
    stays = before - unmapped
    assert not loaded & stays, "only what is not mapped is mapped"
    assert stays | loaded == own(to), "then each layer has what is its own"
    assert (change.rings, change.spare) == (to.rings, to.experts)
    empty = now.experts - len(framed)
    free = len(unmapped) + len(now.rings) * END + empty * LAYOUT.nbytes
    taken = len(loaded) + len(to.rings) * END + to.experts * LAYOUT.nbytes
    assert free - taken == held(now) - held(to), "no page is lost, and none is made"


@given(now=given_away(), to=given_away())
def test_nothing_that_stays_is_loaded_again(now: GivenAway, to: GivenAway) -> None:
    if now.rings and to.rings:
        return
    change = exchange(LAYOUT, LAYERS, END, now, to)
    assert parts(change.unmap) == own(now) - own(to)
    assert parts(change.load) == own(to) - own(now)


@given(given_away())
def test_to_what_is_there_nothing_moves_but_slots(now: GivenAway) -> None:
    if not now.rings:
        assert exchange(LAYOUT, LAYERS, END, now, now) == Exchange([], [], now.rings, now.experts)


def test_the_picture_of_the_module_is_true() -> None:
    layout = ExpertLayout((0, 1, 2), 4, (Piece(1, 1),))
    now = GivenAway((), {0: {3}, 1: {2}, 2: {1}}, [Expert(0, 3)])
    to = GivenAway(streamed_rings([0, 2, 1], 1, 1), {0: set(), 1: set(), 2: set()})
    rest, e0, e1, e2, e3 = ((page, 1) for page in range(5))
    assert exchange(layout, 3, 5, now, to) == Exchange(
        unmap=[
            LayerPart(0, [e3, joined(rest, e0, e1, e2)]),
            LayerPart(2, [joined(rest, e0), joined(e2, e3)]),
        ],
        load=[LayerPart(1, [e2])],
        rings=[[0, 2]],
        spare=0,
    )


def joined(*spans: Span) -> Span:
    return spans[0][0], sum(nbytes for _, nbytes in spans)
