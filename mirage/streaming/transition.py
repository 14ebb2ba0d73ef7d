"""Change from one set of streamed layers to another: all moves are planned before any is made.
Pure.

Every layer has a permanent range of addresses; a *frame* is the memory behind one. A resident layer
has a frame of its own. The layers of a slot's *ring* share one, which holds one of them at a time.
Of six layers two are remapped, then one, with one slot; in brackets is the layer that a frame
holds:

    layers    0    1    2    3    4    5            0    1    2    3    4    5
              |    |    |    |    |    |            |    |    |    |    |    |
              +----+----)----+    |    |    ==>     +----)----)----+    |    |
              |         |         |    |            |    |    |         |    |
    frames   [1]       [2]       [4]  [5]          [0]  [1]  [2]       [4]  [5]
             slot 0                                slot  was
                                                   new   slot 0's

The slot ends, since it holds layer 1, which shall be resident: the layer keeps the frame with its
content. Layers 0 and 3 share a new slot, on the one frame that the pool gives back, and 0 is
loaded. So:

    ends     0
    leaves   SlotLeft(slot=0, layer=0), SlotLeft(0, 1), SlotLeft(0, 3)
    slots    NewSlot(ring=[0, 3], kept=None, frame=FromPool(0), content=None)
    returns  LayerReturn(layer=1, frame=InSlot(0), loaded=True)

Layers and slots are numbers. Frames are reused where possible, best in their place and with their
content. `LayerStreamer` in `transfer` applies the result.

If all layers are given away none has a frame, and there are no slots: they are *absent*. To come
back, they take every frame from the pool.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class UnderLayer:
    """Frame of a layer that has been resident until now."""

    layer: int


@dataclass(frozen=True)
class InSlot:
    """Frame of an old slot."""

    slot: int


@dataclass(frozen=True)
class FromPool:
    """Frame that the pool adds, numbered from 0."""

    number: int


FrameSource = UnderLayer | InSlot | FromPool
"""A frame, named by its place before the change."""


@dataclass(frozen=True)
class SpareFrame:
    """Frame that is free to be used."""

    source: FrameSource
    content: int | None
    """Layer whose parameters the frame holds; None for no layer."""


@dataclass(frozen=True)
class SlotState:
    """Slot before the change: the layers that share it in turn, and the one that it holds (None: no
    layer)."""

    ring: Sequence[int]
    target: int | None


@dataclass(frozen=True)
class NewSlot:
    """Slot after the change."""

    ring: Sequence[int]
    kept: int | None
    """Old slot that it continues; None for a new one."""
    frame: FrameSource
    content: int | None
    """Layer of the ring that the frame holds already; None for no layer."""


@dataclass(frozen=True)
class LayerReturn:
    """Streamed or absent layer that becomes resident."""

    layer: int
    frame: FrameSource
    loaded: bool
    """True if the frame already holds the layer's parameters."""


@dataclass(frozen=True)
class SlotLeft:
    """Layer that a slot no longer backs."""

    slot: int
    layer: int


@dataclass(frozen=True)
class Transition:
    """Change of the frames of layers; the fields are applied in their order."""

    streams: Sequence[int]
    """Resident layers that become streamed or absent: each gives up its frame."""
    ends: Sequence[int]
    """Old slots that end."""
    leaves: Sequence[SlotLeft]
    slots: Sequence[NewSlot]
    returns: Sequence[LayerReturn]
    surplus: Sequence[FrameSource]
    """Frames that go back to the pool."""


def transition(
    slots: Sequence[SlotState],
    order: Sequence[int],
    remapped: int,
    stream_slots: int,
    fresh: int,
    *,
    absent: bool = False,
) -> Transition:
    """Return the change from `slots` to the rings of `streamed_rings`.

    `fresh` is the number of frames that the pool adds: the decrease of the layers given away.
    `absent` is True if no layer has a frame now. If all layers are remapped, none has a frame
    afterwards.
    """
    rings = streamed_rings(order, remapped, stream_slots)
    wanted = set(order[: remapped + stream_slots]) if remapped else set[int]()
    kept = [_kept(slots, ring) for ring in rings]
    away = list(order) if absent else [layer for slot in slots for layer in slot.ring]
    leaving = [layer for layer in away if layer not in wanted]
    streams = sorted(wanted.difference(away))
    ends = [number for number in range(len(slots)) if number not in kept]
    spare = [SpareFrame(FromPool(number), None) for number in range(fresh)]
    spare += [SpareFrame(UnderLayer(layer), layer) for layer in streams]
    spare += [SpareFrame(InSlot(number), slots[number].target) for number in ends]
    return Transition(
        streams=streams,
        ends=ends,
        leaves=_leaves(slots, rings, kept),
        slots=[
            _slot(slots, ring, number, spare, leaving)
            for ring, number in zip(rings, kept, strict=True)
        ],
        returns=[_return(layer, spare, leaving) for layer in sorted(leaving)],
        surplus=[one.source for one in spare],
    )


def streamed_rings(order: Sequence[int], remapped: int, stream_slots: int) -> list[list[int]]:
    """Return the ring of each slot: the streamed layers that share the slot. The streamed layers
    are the first `remapped + stream_slots` of `order`, since a slot is the memory of one layer.
    Empty if no layer is remapped."""
    return deal(sorted(order[: remapped + stream_slots]), stream_slots) if remapped else []


def deal(layers: Sequence[int], stream_slots: int) -> list[list[int]]:
    """Return the ring of each slot: the layers that the slot holds one after the other, step after
    step. They are dealt out in turn, so that neighbours are in different slots."""
    return [list(layers[number::stream_slots]) for number in range(stream_slots)]


def _kept(slots: Sequence[SlotState], ring: Collection[int]) -> int | None:
    """Return the old slot whose frame holds a layer of `ring` now; of several, the one whose own
    ring shares the most layers with `ring`. None if there is none.

    The frame stays, with its content. It holds one layer, and no two rings share a layer, so no two
    keep the same slot.
    """
    holding = [number for number, slot in enumerate(slots) if slot.target in ring]
    return max(holding, key=lambda number: len(set(slots[number].ring) & set(ring)), default=None)


def _leaves(
    slots: Sequence[SlotState], rings: Sequence[Sequence[int]], kept: Sequence[int | None]
) -> list[SlotLeft]:
    """Return the layers that each old slot no longer backs: if a ring keeps the slot, those outside
    that ring, else all."""
    stay = dict(zip(kept, rings, strict=True))
    return [
        SlotLeft(number, layer)
        for number, slot in enumerate(slots)
        for layer in slot.ring
        if layer not in stay.get(number, ())
    ]


def _slot(
    slots: Sequence[SlotState],
    ring: Sequence[int],
    kept: int | None,
    spare: list[SpareFrame],
    leaving: Collection[int],
) -> NewSlot:
    if kept is not None:
        return NewSlot(ring, kept, InSlot(kept), slots[kept].target)
    frame = _pick(spare, ring, leaving)
    return NewSlot(ring, None, frame.source, frame.content)


def _return(layer: int, spare: list[SpareFrame], leaving: Collection[int]) -> LayerReturn:
    frame = _pick(spare, [layer], leaving)
    return LayerReturn(layer, frame.source, loaded=frame.content is not None)


def _pick(spare: list[SpareFrame], ring: Sequence[int], leaving: Collection[int]) -> SpareFrame:
    """Take a frame that holds a layer of `ring`, with its content; else another one, whose content
    is lost.

    That other one holds no layer of `leaving`, if possible, since a returning layer may find its
    own parameters in a frame.
    """
    for position, frame in enumerate(spare):
        if frame.content is not None and frame.content in ring:
            return spare.pop(position)
    free = (at for at, frame in enumerate(spare) if frame.content not in leaving)
    return SpareFrame(spare.pop(next(free, -1)).source, None)
