"""Transitions between sets of streamed layers: no frame is lost, each layer is backed once."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.streaming.layer_sets import nested
from mirage.streaming.transition import (
    FrameSource,
    FromPool,
    InSlot,
    LayerReturn,
    NewSlot,
    SlotLeft,
    SlotState,
    Transition,
    UnderLayer,
    deal,
    transition,
)

pytestmark = pytest.mark.pure


class Model:
    """Layers and slots by number, and the content of each memory frame."""

    def __init__(self, layers: int) -> None:
        self.order = nested(layers)
        self.layers = layers
        self.layers_remapped = 0
        self.resident: dict[int, int] = {layer: layer for layer in range(layers)}
        """Frame of each resident layer, by layer."""
        self.slots: list[tuple[int, list[int]]] = []
        """Frame of each slot, and the layers of its ring."""
        self.holds: dict[int, int | None] = {layer: layer for layer in range(layers)}
        """Layer whose weights are in each frame outside the pool, by frame; None if no layer was
        loaded.
        """
        self.frames = layers

    def change(self, remapped: int, slots: int) -> Transition:
        fresh = max(0, self.layers_remapped - remapped)
        held = [SlotState(ring, self.holds[frame]) for frame, ring in self.slots]
        absent = self.layers_remapped == self.layers
        found = transition(held, self.order, remapped, slots, fresh, absent=absent)
        new = list(range(self.frames, self.frames + fresh))
        self.frames += fresh
        self.holds |= dict.fromkeys(new)
        where: dict[FrameSource, int] = {FromPool(n): frame for n, frame in enumerate(new)}
        where |= {UnderLayer(layer): self.resident.pop(layer) for layer in found.streams}
        where |= {InSlot(n): frame for n, (frame, _) in enumerate(self.slots)}
        self.check_leaves(found)
        self.slots = []
        for slot in found.slots:
            frame = where.pop(slot.frame)
            assert slot.content is None or self.holds[frame] == slot.content
            assert slot.content is None or slot.content in slot.ring
            self.holds[frame] = slot.ring[0] if slot.content is None else slot.content
            self.slots.append((frame, list(slot.ring)))
        for one in found.returns:
            frame = where.pop(one.frame)
            assert not one.loaded or self.holds[frame] == one.layer
            self.holds[frame] = one.layer
            self.resident[one.layer] = frame
        assert {where.pop(source) for source in found.surplus} == set(self.holds) - self.used
        assert not where, "every frame is used, or the pool's"
        self.holds = {frame: self.holds[frame] for frame in self.used}
        self.layers_remapped = remapped
        return found

    def check_leaves(self, found: Transition) -> None:
        """Check that each layer which a slot backed either stays in that slot's ring, or is listed
        as leaving it.
        """
        after = {slot.kept: set(slot.ring) for slot in found.slots if slot.kept is not None}
        left = {
            SlotLeft(number, layer)
            for number, (_, ring) in enumerate(self.slots)
            for layer in ring
            if layer not in after.get(number, set())
        }
        assert set(found.leaves) == left and len(found.leaves) == len(left)
        assert set(found.ends) == set(range(len(self.slots))) - set(after)

    @property
    def used(self) -> set[int]:
        return {*self.resident.values(), *(frame for frame, _ in self.slots)}

    def check(self, slots: int) -> None:
        if self.layers_remapped == self.layers:
            assert not (self.slots or self.resident or self.holds), "no layer has a frame"
            return
        streamed = [layer for _, ring in self.slots for layer in ring]
        assert sorted([*streamed, *self.resident]) == list(range(self.layers))
        assert len(self.used) == self.layers - self.layers_remapped
        assert len(self.slots) == (slots if self.layers_remapped else 0)
        assert sorted(streamed) == sorted(self.order[: len(streamed)])
        assert len(streamed) == (self.layers_remapped + slots if self.layers_remapped else 0)


def test_the_picture_of_the_module_is_true() -> None:
    held = [SlotState([0, 1, 3], target=1)]
    assert transition(held, nested(6), 1, 1, fresh=1) == Transition(
        streams=[],
        ends=[0],
        leaves=[SlotLeft(0, 0), SlotLeft(0, 1), SlotLeft(0, 3)],
        slots=[NewSlot([0, 3], kept=None, frame=FromPool(0), content=None)],
        returns=[LayerReturn(1, InSlot(0), loaded=True)],
        surplus=[],
    )


ABSENT = -1
SETS = st.lists(st.tuples(st.integers(ABSENT, 10), st.integers(1, 2)), max_size=8)


@given(layers=st.integers(3, 12), sets=SETS, reads=st.randoms(use_true_random=False))
def test_frames_are_conserved_and_every_layer_is_backed_once(layers, sets, reads) -> None:
    model = Model(layers)
    for asked, slots in sets:
        remapped = layers if asked == ABSENT else min(asked, layers - slots)
        model.change(remapped, 0 if asked == ABSENT else slots)
        model.check(slots)
        for frame, ring in model.slots:  # steps run meanwhile
            model.holds[frame] = reads.choice(ring)


@given(layers=st.integers(4, 40), data=st.data())
def test_one_layer_more_or_less_moves_one_layer(layers: int, data) -> None:
    model = Model(layers)
    remapped = data.draw(st.integers(1, layers - 3))
    model.change(remapped, 1)
    more = model.change(remapped + 1, 1)
    assert (len(more.streams), list(more.returns), len(more.surplus)) == (1, [], 1)
    assert more.slots[0].kept == 0 and not more.leaves
    less = model.change(remapped, 1)
    assert (list(less.streams), len(less.returns), list(less.surplus)) == ([], 1, [])


@given(
    layers=st.integers(3, 12), remapped=st.integers(0, 9), slots=st.integers(1, 2), data=st.data()
)
def test_layers_that_were_absent_come_back_in_new_frames_only(
    layers, remapped, slots, data
) -> None:
    model = Model(layers)
    before = data.draw(st.integers(0, layers - 2))
    model.change(before, 1)
    away = model.change(layers, 0)
    assert (len(away.surplus), list(away.slots)) == (layers - before, [])
    remapped = min(remapped, layers - slots)
    back = model.change(remapped, slots)
    frames = [*(slot.frame for slot in back.slots), *(one.frame for one in back.returns)]
    assert sorted(frames, key=str) == sorted(
        (FromPool(n) for n in range(layers - remapped)), key=str
    )
    assert not any(one.loaded for one in back.returns) and not back.surplus
    assert len(back.returns) == (layers - remapped - slots if remapped else layers)


def test_what_is_in_place_is_not_loaded_again() -> None:
    model = Model(6)
    model.change(3, 2)
    back = model.change(0, 0)
    loaded = [one.layer for one in back.returns if one.loaded]
    assert len(back.returns) == 5 and len(loaded) == 2, "each slot held one of them"


@given(st.lists(st.integers(), unique=True), st.integers(1, 3))
def test_neighbours_never_share_a_slot(layers: list[int], slots: int) -> None:
    rings = deal(layers, slots)
    assert sorted(layer for ring in rings for layer in ring) == sorted(layers)
    for first, second in pairwise(layers):
        assert slots == 1 or not any(first in ring and second in ring for ring in rings)
