"""From one set of streamed layers to another: what moves where, before anything does. Pure.

Every layer has a range of addresses for good; a *frame* is the memory behind one. A resident layer
has a frame of its own. The layers of a slot's *ring* share one, which holds one of them at a time.
Of six layers two are remapped, then one, with one slot; in brackets is what a frame holds:

    layers    0    1    2    3    4    5            0    1    2    3    4    5
              |    |    |    |    |    |            |    |    |    |    |    |
              +----+----)----+    |    |    ==>     +----)----)----+    |    |
              |         |         |    |            |    |    |         |    |
    frames   [1]       [2]       [4]  [5]          [0]  [1]  [2]       [4]  [5]
             slot 0                                slot  was
                                                   new   slot 0's

The slot ends, since it holds layer 1, which is to be resident: the frame stays with what is in it.
Layers 0 and 3 share a new slot, on the one frame that the pool gives back, and 0 is loaded. So:

    ends     0
    leaves   SlotLeft(slot=0, layer=0), SlotLeft(0, 1), SlotLeft(0, 3)
    slots    NewSlot(ring=[0, 3], kept=None, frame=FromPool(0), content=None)
    returns  LayerReturn(layer=1, frame=InSlot(0), loaded=True)

Layers and slots are numbers. Frames are reused as far as they go, best where they are, with what
they hold. `LayerStreamer` in `transfer` applies the result.

With all layers given away none has a frame, and there are no slots: they are *absent*. From there
every frame is one that the pool adds.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class UnderLayer:
    """The frame of a layer that is resident until now."""

    layer: int


@dataclass(frozen=True)
class InSlot:
    """The frame of a slot."""

    slot: int


@dataclass(frozen=True)
class FromPool:
    """One of the frames that the pool adds, from 0."""

    number: int


FrameSource = UnderLayer | InSlot | FromPool
"""A frame by where it is before the change."""


@dataclass(frozen=True)
class SpareFrame:
    """A frame that is free to be used."""

    source: FrameSource
    content: int | None
    """The layer whose parameters it holds."""


@dataclass(frozen=True)
class SlotState:
    """A slot as it is: the layers that share it in turn, and the one that it holds."""

    ring: Sequence[int]
    target: int | None


@dataclass(frozen=True)
class NewSlot:
    """A slot as it shall be."""

    ring: Sequence[int]
    kept: int | None
    """The slot that goes on in it; None for one that begins."""
    frame: FrameSource
    content: int | None
    """The layer of the ring that the frame holds already."""


@dataclass(frozen=True)
class LayerReturn:
    """A streamed or absent layer that turns resident."""

    layer: int
    frame: FrameSource
    loaded: bool
    """True if the frame already holds the expert's parameters."""


@dataclass(frozen=True)
class SlotLeft:
    """A layer that a slot no longer backs."""

    slot: int
    layer: int


@dataclass(frozen=True)
class Transition:
    """A change of the frames of layers; fields in the order in which they apply."""

    streams: Sequence[int]
    """Resident layers that are streamed from now on, or absent: each gives its frame."""
    ends: Sequence[int]
    """Slots that end."""
    leaves: Sequence[SlotLeft]
    slots: Sequence[NewSlot]
    returns: Sequence[LayerReturn]
    surplus: Sequence[FrameSource]
    """Frames for the pool."""


def transition(
    slots: Sequence[SlotState],
    order: Sequence[int],
    remapped: int,
    stream_slots: int,
    fresh: int,
    *,
    absent: bool = False,
) -> Transition:
    """The way from `slots` to the first layers of `order` in `stream_slots` slots.

    `fresh` is the number of frames that the pool adds: as many as fewer layers are given away.
    `absent`: whether no layer has a frame now. They are to have none if all are remapped.
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
    """The streamed layers, by slot: the first of `order`; none if no layer is remapped."""
    return deal(sorted(order[: remapped + stream_slots]), stream_slots) if remapped else []


def deal(layers: Sequence[int], stream_slots: int) -> list[list[int]]:
    """The ring of each slot: layers in turn, so that neighbours never share one."""
    return [list(layers[number::stream_slots]) for number in range(stream_slots)]


def _kept(slots: Sequence[SlotState], ring: Collection[int]) -> int | None:
    """The slot that holds a layer of `ring` and shares the most with it: its frame may stay.

    No two rings share a layer, so none keep the same slot.
    """
    holding = [number for number, slot in enumerate(slots) if slot.target in ring]
    return max(holding, key=lambda number: len(set(slots[number].ring) & set(ring)), default=None)


def _leaves(
    slots: Sequence[SlotState], rings: Sequence[Sequence[int]], kept: Sequence[int | None]
) -> list[SlotLeft]:
    """Layers of each slot that are not of the ring which keeps it, if any does."""
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
    """A frame that holds a layer of `ring`, with it; else another one, whose content is lost.

    That is one in which no layer of `leaving` is, if there is any: who returns may find itself.
    """
    for position, frame in enumerate(spare):
        if frame.content is not None and frame.content in ring:
            return spare.pop(position)
    free = (at for at, frame in enumerate(spare) if frame.content not in leaving)
    return SpareFrame(spare.pop(next(free, -1)).source, None)
